"""Buffers and samplers with the interfaces of other frameworks, one module each. None is imported by default."""

"""Buffers and samplers in the form that other frameworks ask for, a module each. None is imported unless asked for."""

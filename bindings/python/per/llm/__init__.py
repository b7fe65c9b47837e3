"""Replay for language models that learn by reinforcement: groups of answers.

Imported on request: `import per.llm`.
"""

from per.llm.groups import Counts, Groups, Lease

__all__ = ["Counts", "Groups", "Lease"]

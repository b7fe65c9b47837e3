"""Replay for language models trained by reinforcement learning: groups of answers, and which prompts to ask next.

Imported on request: `import per.llm`.
"""

from per.llm.groups import Counts, GroupBatch, Groups, Lease
from per.llm.prompts import Prompts
from per.llm.serving import connect, serve

__all__ = ["Counts", "GroupBatch", "Groups", "Lease", "Prompts", "connect", "serve"]

"""Statistics: what a buffer holds and has done."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Statistics:
    """What ReplayBuffer.stats() returns. Counters count since creation."""

    capacity: int
    """rows in all: n_envs * rows of a lane"""
    live: int
    """transitions that can be drawn now"""
    added: int
    """transitions added"""
    dropped: int
    """steps not added because the environment was resetting (autoreset)"""
    episodes: int
    """episodes that ended, cuts included"""
    cuts: int
    """of them, those that were cut"""
    samples: int
    """batches drawn"""
    beta_step: int
    """batches that advanced beta"""
    stale_updates: int
    """entries of updates and of set() that came too late"""
    rejected_updates: int
    """entries that were not allowed and skipped"""
    total: float
    """sum of p^alpha over the live transitions"""
    max_priority: float
    """priority that the next transition gets"""
    alpha: float
    """exponent of the priorities"""
    beta: float
    """exponent of the weights of the next batch"""
    gamma: float
    """discount of a step"""

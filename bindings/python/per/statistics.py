"""Statistics: what a buffer holds and has done."""

from __future__ import annotations

import dataclasses
from typing import Protocol


class ScalarWriter(Protocol):
    """What a SummaryWriter of torch.utils.tensorboard or tensorboardX can."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
        """Records a number under a name."""


@dataclasses.dataclass(frozen=True)
class Statistics:
    """What ReplayBuffer.stats() returns. Counters count since creation.

    >>> import per
    >>> buffer = per.ReplayBuffer(100, {"observation": per.Field((), "int64")}, seed=3)
    >>> ids = buffer.extend(observation=range(5), reward=[0] * 5, terminated=[0] * 5, truncated=[0] * 5)
    >>> batch = buffer.sample(8, normalize_weights="none")
    >>> stats = buffer.stats()
    >>> stats.live, stats.last_max_age, stats.last_effective_size
    (4, 4, 8.0)
    >>> stats.scalars("replay/")["replay/last_duplicates"]
    0.5
    """

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
    """batches drawn; each epoch of epochs() counts as one"""
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
    updates: int
    """entries of updates that set a priority"""
    last_batch_size: int
    """B of the last batch that sample() drew; 0, and so all that follows, before the first"""
    last_max_age: int
    """of its transitions: rows that the environment's lane took after one until the draw, one for each step and one for
    each final observation"""
    last_mean_age: float
    """the same, on average"""
    last_effective_size: float
    """(sum of w)^2 / sum of w^2: so many transitions of equal weight say as much"""
    last_duplicates: float
    """share of the batch that repeats another of its transitions, 0 to 1"""
    memory_bytes: int
    """allocated for rows and priorities; what calls return, and keep for the next, comes on top"""
    suspected_resets: int
    """ends after which an environment seems to have reset in another way than autoreset says: see ReplayBuffer.add()"""

    def scalars(self, prefix: str = "") -> dict[str, float]:
        """All of them by name, as loggers take them: `wandb.log(buffer.stats().scalars("replay/"))`."""
        return {prefix + field.name: float(getattr(self, field.name)) for field in dataclasses.fields(self)}

    def log_to(self, writer: ScalarWriter, step: int | None = None, *, prefix: str = "replay/") -> None:
        """Records all of them with a TensorBoard writer: `buffer.stats().log_to(SummaryWriter(), step)`."""
        for name, value in self.scalars(prefix).items():
            writer.add_scalar(name, value, step)

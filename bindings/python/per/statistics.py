"""Statistics: a buffer's contents and activity in numbers."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Protocol

from per._figures import Figures


class ScalarWriter(Protocol):
    """The interface of SummaryWriter in torch.utils.tensorboard and tensorboardX."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
        """Records a number under a name."""


@dataclasses.dataclass(frozen=True)
class Statistics(Figures):
    """The result of ReplayBuffer.stats(). Counters count since creation.

    Examples
    --------
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

    def scalars(self, prefix: str = "") -> dict[str, float]:
        """All statistics by name, in the form that loggers take: `wandb.log(buffer.stats().scalars("replay/"))`.

        Parameters
        ----------
        prefix : str, default ""
            Prepended to each name.

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(), "value": per.Field(default=0.0)}, seed=3)
        >>> ids = buffer.extend(observation=range(9), reward=[1] * 9, terminated=[0] * 9, truncated=[0] * 9)
        >>> buffer.stats().scalars("replay/")["replay/live"]
        8.0
        """
        return {prefix + field.name: float(getattr(self, field.name)) for field in dataclasses.fields(self)}

    def log_to(self, writer: ScalarWriter, step: int | None = None, *, prefix: str = "replay/") -> None:
        """Records all statistics with a TensorBoard writer: `buffer.stats().log_to(SummaryWriter(), step)`.

        Parameters
        ----------
        writer : ScalarWriter
            A SummaryWriter of torch or tensorboardX.
        step : int, optional
            The step to record at.
        prefix : str, default "replay/"
            Prepended to each name.

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(), "value": per.Field(default=0.0)}, seed=3)
        >>> ids = buffer.extend(observation=range(9), reward=[1] * 9, terminated=[0] * 9, truncated=[0] * 9)
        >>> from torch.utils.tensorboard import SummaryWriter  # doctest: +SKIP
        >>> buffer.stats().log_to(SummaryWriter(), step=1000)  # doctest: +SKIP
        """
        for name, value in self.scalars(prefix).items():
            writer.add_scalar(name, value, step)


# help(per.Statistics) is to show the fields, too.
Statistics.__doc__ = f"{inspect.getdoc(Statistics)}".replace(
    "Examples\n", f"{inspect.getdoc(Figures)}\n\nExamples\n", 1
)

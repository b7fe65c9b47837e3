"""Plots of a buffer: its priorities, and the age, weights and effective size of the batches drawn.

Each function draws into `axes`, or into a new figure, and returns the axes. They need matplotlib, but no window.

    history = per.plot.History(buffer)
    for ...:
        batch = buffer.sample(256)
        history.record(batch)
    history.picture().savefig("replay.png")
"""

from __future__ import annotations

import collections
import importlib
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from per import _arrays, _options
from per._errors import InvalidArgument, Unsupported
from per.replay import ReplayBuffer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:  # for typing.get_type_hints()
    Axes = Figure = Any

COLOR = "#c1440e"
SECOND_COLOR = "#4a6fa5"


class History:
    """Records data of a buffer's batches as they are drawn.

    Parameters
    ----------
    buffer : ReplayBuffer
        The buffer that the batches come from.
    batches : int, default 100
        Number of most recent batches of which all weights are kept. Summary numbers are kept of every batch.

    Examples
    --------
    >>> import numpy as np, per, per.plot
    >>> buffer = per.ReplayBuffer(100, {"observation": per.Field()}, seed=3)
    >>> ids = buffer.extend(observation=np.arange(10), reward=np.ones(10), terminated=np.zeros(10),
    ...                     truncated=np.zeros(10))
    >>> history = per.plot.History(buffer)
    >>> history.record(buffer.sample(8))
    >>> history.effective_sizes.tolist()
    [1.0]
    """

    def __init__(self, buffer: ReplayBuffer, *, batches: int = 100) -> None:
        self._buffer = buffer
        kept = _options.at_least("batches", batches, 0)
        self._weights: collections.deque[npt.NDArray[np.float32]] = collections.deque(maxlen=kept)
        self._rows: list[tuple[float, float, float, float]] = []

    def record(self, batch: Mapping[str, Any]) -> None:
        """Records a batch that was just drawn.

        Parameters
        ----------
        batch : Mapping[str, Any]
            A batch from sample(), a loader or a reader. A loader has drawn others since: ages and `samples` are those
            of the latest of these.
        """
        stats = self._buffer.stats()
        weights = np.array(_arrays.as_float(batch["weights"], "batch.weights"))
        if stats.last_batch_size != weights.size:
            raise InvalidArgument(
                f"batch has {weights.size} transitions; allowed: the last batch drawn, of {stats.last_batch_size}"
            )
        self._weights.append(weights)
        wide = weights.astype(np.float64)
        share, latest = wide.sum() ** 2 / (weights.size * (wide**2).sum()), stats.last_effective_size / weights.size
        share = latest if math.isclose(share, latest, rel_tol=1e-6) else share  # of weights that were not rounded
        self._rows.append((stats.samples, stats.last_mean_age, stats.last_max_age, share))

    @property
    def weights(self) -> npt.NDArray[np.float32]:
        """Weights of the last batches, in one array."""
        return np.concatenate(self._weights) if self._weights else np.zeros(0, np.float32)

    @property
    def samples(self) -> npt.NDArray[np.float64]:
        """The number of batches drawn up to each record."""
        return self._column(0)

    @property
    def mean_ages(self) -> npt.NDArray[np.float64]:
        """Mean age of the transitions of each batch, in rows of the environment's lane."""
        return self._column(1)

    @property
    def max_ages(self) -> npt.NDArray[np.float64]:
        """Age of the oldest transition of each batch."""
        return self._column(2)

    @property
    def effective_sizes(self) -> npt.NDArray[np.float64]:
        """Effective size of each batch as a share of its size: (sum of w)^2 / (B sum of w^2), above 0, up to 1."""
        return self._column(3)

    def _column(self, i: int) -> npt.NDArray[np.float64]:
        return np.array([row[i] for row in self._rows])

    def picture(self) -> Figure:
        """A matplotlib figure with all four plots."""
        figure = _figure(figsize=(9, 6), layout="constrained")
        (upper_left, upper_right), (lower_left, lower_right) = figure.subplots(2, 2)
        priorities(self._buffer, upper_left)
        weights(self, upper_right)
        age(self, lower_left)
        effective_size(self, lower_right)
        return figure


def priorities(source: ReplayBuffer | npt.ArrayLike, axes: Axes | None = None, **style: Any) -> Axes:
    """A histogram of priorities, on a logarithmic axis.

    Parameters
    ----------
    source : ReplayBuffer or npt.ArrayLike
        A buffer, whose live transitions are used, or the priorities themselves, >= 0. Zeros have no place on the axis;
        the title counts them.
    axes : Axes, optional
        Matplotlib axes; None: new ones.
    **style : Any
        Arguments for Axes.hist().
    """
    if isinstance(source, ReplayBuffer):
        source = source.priorities(source.live_ids())
    values = _numbers(source)
    positive = values[values > 0]
    axes = _axes(axes)
    if positive.size:
        low, high = positive.min(), positive.max()
        if high / low < 1.01:  # nearly equal
            low, high = low / 10, high * 10
        axes.hist(positive, **{"bins": np.geomspace(low, high, 51), "color": COLOR, **style})
    zeros = f" ({values.size - positive.size} of {values.size} are 0)" if positive.size < values.size else ""
    axes.set(title=f"priorities of stored transitions{zeros}", xscale="log", xlabel="|TD error| + epsilon")
    return axes


def weights(source: History | npt.ArrayLike, axes: Axes | None = None, **style: Any) -> Axes:
    """A histogram of importance-sampling weights: those of a history's last batches, or an array, >= 0."""
    title = "importance-sampling weights"
    if isinstance(source, History):
        title = f"weights of the last {len(source._weights)} batches"
        source = source.weights
    values = _numbers(source)
    axes = _axes(axes)
    end = max(1.0, float(values.max(initial=1.0)))  # above 1 if not normalised
    axes.hist(values, **{"bins": np.linspace(0, end, 51), "color": COLOR, **style})
    axes.set(title=title, xlabel="importance-sampling weight", xlim=(0, end))
    return axes


def age(history: History, axes: Axes | None = None) -> Axes:
    """Age of the transitions of each batch: mean, and oldest."""
    axes = _axes(axes)
    axes.fill_between(history.samples, history.max_ages, color=SECOND_COLOR, alpha=0.25, linewidth=0, label="oldest")
    axes.plot(history.samples, history.mean_ages, color=COLOR, label="mean")
    axes.set(title="age of sampled transitions", xlabel="batches drawn", ylabel="rows added since")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left", frameon=False)
    return axes


def effective_size(history: History, axes: Axes | None = None) -> Axes:
    """Effective size of each batch as a share of its size: (sum of w)^2 / (B sum of w^2)."""
    axes = _axes(axes)
    axes.plot(history.samples, history.effective_sizes, color=COLOR)
    axes.set(title="effective size of a batch", xlabel="batches drawn", ylabel="share of its size", ylim=(0, 1.05))
    return axes


def _numbers(source: object) -> npt.NDArray[np.float64]:
    """The numbers of an array, without its axes."""
    values = _arrays.as_float(source, "source", np.float64).ravel()
    for value in values[~(np.isfinite(values) & (values >= 0))]:
        raise InvalidArgument(f"source has {value}; allowed: finite numbers, >= 0")
    return values


def _axes(axes: Axes | None) -> Axes:
    axes = _figure(figsize=(5, 3.6), layout="constrained").subplots() if axes is None else axes
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def _figure(**options: Any) -> Figure:
    try:
        module = importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise Unsupported(f"per.plot needs matplotlib, which cannot be imported: {error}") from error
    figure: Figure = module.Figure(**options)
    return figure

"""Calls of a coordinator for buffers that draw as one."""

from __future__ import annotations

import functools
from typing import Generic

import numpy as np
import numpy.typing as npt

from per import _options
from per._buffer import Buffer
from per._library import check, lib
from per.batch import Batch
from per.coordinator import ShardSummary
from per.typing import Array, FloatLike, IntArrayLike, IntLike, NamedTuple, ReadOptions, Unpack


class Units(NamedTuple, Generic[Array]):
    """The result of ReplayBuffer.get_units()."""

    batch: Batch[Array]
    masses: npt.NDArray[np.int64] | Array
    """int64[n], the mass of each transition; numpy's, on CUDA those of `arrays`"""
    first_units: npt.NDArray[np.int64] | Array
    """int64[n], the first unit of each"""


class Shard(Buffer[Array]):
    """The calls of a coordinator."""

    __slots__ = ()

    @_options.takes_draw_options("scheme")
    def get_units(
        self,
        units: IntArrayLike,
        *,
        stream: object = None,
        **choices: Unpack[ReadOptions],
    ) -> Units[Array]:
        """The transitions that own units of the total mass of summarize(), in the form of get_windows().

        Unit u, 0 to total_mass - 1, belongs to transition i with m_0 + .. + m_(i-1) <= u < m_0 + .. + m_i. A negative
        unit -1 - r stands for the r-th live transition, counted from 0 by environment and then by place in its ring.

        Parameters
        ----------
        units : IntArrayLike
            int64[n].
        stream : object, optional
            As in get_windows().
        beta : float, optional
            As in get_windows().
        prioritization : {"proportional", "rank", "uniform"}, optional
            As in get_windows().
        uniform_fraction : float, optional
            As in get_windows().
        normalize_weights : {"batch_max", "buffer_max", "none"}, optional
            As in get_windows().
        n_step : int or tuple[int, int], optional
            As in get_windows().

        Raises
        ------
        InvalidArgument
            A unit does not exist; the message names the first. On CUDA its id is -1, and synchronize() reports it.

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(), "value": per.Field(default=0.0)}, seed=3)
        >>> ids = buffer.extend(observation=range(9), reward=[1] * 9, terminated=[0] * 9, truncated=[0] * 9)
        >>> units = buffer.get_units([0, -1])
        >>> units.batch.ids.tolist(), units.first_units.tolist()
        ([0, 0], [0, 0])
        """
        if self._steps > 0 and choices.get("n_step") is None:
            return self._at_own_n_step(functools.partial(self.get_units, units, stream=stream), choices)
        options = _options.sample_options(choices, Shard.get_units)
        plain = self._plain if self._steps == 0 else self._exchange_for(options.n_step)[0]
        arrays, masses, first_units = plain.get_units(units, options, stream)
        return Units(self._new_batch(arrays), masses, first_units)

    def summarize(self, measured_scale: IntLike | None = None, measured_reference: IntLike = 0) -> ShardSummary:
        """The integers that draws depend on: see Coordinator. Synchronises.

        Parameters
        ----------
        measured_scale : int, optional
            An additional scale at which the masses are summed, in one pass over the buffer.
        measured_reference : int, default 0
            With a half-life: the reference that the leaves are measured at, as in a ScaleRequest; 0: the buffer's.

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(10, {"observation": per.Field()})
        >>> ids = buffer.extend(observation=range(4), reward=[0] * 4, terminated=[0] * 4, truncated=[0] * 4)
        >>> buffer.set_scale(3)
        >>> buffer.summarize().total_mass, buffer.summarize().live, buffer.summarize(1).measured_mass
        (24, 3, 6)
        """
        return ShardSummary._of(self._open(), measured_scale, measured_reference)

    def set_scale(self, scale: IntLike | None, reference: IntLike = 0) -> None:
        """Sets the scale of mass(p^alpha) = ceil(p^alpha 2^scale), from -120 up to one at which all masses fit.

        The scale stays fixed until a leaf or the sum becomes too large for it, or alpha is set. The buffer then chooses
        a scale, and summarize() reports that. None: the buffer chooses now. Synchronises.

        Parameters
        ----------
        scale : int or None
            From -120 up. None: the buffer chooses it now.
        reference : int, default 0
            With a half-life: the reference that the leaves get, as in a ScaleRequest; 0: the buffer's.

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(), "value": per.Field(default=0.0)}, seed=3)
        >>> ids = buffer.extend(observation=range(9), reward=[1] * 9, terminated=[0] * 9, truncated=[0] * 9)
        >>> buffer.set_scale(3)
        >>> buffer.summarize().scale, buffer.summarize().is_scale_fixed
        (3, True)
        """
        chosen = lib.PER_SCALE_AUTOMATIC if scale is None else _options.whole32("scale", scale)
        check(lib.per_replay_set_scale(self._open(), chosen, _options.whole("reference", reference)))

    def raise_max_priority(self, priority: FloatLike, *, stream: object = None) -> None:
        """Raises the largest priority ever to at least this one, as if a transition had been given it.

        Parameters
        ----------
        priority : float
            A priority before alpha.
        stream : object, optional
            On a device: the stream on which the work is queued. See the class.

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(), "value": per.Field(default=0.0)}, seed=3)
        >>> ids = buffer.extend(observation=range(9), reward=[1] * 9, terminated=[0] * 9, truncated=[0] * 9)
        >>> buffer.raise_max_priority(5.0)
        >>> buffer.stats().max_priority
        5.0
        """
        value = _options.real("priority", priority)
        check(lib.per_replay_raise_max_priority(self._open(), value, self._memory.queue(stream).handle))

"""Draws from a buffer, updates from learners, and reads by id."""

from __future__ import annotations

import functools
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from per import _options, batch
from per._buffer import Buffer
from per._errors import InvalidArgument
from per._library import ffi, lib
from per.batch import Batch
from per.hindsight import Call, Hindsight
from per.typing import Array, ArrayLike, DrawOptions, FieldLike, IntArrayLike, IntLike, OnInvalid, ReadOptions, Unpack


class Sampling(Buffer[Array]):
    """Calls that draw transitions, and that read and write stored ones."""

    __slots__ = ()

    @_options.takes_draw_options()
    def sample(
        self,
        batch_size: IntLike,
        *,
        newest: IntLike = 0,
        key: ArrayLike | None = None,
        hindsight: Hindsight | None = None,
        out: Batch[Array] | None = None,
        stream: object = None,
        **choices: Unpack[DrawOptions],
    ) -> Batch[Array]:
        """Draws live transitions and their importance-sampling weights. A call that fails does not count as a draw.

        Parameters
        ----------
        batch_size : int
            B, 1 to 2^24.
        newest : int, default 0
            The last `newest` rows are not drawn: they are the newest live transitions (those with the largest ids),
            newest first, with weight 1. newest=1 is combined experience replay (Zhang and Sutton 2017,
            section 4). 0 to B - 1. Not with max_times_sampled.
        key : ArrayLike, optional
            uint64[2]: a seed, and the number of draws before this one. (7, 3) draws as the fourth call of a buffer with
            seed 7 would. It counts as one draw of this buffer. Not with hindsight.
        hindsight : Hindsight, optional
            Replaces the goals of some transitions by goals reached later. Exceptions of its reward function propagate;
            the call then does not count as a draw, but does count in `times_sampled`.
        out : Batch[Array], optional
            An earlier batch of the same size, which is overwritten and returned. Not for JAX. Required in a captured
            CUDA graph.
        stream : object, optional
            See the class.
        beta : float, optional
            Exponent of this batch's weights, in place of the buffer's. It does not advance the schedule of beta.
        scheme : {"stratified", "independent", "systematic", "without_replacement"}, optional
            For this batch, in place of the buffer's.
        prioritization : {"proportional", "rank", "uniform"}, optional
            For this batch, in place of the buffer's.
        uniform_fraction : float, optional
            For this batch, in place of the buffer's.
        normalize_weights : {"batch_max", "buffer_max", "none"}, optional
            For this batch, in place of the buffer's.
        n_step : int or tuple[int, int], optional
            Steps of a return in this batch. With (1, 5), each transition or sequence draws its own n from 1 to 5;
            `n_steps` has the length of its window.

        Raises
        ------
        Empty
            No transition is live.
        Busy
            The rate limiter does not allow that many yet.
        InvalidArgument
            Also if fewer than `newest` transitions are live.

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(), "value": per.Field(default=0.0)}, seed=3)
        >>> ids = buffer.extend(observation=range(9), reward=[1] * 9, terminated=[0] * 9, truncated=[0] * 9)
        >>> batch = buffer.sample(4, scheme="independent", beta=1.0)
        >>> batch.size, batch.weights.tolist()
        (4, [1.0, 1.0, 1.0, 1.0])
        >>> buffer.sample(4, out=batch) is batch
        True
        >>> buffer.sample(4, newest=2).ids[2:].tolist()
        [7, 6]
        """
        if self._steps > 0 and choices.get("n_step") is None:
            given: dict[str, Any] = {"newest": newest, "key": key, "hindsight": hindsight, "out": out, "stream": stream}
            return self._at_own_n_step(functools.partial(self.sample, batch_size, **given), choices)
        address, exchange, plain = 0, self._exchange, self._plain
        if choices or newest != 0 or key is not None or hindsight is not None:
            options = _options.sample_options(choices, Sampling.sample)
            _options.set_field(options, "newest", "newest", newest)
            address = int(ffi.cast("uintptr_t", options))
            if self._steps > 0:
                plain, exchange = self._exchange_for(options.n_step)
        arrays = None if out is None else self._arrays_of(out)
        if hindsight is None and key is None:
            drawn = exchange.sample(batch_size, address, arrays, stream)
        else:
            call = None if hindsight is None else Call(hindsight, self._layout)
            drawn = plain.sample(batch_size, address, arrays, stream, call, key)
        return drawn if out is None else out

    @overload
    def update_priorities(self, ids: IntArrayLike, td_errors: ArrayLike, *, stream: object = None) -> None: ...

    @overload
    def update_priorities(
        self,
        ids: IntArrayLike,
        td_errors: ArrayLike | None = None,
        *,
        priorities: ArrayLike | None,
        stream: object = None,
    ) -> None: ...

    def update_priorities(
        self,
        ids: IntArrayLike,
        td_errors: ArrayLike | None = None,
        *,
        priorities: ArrayLike | None = None,
        stream: object = None,
    ) -> None:
        """Sets p = |td_error| + epsilon (section 3.3), or the given priorities. For duplicate ids the last one wins.

        Updates of transitions overwritten meanwhile, and of id -1, are ignored and counted (stale_updates).

        Parameters
        ----------
        ids : IntArrayLike
            int64[n], from a batch or add(). They are not positions in the batch or the buffer.
        td_errors : ArrayLike, optional
            float32[n] of any sign, or [n_critics, n]: the mean or the largest |td_error| is used (option `critics`). On
            the host, other numeric types and lists are cast to float32. For sequences [n, T] or [n_critics, n, T], or
            with sequence_length in place of T if the burn-in is left out. Only steps after the burn-in that are not
            padding count: p = sequence_eta max_t |d_t| + (1 - sequence_eta) mean_t |d_t| + epsilon.
        priorities : ArrayLike, optional
            float32[n], >= 0, before alpha, in place of td_errors.
        stream : object, optional
            See the class.

        Warns
        -----
        PerWarning
            At the first update, if there are as many critics as ids, more than 2: [n, 1] minus [n] broadcasts to that
            shape. Above 16 it is an error.

        Raises
        ------
        InvalidArgument
            An id was never issued, shapes do not match, or a value is not finite and on_invalid is not "skip"; then
            nothing is changed. On CUDA, entries with such ids and values are skipped, the others take effect, and
            synchronize() reports it.

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(), "value": per.Field(default=0.0)}, seed=3)
        >>> ids = buffer.extend(observation=range(9), reward=[1] * 9, terminated=[0] * 9, truncated=[0] * 9)
        >>> buffer.update_priorities([0, 1], [-2.0, 0.5])
        >>> buffer.update_priorities([2], priorities=[7.0])
        >>> buffer.priorities([0, 1, 2]).round(3).tolist()
        [2.0, 0.5, 7.0]
        """
        if priorities is None and td_errors is not None:
            self._exchange.update(ids, td_errors, False, stream)
            if self._diagnostics.looks_at_critics and self._steps == 0:
                self._diagnostics.look_at_critics(ids, td_errors)
        elif td_errors is None and priorities is not None:
            self._exchange.update(ids, priorities, True, stream)
        else:
            raise InvalidArgument("update_priorities needs td_errors or priorities, one of the two")

    @overload
    def priorities(
        self: Sampling[npt.NDArray[Any]], ids: IntArrayLike, *, stream: object = None
    ) -> npt.NDArray[np.float32]: ...
    @overload  # numpy's in host memory, too, but not on CUDA
    def priorities(self, ids: IntArrayLike, *, stream: object = None) -> Any: ...
    def priorities(self, ids: IntArrayLike, *, stream: object = None) -> Any:
        """Reads p by id, float32[n]; 0 for transitions that are not live.

        Parameters
        ----------
        ids : IntArrayLike
            int64[n], from a batch.
        stream : object, optional
            On a device: the stream on which the work is queued. See the class.

        Raises
        ------
        InvalidArgument
            An id was never issued. On CUDA its priority reads as 0, and synchronize() reports it.

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(), "value": per.Field(default=0.0)}, seed=3)
        >>> ids = buffer.extend(observation=range(9), reward=[1] * 9, terminated=[0] * 9, truncated=[0] * 9)
        >>> buffer.priorities([0, 8]).tolist()  # 8 is not live yet
        [1.0, 0.0]
        """
        queue = self._memory.queue(stream)
        entries = self._memory.read_numbers(ids, "ids", "int64", queue)
        return self._each(lib.per_replay_get_priorities, entries, "float32", queue)

    def get(self, ids: IntArrayLike, *, next_observations: bool = True, stream: object = None) -> Batch[Array]:
        """Rows by id, as they were added: one step and one frame each, whatever n_step and frame_stack.

        The batch has no weights or probabilities.

        Parameters
        ----------
        ids : IntArrayLike
            int64[n].
        next_observations : bool, default True
            False leaves them out of the batch. This is the only way to read steps whose next observation is unknown or
            not yet added.
        stream : object, optional
            On a device: the stream on which the work is queued.

        Raises
        ------
        InvalidArgument
            An id was never issued or was overwritten, or next_observations is True and a step has no next observation.

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(), "value": per.Field(default=0.0)}, seed=3)
        >>> ids = buffer.extend(observation=range(9), reward=[1] * 9, terminated=[0] * 9, truncated=[0] * 9)
        >>> buffer.get([4, 2]).observation.tolist()
        [4.0, 2.0]
        """
        if _options.flag("next_observations", next_observations):
            return self._new_batch(self._plain.get(ids, self._layout.rows, stream), self._row_outputs)
        outputs = [output for output in self._layout.rows if output.member != "next_fields"]
        names = batch.structure_of([output.name for output in outputs])
        return self._new_batch(self._plain.get(ids, outputs, stream), names)

    @_options.takes_draw_options("scheme")
    def get_windows(
        self,
        ids: IntArrayLike,
        *,
        on_invalid: OnInvalid = "error",
        hindsight: Hindsight | None = None,
        out: Batch[Array] | None = None,
        stream: object = None,
        **choices: Unpack[ReadOptions],
    ) -> Batch[Array]:
        """Live transitions by id, as sample() would have drawn them: n-step returns, stacks, sequences, weights.

        This does not count as a draw: the random state, the schedule of beta and all statistics stay unchanged.
        Probabilities and weights are those of one draw with replacement, whatever the scheme, by the current
        priorities. A transition that can never be drawn, because its priority is 0, has weight 0.

        Parameters
        ----------
        ids : IntArrayLike
            int64[n], n from 0 to 2^24, in any order; duplicates are allowed.
        on_invalid : {"error", "skip"}, default "error"
            Handling of an id that is not live: "error" raises InvalidArgument; with "skip" its entry has id -1, weight
            0 and zeros elsewhere.
        hindsight : Hindsight, optional
            As in sample(). With it, or with a range for n_step, the call consumes one draw number and counts in
            `samples`.
        out : Batch[Array], optional
            An earlier batch of n transitions, which is overwritten and returned. Not for JAX.
        stream : object, optional
            See the class.
        beta : float, optional
            In place of the buffer's.
        prioritization : {"proportional", "rank", "uniform"}, optional
            In place of the buffer's.
        uniform_fraction : float, optional
            In place of the buffer's.
        normalize_weights : {"batch_max", "buffer_max", "none"}, optional
            In place of the buffer's. "batch_max" uses the largest weight among these ids.
        n_step : int or tuple[int, int], optional
            Steps of a return, in place of the buffer's.

        Raises
        ------
        InvalidArgument
            An id is not live and on_invalid is "error"; the message names the first. On CUDA such ids are always
            skipped, and with "error" synchronize() reports them.

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(1)}, n_step=2, gamma=0.5)
        >>> for t in range(10):
        ...     ids = buffer.add(observation=[t], reward=t, terminated=False, truncated=False, next_observation=[t + 1])
        >>> batch = buffer.get_windows([7, 4, 2])
        >>> batch.reward.tolist(), batch.next_observation[:, 0].tolist(), batch.weights.tolist()
        ([11.0, 6.5, 3.5], [9.0, 6.0, 4.0], [1.0, 1.0, 1.0])
        >>> buffer.get_windows([7, 99], on_invalid="skip").ids.tolist()
        [7, -1]
        """
        if self._steps > 0 and choices.get("n_step") is None:
            given: dict[str, Any] = {"on_invalid": on_invalid, "hindsight": hindsight, "out": out, "stream": stream}
            return self._at_own_n_step(functools.partial(self.get_windows, ids, **given), choices)
        options = _options.sample_options(choices, Sampling.get_windows)
        plain = self._plain if self._steps == 0 else self._exchange_for(options.n_step)[0]
        arrays = plain.get_windows(
            ids,
            _options.number("per_on_invalid", "on_invalid", on_invalid),
            options,
            None if out is None else self._arrays_of(out),
            stream,
            None if hindsight is None else Call(hindsight, self._layout),
        )
        return self._new_batch(arrays) if out is None else out

    def set(self, /, ids: IntArrayLike, *, stream: object = None, **fields: FieldLike) -> None:
        """Writes fields of transitions, [n, shape of the field]; not observations, which rows share.

        Rows overwritten meanwhile, and id -1, are ignored and counted (stale_updates). For duplicate ids the last one
        wins.

        Parameters
        ----------
        ids : IntArrayLike
            int64[n], from a batch.
        stream : object, optional
            On a device: the stream on which the work is queued. See the class.
        **fields : FieldLike
            Arrays [n, shape of the field] by the names of fields.

        Raises
        ------
        InvalidArgument
            A field is not allowed (the message names it), or an id was never issued.
        OutOfMemory

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(), "value": per.Field(default=0.0)}, seed=3)
        >>> ids = buffer.extend(observation=range(9), reward=[1] * 9, terminated=[0] * 9, truncated=[0] * 9)
        >>> buffer.set([4, 2], value=[0.5, 1.5])
        >>> buffer.get([2, 3, 4]).value.tolist()
        [1.5, 0.0, 0.5]
        """
        self._plain.set(ids, self._flat(fields) if self._is_nested else fields, stream)

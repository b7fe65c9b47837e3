"""Adds steps to a buffer: by calls, and through channels from other processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, SupportsFloat

import numpy as np
import numpy.typing as npt

from per import _arrays, _library, _options, final_observations
from per._buffer import Buffer
from per._library import NULL, check, ffi, lib
from per.channel import Channel
from per.typing import Array, ArrayLike, FieldLike, IntArrayLike, IntLike, MovedBy, WhenFull


class Adding(Buffer[Array]):
    """Calls that add steps."""

    __slots__ = ()

    @_options.by_name
    def add(
        self,
        /,
        *positional: NoReturn,
        reward: ArrayLike | SupportsFloat,
        terminated: ArrayLike,
        truncated: ArrayLike,
        mask: ArrayLike | None = None,
        next_mask: ArrayLike | None = None,
        priorities: ArrayLike | None = None,
        td_errors: ArrayLike | None = None,
        env_ids: IntArrayLike | None = None,
        info: Mapping[str, Any] | None = None,
        stream: object = None,
        **fields: FieldLike,
    ) -> npt.NDArray[np.int64]:
        """Adds one step of every environment. On an error nothing is added.

        Arrays are [n, ...], with one row for each environment, or for each of env_ids; the axis may be left out if
        there is one environment. They may come from numpy, torch or JAX, or be of any type with the buffer protocol,
        __array_interface__ or __dlpack__; numbers and lists work too. Elements are cast under numpy's "same_kind" rule:
        float64 to float32, for instance, but not floats to integers. reward, terminated, truncated and the fields
        without a default are required; everything else may be left out.

        Parameters
        ----------
        reward : ArrayLike
            [n]. Rewards, flags and priorities may each be one number for all environments.
        terminated : ArrayLike
            Flags [n]: the episode ended in a terminal state. Flags are booleans, or 0 and 1 of any dtype.
        truncated : ArrayLike
            Flags [n]: the episode ended for another reason, such as a time limit.
        mask : ArrayLike, optional
            Flags [n]; where False nothing is added and no value is read.
        next_mask : ArrayLike, optional
            Flags [n]; where False the next observation is not available (simulators that reset automatically).
        priorities : ArrayLike, optional
            [n], in place of td_errors. Without either, a step gets the largest priority seen.
        td_errors : ArrayLike, optional
            [n], of any sign.
        env_ids : IntArrayLike, optional
            int64[n], 0 to n_envs - 1, each at most once: the environments of these steps. None: all.
        info : Mapping[str, Any], optional
            The info of a vector environment. With autoreset "same_step" the final observations are taken from it; flags
            and next observations are then read on the host. If several fields are observations, a final one must be a
            dict with each of them. With any other autoreset, final observations in the info are an error, since such
            environments provide none.
        stream : object, optional
            See the class. One call may mix arrays in host memory and on the device. Host memory may be overwritten as
            soon as the call returns.
        **fields : FieldLike
            Each declared field by name; those with a default may be left out. For each observation x also next_x, the
            observation after the step. next_x may be left out on steps that end no episode; such a step becomes live
            when the next step is added. Type checkers accept any name here, since they do not know a buffer's fields;
            the call refuses a misspelt one.

        Returns
        -------
        NDArray[int64]
            Ids, int64 in the shape of terminated; -1 where nothing was added. On CUDA an array of the library `arrays`,
            which type checkers do not know.

        Warns
        -----
        PerWarning
            Once each, if environments seem to reset in another way than `autoreset` says: their final observations are
            given twice (suspected_resets in stats()); if most steps are cuts; and if a reward is a whole number that
            float32 cannot represent.

        Raises
        ------
        InvalidArgument
            The message names the field or argument.
        Full
        Busy
            The rate limiter does not allow the add yet.
        OutOfMemory
            No memory is left for compressed fields or rows of any length.

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(2)}, n_envs=2)
        >>> ids = buffer.add(observation=[[0, 1], [2, 3]], reward=[1, 1], terminated=[False, True], truncated=[0, 0],
        ...                  next_observation=[[1, 1], [3, 3]])
        >>> ids.tolist(), len(buffer)
        ([0, 1], 2)
        """
        if positional:
            raise _options.not_by_name("add", positional, self._inputs)
        if self._is_nested:
            fields = self._flat(fields)
        if info is not None and (key := final_observations.key_in(info, self._autoreset)) is not None:
            fields, next_mask = final_observations.insert(
                key, info, fields, next_mask, self._inputs, terminated, truncated, self._layout.value_shapes
            )
        step_arrays = (reward, terminated, truncated, mask, next_mask, priorities, td_errors)
        ids: npt.NDArray[np.int64] = self._exchange.add(step_arrays, fields, env_ids, False, stream)
        self._diagnostics.look_at_steps(1, reward, self)
        return ids

    @_options.by_name
    def extend(
        self,
        /,
        *positional: NoReturn,
        reward: ArrayLike | SupportsFloat,
        terminated: ArrayLike,
        truncated: ArrayLike,
        mask: ArrayLike | None = None,
        next_mask: ArrayLike | None = None,
        priorities: ArrayLike | None = None,
        td_errors: ArrayLike | None = None,
        env_ids: IntArrayLike | None = None,
        stream: object = None,
        **fields: FieldLike,
    ) -> npt.NDArray[np.int64]:
        """Adds K consecutive steps, like K calls of add(), but in one.

        Arrays are as in add(), with a leading time axis: [K, n_envs, ...], or [K, ...] for one environment.

        Parameters
        ----------
        reward : ArrayLike
            [K, n]. Rewards, flags and priorities may each be one number for all steps.
        terminated : ArrayLike
            Flags [K, n]: the episode ended in a terminal state.
        truncated : ArrayLike
            Flags [K, n]: the episode ended for another reason, such as a time limit.
        mask : ArrayLike, optional
            Flags [K, n]. Where False nothing is added.
        next_mask : ArrayLike, optional
            Flags [K, n]. Where False the next observation is not available.
        priorities : ArrayLike, optional
            [K, n], in place of td_errors. Without either, steps get the largest priority seen.
        td_errors : ArrayLike, optional
            [K, n], of any sign.
        env_ids : IntArrayLike, optional
            int64[n], each at most once: the environments of these steps. None: all.
        stream : object, optional
            On a device: the stream on which the work is queued. See the class.
        **fields : FieldLike
            Arrays [K, n_envs, ...] of each declared field by name, and next_x for observations x.

        Returns
        -------
        NDArray[int64]
            Ids, int64 in the shape of terminated; -1 where nothing was added. On CUDA an array of the library `arrays`,
            which type checkers do not know.

        Warns
        -----
        PerWarning
            As in add(), and once if an environment gets more steps than it has rows.

        Raises
        ------
        InvalidArgument
        Full
        Busy
        OutOfMemory
            Nothing was added.

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(), "value": per.Field(default=0.0)}, seed=3)
        >>> ids = buffer.extend(observation=range(9), reward=[1] * 9, terminated=[0] * 9, truncated=[0] * 9)
        >>> ids.tolist(), len(buffer)  # the last step has no next observation yet
        ([0, 1, 2, 3, 4, 5, 6, 7, 8], 8)
        """
        if positional:
            raise _options.not_by_name("extend", positional, self._inputs)
        if self._is_nested:
            fields = self._flat(fields)
        step_arrays = (reward, terminated, truncated, mask, next_mask, priorities, td_errors)
        ids: npt.NDArray[np.int64] = self._exchange.add(step_arrays, fields, env_ids, True, stream)
        self._diagnostics.look_at_steps(len(ids), reward, self)
        self._diagnostics.look_at_length(len(ids), self._n_envs, self._capacity)
        return ids

    def cut(self, env_ids: IntArrayLike | None = None, *, stream: object = None) -> None:
        """Ends the running episodes of the environments (None: all) as truncated; the next step begins a new episode.

        Parameters
        ----------
        env_ids : IntArrayLike, optional
            int64[n]. None: all.
        stream : object, optional
            On a device: the stream on which the work is queued. See the class.

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field()})
        >>> ids = buffer.add(observation=0, reward=1, terminated=False, truncated=False, next_observation=1)
        >>> buffer.cut()
        >>> buffer.stats().cuts
        1
        """
        queue = self._memory.queue(stream)
        if env_ids is None:
            check(lib.per_replay_cut(self._open(), 0, NULL, queue.handle))
        else:
            ids = _arrays.as_int64(env_ids, "env_ids")
            check(lib.per_replay_cut(self._open(), ids.size, ffi.from_buffer("int64_t[]", ids), queue.handle))

    def channel(
        self,
        env_ids: IntArrayLike | None = None,
        *,
        slots: IntLike = 0,
        when_full: WhenFull = "waits",
        moved_by: MovedBy = "thread",
    ) -> Channel:
        """Creates a channel through which another process adds steps, in shared memory and without pickling.

        Give each writing process a channel for its environments, and call channel.writer() there. A thread of the
        library moves the steps into the buffer in large groups, also while other threads draw.

        Parameters
        ----------
        env_ids : IntArrayLike, optional
            int64[n], each once: the environments of this buffer that the writer feeds. The writer numbers them from 0,
            in this order. None: all.
        slots : int, default 0
            Slots of the ring, 2 to 2^31. Each holds a step of all these environments, or a cut, such as the one with
            which a writer begins. 0: as many as fit in 4 MiB, at least 16.
        when_full : {"waits", "drops"}, default "waits"
            A writer that finds the ring full "waits", or "drops" its steps and counts them.
        moved_by : {"thread", "calls"}, default "thread"
            "thread": a thread of the library moves the steps. "calls": there is no thread; steps are moved only by
            move() and flush() of the channel, on the calling thread.

        Raises
        ------
        InvalidArgument
        OutOfMemory

        Examples
        --------
        >>> import multiprocessing
        >>> import per
        >>> def act(channel):  # doctest: +SKIP
        ...     with channel.writer() as writer:
        ...         writer.add(observation=[0], reward=0, terminated=True, truncated=False, next_observation=[1])
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(1)}, n_envs=4)
        >>> channels = [buffer.channel([env]) for env in range(4)]
        >>> for channel in channels:  # doctest: +SKIP
        ...     multiprocessing.Process(target=act, args=(channel,)).start()
        """
        options = _library.new("per_channel_options")
        _options.set_options(options, {"slots": slots, "when_full": when_full, "moved_by": moved_by})
        ids = None if env_ids is None else _arrays.as_int64(env_ids, "env_ids")
        if ids is not None:
            options.env_ids, options.n_envs = ffi.from_buffer("int64_t[]", ids), ids.size
        channel = Channel(self._open(), self._open, options)
        self._served.add(channel)
        return channel

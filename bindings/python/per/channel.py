"""Channel and Writer: pass steps from another process to a buffer through shared memory."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, SupportsFloat

from per import _arrays, _bridging, _exchange, _library, _memory, _options, batch, final_observations
from per._errors import InvalidArgument, about
from per._figures import ChannelFigures
from per._handle import Handle, created
from per._layout import layout_of
from per._library import NULL, check, ffi, lib
from per._waiting import waited
from per.field import Field, from_c, to_c
from per.typing import ArrayLike, FieldLike, IntArrayLike, IntLike

_LARGEST = 2**63 - 1


@dataclasses.dataclass(frozen=True)
class ChannelStatistics(ChannelFigures):
    """The result of Channel.stats(). Counters count since creation.

    Examples
    --------
    >>> import per
    >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(1)})
    >>> buffer.channel(slots=8).stats().slots
    8
    """


# help(per.ChannelStatistics) is to show the fields, too.
ChannelStatistics.__doc__ = f"{inspect.getdoc(ChannelStatistics)}".replace(
    "Examples\n", f"{inspect.getdoc(ChannelFigures)}\n\nExamples\n", 1
)


class Channel(Handle):
    """A channel from ReplayBuffer.channel(), through which another process adds steps to the buffer.

    Pass it to that process as an argument: with multiprocessing, spawned or forked, or to a worker of AsyncVectorEnv.
    Only a path is sent. There, writer() attaches to the channel and is the only usable call; flush(), move() and
    stats() belong to the process that owns the buffer.

    Examples
    --------
    >>> import per
    >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(1)}, n_envs=2)
    >>> channel = buffer.channel([1])
    >>> with channel.writer() as writer:  # most often in another process
    ...     for t in range(5):
    ...         writer.add(observation=[t], reward=t, terminated=False, truncated=False, next_observation=[t + 1])
    >>> channel.flush()
    >>> len(buffer), channel.stats().added
    (5, 5)
    """

    _noun = "channel"
    _path: str

    def __init__(self, buffer: Any, check_open: Callable[[], object], options: Any) -> None:
        self._check_open = check_open
        named = functools.partial(check, arguments={"n_envs": "number of env_ids"})
        self._handle = created(lib.per_channel_create, buffer, options, parent=buffer, check=named)
        with self._closed_on_error():
            path_out = ffi.new("char **")
            check(lib.per_channel_get_address(self._handle, path_out, NULL))
            self._path = ffi.string(path_out[0]).decode()

    @property
    def path(self) -> str:
        """The argument for Writer in any process of this user, while the channel is open."""
        return self._path

    def writer(self) -> Writer:
        """Attaches to the channel, from any process; see Writer. The writer keeps the channel open."""
        writer = Writer(self._path)
        writer._channel = self
        return writer

    def flush(self, timeout: float | None = None) -> None:
        """Waits until everything written before the call has been added to the buffer or refused.

        This may include waiting for draws that the rate limiter requires: they must come from another thread.

        Parameters
        ----------
        timeout : float, optional
            Seconds; None: no limit. Ctrl-C interrupts the wait.

        Raises
        ------
        Timeout
            The wait exceeds `timeout`.
        CorruptFile
            The writer was cut off.
        InvalidArgument
            The caller is in another process.

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field()})
        >>> channel = buffer.channel()
        >>> with channel.writer() as writer:
        ...     writer.add(observation=0, reward=1, terminated=True, truncated=False, next_observation=1)
        >>> channel.flush()
        >>> len(buffer)
        1
        """
        handle = self._open()
        waited(timeout, lambda timeout_ms: lib.per_channel_flush(handle, timeout_ms))

    def move(self, max_steps: IntLike | None = None) -> int:
        """Moves as many waiting steps into the buffer as the rate limiter allows. Never waits.

        Parameters
        ----------
        max_steps : int, optional
            The most steps to move, not counting masked ones; a step of all environments of the channel is moved as a
            whole or not at all. None: no limit.

        Returns
        -------
        int
            Number of steps moved.

        Raises
        ------
        InvalidArgument
            A thread moves the steps.
        CorruptFile
            The writer was cut off.
        OutOfMemory
        IoError

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(1)})
        >>> channel = buffer.channel(moved_by="calls")
        >>> writer = channel.writer()
        >>> for t in range(5):
        ...     writer.add(observation=[t], reward=t, terminated=False, truncated=False, next_observation=[t + 1])
        >>> len(buffer), channel.move(3), len(buffer), channel.move()
        (0, 3, 3, 2)
        """
        most = _LARGEST if max_steps is None else _options.whole("max_steps", max_steps)
        steps_out = ffi.new("int64_t *")
        check(lib.per_channel_move(self._open(), most, steps_out))
        return int(steps_out[0])

    def stats(self) -> ChannelStatistics:
        """The channel's statistics.

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field()})
        >>> buffer.channel(slots=8).stats().added
        0
        """
        statistics = _library.filled("per_channel_statistics", lib.per_channel_get_statistics, self._open())
        return ChannelStatistics(
            **{field.name: getattr(statistics, field.name) for field in dataclasses.fields(ChannelStatistics)}
        )

    def close(self) -> None:
        """Moves all written steps into the buffer, and ends the channel. The writer is notified at its next call.

        With moved_by="calls" nothing is moved: steps not yet moved by move() or flush() are lost.
        """
        super().close()

    def _open(self) -> Any:
        if "_check_open" not in vars(self):
            raise InvalidArgument("the channel belongs to another process; allowed here: writer()")
        self._check_open()
        return super()._open()

    def __reduce__(self) -> tuple[Any, ...]:
        return _of_path, (self._path,)

    def __repr__(self) -> str:
        return f"per.Channel({self._path!r})"


def _of_path(path: str) -> Channel:
    """Rebuilds a pickled channel."""
    channel = Channel.__new__(Channel)
    channel._path = path
    return channel


class Writer(Handle):
    """Writes steps to a channel; created by Channel.writer().

    A channel has one writer at a time. Environments are those of the channel, numbered from 0. If the ring is full, a
    call waits, or drops and counts its steps, as the channel specifies.

    Parameters
    ----------
    path : str
        The path of a channel.
    fields : Mapping[str, Field], optional
        The fields to be written: names, shapes and dtypes are compared with those of the buffer. None: no
        comparison.

    Raises
    ------
    Busy
        The channel has a writer.
    InvalidArgument
        A field differs (the message names the first one), or the channel is closed.
    IoError
        The channel no longer exists.

    Examples
    --------
    >>> import per
    >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(1)})
    >>> channel = buffer.channel()
    >>> per.Writer(channel.path, {"observation": per.Field(2)})
    Traceback (most recent call last):
    per.InvalidArgument: field "observation" is float32(2,): in the buffer it is float32(1,)
    """

    _noun = "writer"
    _in_place_of_pickling = "Pass the channel on, and take its writer() there."
    _channel: Channel | None = None
    _exchange: Any = None  # until the fields are known

    def __init__(self, path: str, fields: Mapping[str, Field] | None = None) -> None:
        c_fields, kept = (NULL, None) if fields is None else to_c(fields)
        n_fields = 0 if fields is None else len(fields)
        given = c_fields, n_fields, ffi.sizeof("per_field")
        with about(path):
            self._handle = created(lib.per_writer_attach, _options.path(path), -1, *given)
        del kept
        with self._closed_on_error():
            self._describe()

    def _describe(self) -> None:
        options = _library.new("per_replay_options")
        check(lib.per_writer_describe(self._handle, options))
        self._fields = from_c(options)
        self._n_envs = int(options.n_envs)
        self._autoreset = _library.name_of("per_autoreset", options.autoreset)
        layout = layout_of(self._fields, self._n_envs)
        self._inputs = batch.structure_of([*layout.fields, *filter(None, layout.next_fields)])
        self._value_shapes = layout.value_shapes
        batch.refuse_argument_names(self._inputs)
        plain = _exchange.Exchange(self._handle, layout, _memory.HOST)
        self._exchange = _bridging.new_exchange(self._handle, plain, layout, _memory.HOST)

    @property
    def n_envs(self) -> int:
        """Number of environments of the channel."""
        return self._n_envs

    @property
    def fields(self) -> dict[str, Field]:
        """The fields of the buffer."""
        return dict(self._fields)

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
        timeout: float | None = None,
        **fields: FieldLike,
    ) -> None:
        """Writes one step of every environment, in the form of ReplayBuffer.add().

        Arrays are as in ReplayBuffer.add(), in host memory.

        Parameters
        ----------
        reward : ArrayLike
            Rewards, or one for all.
        terminated : ArrayLike
            Flags: the episode ended in a terminal state.
        truncated : ArrayLike
            Flags: the episode ended for another reason, such as a time limit.
        mask : ArrayLike, optional
            Flags. Where False nothing is added.
        next_mask : ArrayLike, optional
            Flags. Where False the next observation is not available.
        priorities : ArrayLike, optional
            float32[n], >= 0, in place of td_errors.
        td_errors : ArrayLike, optional
            float32[n] of any sign.
        env_ids : IntArrayLike, optional
            int64[n], each once: environments, numbered from 0. None: all.
        info : Mapping[str, Any], optional
            The info of a vector environment, for final observations.
        timeout : float, optional
            Seconds to wait for room; None: no limit. Ctrl-C interrupts the wait.
        **fields : FieldLike
            Each declared field by name.

        Raises
        ------
        Timeout
            The ring was still full after `timeout`.
        InvalidArgument
            Also if the channel was closed. Nothing was written.

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field()})
        >>> writer = buffer.channel().writer()
        >>> writer.add(observation=0, reward=1, terminated=True, truncated=False, next_observation=1)
        >>> writer.flush()
        >>> len(buffer)
        1
        """
        if positional:
            raise _options.not_by_name("add", positional, self._inputs)
        fields = self._flat(fields)
        if info is not None and (key := final_observations.key_in(info, self._autoreset)) is not None:
            fields, next_mask = final_observations.insert(
                key, info, fields, next_mask, self._inputs, terminated, truncated, self._value_shapes
            )
        self._write((reward, terminated, truncated, mask, next_mask, priorities, td_errors), fields, env_ids, timeout)

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
        timeout: float | None = None,
        **fields: FieldLike,
    ) -> None:
        """Writes K consecutive steps, fewer than the channel has slots, in the form of ReplayBuffer.extend().

        Parameters
        ----------
        reward : ArrayLike
            Rewards, or one for all.
        terminated : ArrayLike
            Flags: the episode ended in a terminal state.
        truncated : ArrayLike
            Flags: the episode ended for another reason, such as a time limit.
        mask : ArrayLike, optional
            Flags. Where False nothing is added.
        next_mask : ArrayLike, optional
            Flags. Where False the next observation is not available.
        priorities : ArrayLike, optional
            float32[K, n], >= 0, in place of td_errors.
        td_errors : ArrayLike, optional
            float32[K, n] of any sign.
        env_ids : IntArrayLike, optional
            int64[n], each once: environments, numbered from 0. None: all.
        timeout : float, optional
            Seconds to wait for room. None: no limit. Ctrl-C interrupts the wait.
        **fields : FieldLike
            Each declared field by name.

        Raises
        ------
        Timeout
            The ring was still full after `timeout`.
        InvalidArgument
            Also if the channel was closed. Nothing was written.

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field()})
        >>> writer = buffer.channel().writer()
        >>> writer.extend(observation=range(5), reward=[1] * 5, terminated=[0] * 5, truncated=[0] * 5)
        >>> writer.flush()
        >>> len(buffer)
        4
        """
        if positional:
            raise _options.not_by_name("extend", positional, self._inputs)
        arrays = (reward, terminated, truncated, mask, next_mask, priorities, td_errors)
        self._write(arrays, self._flat(fields), env_ids, timeout, is_run=True)

    def cut(self, env_ids: IntArrayLike | None = None, *, timeout: float | None = None) -> None:
        """Ends the running episodes of the environments (None: all) as truncated; the next step begins a new episode.

        Parameters
        ----------
        env_ids : IntArrayLike, optional
            int64[n], each once: environments, numbered from 0. None: all.
        timeout : float, optional
            Seconds to wait. None: no limit. Ctrl-C interrupts the wait.

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field()})
        >>> writer = buffer.channel().writer()
        >>> writer.add(observation=0, reward=1, terminated=False, truncated=False, next_observation=1)
        >>> writer.cut()
        >>> writer.flush()
        >>> buffer.stats().cuts
        1
        """
        handle = self._open()
        ids = None if env_ids is None else _arrays.as_int64(env_ids, "env_ids")
        given = (0, NULL) if ids is None else (ids.size, ffi.from_buffer("int64_t[]", ids))
        waited(timeout, lambda timeout_ms: lib.per_writer_cut(handle, *given, timeout_ms))

    def flush(self, timeout: float | None = None) -> None:
        """Waits until everything written has been added to the buffer or refused.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait. None: no limit. Ctrl-C interrupts the wait.

        Raises
        ------
        Timeout
            The wait exceeds `timeout`.
        InvalidArgument
            The channel was closed.
        """
        handle = self._open()
        waited(timeout, lambda timeout_ms: lib.per_writer_flush(handle, timeout_ms))

    def close(self) -> None:
        """Detaches from the channel, which may then have another writer."""
        super().close()
        self._channel = None
        if self._exchange is not None:
            self._exchange.close()

    def _write(
        self,
        arrays: tuple[object, ...],
        fields: Mapping[str, object],
        env_ids: IntArrayLike | None,
        timeout: float | None,
        is_run: bool = False,
    ) -> None:
        self._open()
        waited(timeout, lambda timeout_ms: self._exchange.write(arrays, fields, env_ids, is_run, timeout_ms))

    def _flat(self, fields: Mapping[str, object]) -> dict[str, Any]:
        """Fields in the user's containers, flattened to their declared names."""
        flat: dict[str, Any] = {}
        for name, value in fields.items():
            batch.flatten(self._inputs.get(name, name), value, name, flat)
        return flat

    def __repr__(self) -> str:
        return f"per.Writer({', '.join(self._fields)}, n_envs={self._n_envs})"

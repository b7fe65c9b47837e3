"""Channel: passes steps from processes on a shard's node to the shard, through shared memory."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import ray

import per
from per import _library
from per._errors import InvalidArgument
from per._library import check, lib
from per._waiting import seconds_of
from per.ray.coordination import get
from per.typing import IntArrayLike

# Seconds between two polls of whether a shard has added steps, if its ring holds steps for many draws.
_LONGEST_PAUSE = 0.5


class ChannelEnded(InvalidArgument):
    """The channel no longer exists: it was closed, or the process of its shard has ended.

    Steps written but not yet in the buffer are lost. Once the shard is back, the buffer has another channel.
    """


class Channel:
    """A channel from ReplayBuffer.channel(): passes steps of some environments from processes on their shard's node.

    It may be pickled into Ray tasks and actors, where writer() attaches to it.

    Attributes
    ----------
    path
        The argument for per.Writer in any process of this user on that node, with or without Ray.
    node_id
        Ray's id of the node.
    """

    def __init__(self, path: str, node_id: str, shard: Any, coordinator: Any) -> None:
        self.path, self.node_id = path, node_id
        self._shard, self._coordinator = shard, coordinator

    def writer(self) -> ChannelWriter:
        """Attaches to the channel: one writer at a time. Running episodes are cut.

        Raises
        ------
        ChannelEnded
        Busy
            The channel has a writer.
        InvalidArgument
            The caller is on another node.
        """
        here = ray.get_runtime_context().get_node_id()
        if here != self.node_id:
            raise InvalidArgument(
                f"the channel is on node {self.node_id}, where its shard is, and this process on node {here}; "
                "allowed: a process on the same node; others write by ReplayBuffer.writer()"
            )
        return ChannelWriter(self.path, self._coordinator)

    def stats(self) -> per.ChannelStatistics:
        """The channel's statistics, queried from its shard."""
        found: per.ChannelStatistics = get(self._shard.channel_stats.remote(self.path))
        return found

    def close(self) -> None:
        """Ends the channel once everything written is in the buffer. Its writer is notified at its next call."""
        get(self._shard.close_channel.remote(self.path))
        get(self._coordinator.refresh.remote())

    def __reduce__(self) -> tuple[Any, ...]:
        return Channel, (self.path, self.node_id, self._shard, self._coordinator)

    def __repr__(self) -> str:
        return f"per.ray.Channel({self.path!r}, node_id={self.node_id!r})"


class ChannelWriter(per.Writer):
    """Writes steps like per.Writer, and raises ChannelEnded if its shard is gone; created by Channel.writer().

    A shard adds waiting steps whenever anyone makes a request of the buffer. A call that finds the ring full, and
    flush(), make such a request.
    """

    _in_place_of_pickling = "Pass the channel on, and take its writer() there."

    def __init__(self, path: str, coordinator: Any) -> None:
        self._coordinator = coordinator
        try:
            super().__init__(path)
        except per.IoError as error:
            raise ChannelEnded(f"the shard has ended, or this process does not see its processes: {error}") from None
        except InvalidArgument as error:
            raise ChannelEnded(str(error)) from None

    def _write(
        self,
        arrays: tuple[object, ...],
        fields: Mapping[str, object],
        env_ids: IntArrayLike | None,
        timeout: float | None,
        is_run: bool = False,
    ) -> None:
        self._open()
        if self._exchange.write(arrays, fields, env_ids, is_run, 0) == 0:
            return
        write = super()._write  # raises the error, or waits
        self._once_taken(lambda seconds: write(arrays, fields, env_ids, seconds, is_run), timeout)

    def cut(self, env_ids: IntArrayLike | None = None, *, timeout: float | None = None) -> None:
        """Ends the running episodes of the environments (None: all) as truncated; the next step begins a new episode.

        Parameters
        ----------
        env_ids : IntArrayLike, optional
            int64[n], each once: environments, numbered from 0. None: all.
        timeout : float, optional
            Seconds to wait. None: no limit. Ctrl-C interrupts the wait.
        """
        cut = super().cut
        self._once_taken(lambda seconds: cut(env_ids, timeout=seconds), timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Waits until everything written has been added to the buffer or refused.

        This may include waiting for draws that the rate limiter requires: they must come from another process or
        thread.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait. None: no limit. Ctrl-C interrupts the wait.

        Raises
        ------
        Timeout
            The wait exceeds `timeout`.
        ChannelEnded
        """
        self._once_taken(super().flush, timeout)

    def _once_taken(self, call: Callable[[float], None], timeout: float | None) -> None:
        """Repeats a call until there is room. In between, the coordinator makes the shards add the steps allowed."""
        handle = self._open()
        end, left = time.monotonic() + seconds_of(timeout), math.inf
        pause = 0.0
        while True:
            try:
                return call(min(pause, max(left, 0.0)))
            except per.Busy:
                if left <= 0:
                    raise
            except InvalidArgument:
                try:
                    check(lib.per_writer_describe(handle, _library.new("per_replay_options")))
                except InvalidArgument as error:
                    raise ChannelEnded(str(error)) from None
                raise
            get(self._coordinator.refresh.remote())
            left = end - time.monotonic()
            pause = min(2 * pause + 0.001, _LONGEST_PAUSE)

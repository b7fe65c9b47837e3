"""Save: a checkpoint written by a thread of the library while the buffer stays in use."""

from __future__ import annotations

import atexit
import contextlib
import os
from typing import Any, NoReturn

from per import _options
from per._errors import Error, about
from per._handle import created
from per._library import NULL, check, ffi, lib
from per._waiting import waited


class Save:
    """A running save, from ReplayBuffer.save(wait=False). Dropping the object does not end the save.

    Interpreter exit waits for running saves.
    """

    def __init__(self, buffer: Any, path: Any, options: Any) -> None:
        self._path = path
        with about(path):
            self._handle = created(lib.per_replay_save_start, buffer, _options.path(path), options)
        _running.add(self)
        _running.difference_update([save for save in list(_running) if save.done])  # other threads may change it

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the file is in place and on the disk.

        Parameters
        ----------
        timeout : float, optional
            Seconds; None: no limit. Ctrl-C interrupts the wait.

        Raises
        ------
        Timeout
            The save is still running.
        IoError
        OutOfMemory
            The save failed. Every call raises the error again.
        InvalidArgument
            The caller is a forked child, which has no writing thread.

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(), "value": per.Field(default=0.0)}, seed=3)
        >>> ids = buffer.extend(observation=range(9), reward=[1] * 9, terminated=[0] * 9, truncated=[0] * 9)
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save = buffer.save(f"{folder}/replay.per", wait=False)
        ...     save.wait()
        ...     save.done, save.progress
        (True, 1.0)
        """
        with about(self._path):
            waited(timeout, lambda timeout_ms: lib.per_save_wait(self._handle, timeout_ms, NULL, NULL))

    @property
    def done(self) -> bool:
        """Whether the save has ended, successfully or with an error."""
        return bool(self._look(NULL, NULL) != lib.PER_ERROR_BUSY)

    @property
    def progress(self) -> float:
        """Fraction of the rows written, 0 to 1. At 1 the file may still have to reach the disk: see done."""
        written, total = ffi.new("int64_t *"), ffi.new("int64_t *")
        self._look(written, total)
        return float(written[0] / total[0]) if total[0] > 0 else 1.0

    def _look(self, written_out: Any, total_out: Any) -> int:
        """The status of a poll: the result of the save, or that it is still running."""
        status = int(lib.per_save_wait(self._handle, 0, written_out, total_out))
        if status == lib.PER_ERROR_INVALID_ARGUMENT:
            check(status)
        return status

    def __repr__(self) -> str:
        try:
            return f"per.Save({'done' if self.done else f'{self.progress:.0%}'})"
        except Error:
            return "per.Save(of another process)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("per.Save cannot be pickled: it is a handle of this process")


_running: set[Save] = set()  # includes saves that ended after the latest one began


def _wait_for_all() -> None:
    for save in list(_running):
        with contextlib.suppress(Error):
            save.wait()


atexit.register(_wait_for_all)
os.register_at_fork(after_in_child=_running.clear)

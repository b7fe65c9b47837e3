"""What trees and replay buffers share: a handle of the library, and calls that queue their work on streams."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import TracebackType
from typing import Any, ClassVar, TypeVar

from per import _kinds
from per._device_arrays import Elements
from per._errors import InvalidArgument
from per._library import check, ffi
from per._memory import DeviceMemory, HostMemory
from per._streams import Queue

AnyHandle = TypeVar("AnyHandle", bound="Handle")


_freed_first: dict[int, tuple[Callable[[Any], object], Any]] = {}


# The default is there also when the interpreter ends, and has taken the module's own names away.
def _free_first(child: Any, freed_first: dict[int, tuple[Callable[[Any], object], Any]] = _freed_first) -> None:
    free, parent = freed_first.pop(int(ffi.cast("uintptr_t", child)))
    free(child)
    del parent


def freed_before(parent: Any, child: Any, free: Callable[[Any], object]) -> Any:
    """The handle `child`, to be freed by `free`, and before the handle `parent`: whatever the two are reached from.

    The garbage collector breaks a cycle of references where it likes. It may not find `parent` in one, therefore.
    """
    _freed_first[int(ffi.cast("uintptr_t", child))] = free, parent
    return ffi.gc(child, _free_first)


def _is_setting(owner: type, name: str) -> bool:
    """Whether it is a property that can be set."""
    found = inspect.getattr_static(owner, name, None)
    return isinstance(found, property) and found.fset is not None


class Handle:
    """An object of the library. It closes itself, and earlier at the end of a `with` block."""

    _noun: ClassVar[str]
    """what messages call it"""
    _in_place_of_pickling: ClassVar[str]

    # None: closed. A call holds a reference of its own, so that close() in another thread frees nothing under it.
    _handle: Any = None

    def close(self) -> None:
        """Frees its memory. Every later call but close() is an error."""
        self._handle = None

    def __enter__(self: AnyHandle) -> AnyHandle:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __setattr__(self, name: str, value: object) -> None:
        """Sets a property. What is none is an error, but for subclasses elsewhere, which may have attributes."""
        owner = type(self)
        if name.startswith("_") or _is_setting(owner, name) or "_noun" not in vars(owner):
            return super().__setattr__(name, value)
        settings = [other for other in dir(owner) if _is_setting(owner, other)]
        allowed = f"these can: {', '.join(settings)}" if settings else "nothing can"
        raise AttributeError(f"{name} cannot be set; of a {self._noun} {allowed}")

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            f"per.{type(self).__name__} cannot be pickled: it is a handle of this process. {self._in_place_of_pickling}"
        )

    def _open(self) -> Any:
        handle = self._handle
        if handle is None:
            raise InvalidArgument(f"the {self._noun} is closed")
        return handle


class Store(Handle):
    """A tree or a replay buffer, with the memory that its calls read and write."""

    _synchronize: ClassVar[Any]
    """the library's function"""
    _memory: HostMemory | DeviceMemory

    def synchronize(self, *, stream: object = None) -> None:
        """Waits for what this object queued on the stream, and reports once what went wrong on the device.

        Does nothing on the CPU.

        Raises:
            InvalidArgument with the number of entries that were skipped; Empty; Full, of a buffer; CudaError.
        """
        check(self._synchronize(self._open(), self._memory.queue(stream).handle))

    def _each(self, function: Any, entries: Elements, dtype: str, queue: Queue) -> Any:
        """What a function of the library says of each entry, in an array of that dtype."""
        array = self._memory.new((entries.size,), dtype, queue)
        check(function(self._open(), entries.size, entries.pointer, self._memory.pointer(array), queue.handle))
        self._memory.finish(queue, entries, array)
        return _kinds.given(array)

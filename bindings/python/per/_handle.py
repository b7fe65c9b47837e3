"""What trees and replay buffers share: a handle of the library, and calls that queue their work on streams."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import inspect
import itertools
import operator
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, ClassVar, TypeVar

from per import _kinds, _library, _options
from per._device_arrays import Elements
from per._errors import InvalidArgument
from per._library import check, ffi, lib
from per._memory import DeviceMemory, HostMemory
from per._streams import Queue

AnyHandle = TypeVar("AnyHandle", bound="Handle")


# The parents of handles, until these are freed. The garbage collector breaks cycles of references in any order, so it
# must not find a parent in one: this dict is never freed.
_parents: dict[Any, Any] = {}
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_parents))

# The cells of handles, by their addresses.
_owners: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

_ended: weakref.WeakSet[Any] = weakref.WeakSet()


def owned(cell: Any, free: Callable[[Any], object]) -> Any:
    """A cell for a handle; it frees the handle in it when it is collected.

    A signal handler may raise before the first line of a destructor written in Python, which then never runs. This one
    consists of C functions, and Python calls no handler between them: it frees the handle, then releases the parent.
    """
    freed = map(().count, map(free, map(operator.getitem, (cell,), (0,))))  # 0, which filter() passes over
    let_go = map(_parents.pop, (cell,), (None,))
    return ffi.gc(cell, functools.partial(next, filter(None, itertools.chain(freed, let_go))))


def created(create: Any, *arguments: Any, parent: Any = None, check: Callable[[int], object] = _library.check) -> Any:
    """A handle that a function of the library creates, and that frees itself.

    It is owned before it is created, so an exception, such as one raised by a signal handler, cannot lose it.

    Parameters
    ----------
    create : Any
        The function. It is called with the arguments, and a cell for the handle.
    parent : Any, optional
        The handle that the new one uses. It is freed after the new one, whatever the order of collection.
    check : Callable[[int], object], default _library.check
        Raises the exception for a status.
    """
    cell = ffi.new(ffi.typeof(create).args[-1])
    owner = owned(cell, getattr(lib, ffi.typeof(cell).item.item.cname.removeprefix("struct ") + "_free"))
    try:
        if parent is not None:
            _parents[cell] = parent
        check(create(*arguments, owner))
        _owners[_address(owner[0])] = owner
        # The owner lives as long as its handle, whose destructor is a function in C that does nothing and refers to it.
        return ffi.gc(owner[0], {None: owner}.get)
    except BaseException:
        ffi.release(owner)  # whoever keeps the exception keeps this frame, too
        raise


def owner_of(handle: Any) -> Any:
    """The cell that frees a handle. Whoever takes the handle over writes NULL to it."""
    return _owners[_address(handle)]


def _address(handle: Any) -> int:
    return int(ffi.cast("uintptr_t", handle))


def ended(handle: Any, end: Any) -> Any:
    """An object that ends the work of a handle once: when released, when collected, or when the interpreter exits.

    Parameters
    ----------
    end : Any
        The function of the library that does so. The handle is freed later.
    """
    cell = ffi.new(ffi.getctype(ffi.typeof(handle), "*"), handle)
    ending = owned(cell, end)
    _parents[cell] = handle
    _ended.add(ending)
    return ending


@atexit.register
def _end_all() -> None:
    for ending in list(_ended):
        ffi.release(ending)


def _is_setting(owner: type, name: str) -> bool:
    """Whether it is a property that can be set."""
    found = inspect.getattr_static(owner, name, None)
    return isinstance(found, property) and found.fset is not None


class Handle(_options.Named):
    """An object of the library. It closes itself, and earlier at the end of a `with` block."""

    _noun: ClassVar[str]
    """what messages call it"""
    _in_place_of_pickling: ClassVar[str]

    # None: closed. A call holds a reference of its own, so that close() in another thread frees nothing under it.
    _handle: Any = None

    def close(self) -> None:
        """Frees its memory. Every later call but close() is an error."""
        self._handle = None

    @contextlib.contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        """Around the rest of a constructor: whoever keeps its exception keeps the object, too."""
        try:
            yield
        except BaseException:
            self.close()
            raise

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

        Parameters
        ----------
        stream : object, optional
            That whose work is waited for; see the class.

        Raises
        ------
        InvalidArgument
            With the number of entries that were skipped.
        Empty
        Full
            Of a buffer.
        CudaError
        """
        check(self._synchronize(self._open(), self._memory.queue(stream).handle))

    def _each(self, function: Any, entries: Elements, dtype: str, queue: Queue) -> Any:
        """What a function of the library says of each entry, in an array of that dtype."""
        array = self._memory.new((entries.size,), dtype, queue)
        check(function(self._open(), entries.size, entries.pointer, self._memory.pointer(array), queue.handle))
        self._memory.finish(queue, entries, array)
        return _kinds.given(array)

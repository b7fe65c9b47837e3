"""The base of trees and replay buffers: a library handle, and calls that queue their work on streams."""

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
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from per import _kinds, _library, _options
from per._device_arrays import Elements
from per._errors import InvalidArgument
from per._library import check, ffi, lib
from per._memory import DeviceMemory, HostMemory
from per._streams import Queue

AnyHandle = TypeVar("AnyHandle", bound="Handle")


# The parents of handles, until these are freed. The garbage collector breaks reference cycles in any order, so a parent
# must not be reachable from one: this dict is never freed.
_parents: dict[Any, Any] = {}
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_parents))

# The cells of handles, by address.
_owners: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

_ended: weakref.WeakSet[Any] = weakref.WeakSet()


if TYPE_CHECKING:
    constructor = classmethod  # type checkers know what it does by its name
else:

    class constructor(classmethod):
        """A class method that makes an object. Called on an object, it would leave that one as it is: an error."""

        def __get__(self, instance, owner=None):
            if instance is not None:
                call = f"{type(instance).__name__}.{self.__func__.__name__}()"
                raise AttributeError(f"{call} makes a new object, so it is called on the class, not on an object")
            return super().__get__(instance, owner)


def owned(cell: Any, free: Callable[[Any], object]) -> Any:
    """A cell for a handle, which frees the handle when it is collected.

    A signal handler may raise before the first line of a destructor written in Python, which then never runs. This
    destructor consists of C functions only, between which Python runs no handler: it frees the handle, then releases
    the parent.
    """
    freed = map(().count, map(free, map(operator.getitem, (cell,), (0,))))  # yields 0, which filter() drops
    let_go = map(_parents.pop, (cell,), (None,))
    return ffi.gc(cell, functools.partial(next, filter(None, itertools.chain(freed, let_go))))


def created(create: Any, *arguments: Any, parent: Any = None, check: Callable[[int], object] = _library.check) -> Any:
    """A handle created by a function of the library, which frees itself.

    Its owner exists before it is created, so an exception, such as one raised by a signal handler, cannot leak it.

    Parameters
    ----------
    create : Any
        The function. It is called with the arguments and a cell for the handle.
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
        # The owner lives as long as its handle, whose destructor is a C function without effect or references.
        return ffi.gc(owner[0], {None: owner}.get)
    except BaseException:
        ffi.release(owner)  # whoever keeps the exception also keeps this frame
        raise


def owner_of(handle: Any) -> Any:
    """The cell that frees a handle. Code that takes the handle over writes NULL to it."""
    return _owners[_address(handle)]


def _address(handle: Any) -> int:
    return int(ffi.cast("uintptr_t", handle))


def ended(handle: Any, end: Any) -> Any:
    """An object that ends the work of a handle once: on release, on collection, or at interpreter exit.

    Parameters
    ----------
    end : Any
        The library function that ends it. The handle is freed later.
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
    """Whether it is a settable property."""
    found = inspect.getattr_static(owner, name, None)
    return isinstance(found, property) and found.fset is not None


class Guarded(_options.Named):
    """An object whose attributes are fixed, and that cannot be pickled unless its class says how."""

    _noun: ClassVar[str]
    """the noun in error messages"""
    _in_place_of_pickling: ClassVar[str]

    if not TYPE_CHECKING:  # type checkers are to report misspelt names

        def __getattr__(self, name: str) -> Any:
            kind = type(self)
            if hasattr(kind, name):  # a property that raised AttributeError itself
                return object.__getattribute__(self, name)
            raise _options.no_attribute(kind, f"{kind.__name__!r} object", name)

        def __setattr__(self, name: str, value: object) -> None:
            """Sets a property. Other names are errors, except in subclasses outside the package, which may add some."""
            owner = type(self)
            if name.startswith("_") or _is_setting(owner, name) or "_noun" not in vars(owner):
                return super().__setattr__(name, value)
            settings = [other for other in dir(owner) if _is_setting(owner, other)]
            allowed = f"these can: {', '.join(settings)}" if settings else "nothing can"
            raise AttributeError(f"{name} cannot be set; of a {self._noun} {allowed}{_options.meant(name, settings)}")

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            f"per.{type(self).__name__} cannot be pickled: it is a handle of this process. {self._in_place_of_pickling}"
        )


class Handle(Guarded):
    """An object of the library. It closes itself, or earlier at the end of a `with` block."""

    # None: closed. A call holds its own reference, so close() in another thread cannot free the handle during the call.
    _handle: Any = None

    def close(self) -> None:
        """Frees the object's memory. Every later call except close() is an error."""
        self._handle = None

    @contextlib.contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        """Closes the object on an error in the rest of its constructor: the exception would keep the object alive."""
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

    def _open(self) -> Any:
        handle = self._handle
        if handle is None:
            raise InvalidArgument(f"the {self._noun} is closed")
        return handle


class Store(Handle):
    """A tree or a replay buffer, with the memory that its calls read and write."""

    _synchronize: ClassVar[Any]
    """function of the library"""
    _memory: HostMemory | DeviceMemory

    def synchronize(self, *, stream: object = None) -> None:
        """Waits for the work this object queued on the stream, and reports errors of the device once.

        Does nothing on the CPU.

        Parameters
        ----------
        stream : object, optional
            The stream to wait for; see the class.

        Raises
        ------
        InvalidArgument
            The message has the number of entries that were skipped.
        Empty
        Full
            Only for a buffer.
        CudaError
        """
        check(self._synchronize(self._open(), self._memory.queue(stream).handle))

    def _each(self, function: Any, entries: Elements, dtype: str, queue: Queue) -> Any:
        """The result of a library function for each entry, in an array of that dtype."""
        array = self._memory.new((entries.size,), dtype, queue)
        check(function(self._open(), entries.size, entries.pointer, self._memory.pointer(array), queue.handle))
        self._memory.finish(queue, entries, array)
        return _kinds.given(array)

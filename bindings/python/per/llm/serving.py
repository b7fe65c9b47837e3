"""A ledger or prompts of one process, used by others."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import pickle
import threading
from multiprocessing.managers import BaseManager, BaseProxy
from typing import Any

from per._errors import InvalidArgument, Timeout, kind_of
from per.llm.groups import Groups
from per.llm.prompts import Prompts

_NAMES = {name for kind in (Groups, Prompts) for name in dir(kind) if name[0] != "_"}


class _Served:
    """The object of a server. Tensors are pickled by value: multiprocessing would send descriptors of shared memory."""

    def __init__(self, served: Groups[Any] | Prompts[Any]) -> None:
        self._served = served

    def call(self, request: bytes) -> bytes:
        name, given, named = pickle.loads(request)
        found = getattr(self._served, name)
        return pickle.dumps(found(*given, **named) if callable(found) else found)


class Proxy(BaseProxy):
    """Stands for a Groups or Prompts of another process: all calls and properties of it work as there."""

    _exposed_ = ("call",)

    def __getattr__(self, name: str) -> Any:
        if name not in _NAMES:
            raise AttributeError(name)
        is_call = any(callable(getattr(kind, name, None)) for kind in (Groups, Prompts))
        return functools.partial(self._call, name) if is_call else self._call(name)

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return int(self._call("__len__"))

    def _call(self, name: str, *given: Any, **named: Any) -> Any:
        result: Any = self._callmethod("call", (pickle.dumps((name, given, named)),))  # type: ignore[func-returns-value]
        return pickle.loads(result)

    async def wait(self, *given: Any, **named: Any) -> None:
        """Groups.wait(), on a thread of the server and one of this process."""
        while True:  # so that the threads end soon after a cancellation
            with contextlib.suppress(Timeout):
                return await asyncio.to_thread(self._call, "wait_blocking", *given, **named, timeout=1)


class _Manager(BaseManager):
    pass


_Manager.register("served", proxytype=Proxy)


def serve(served: Groups[Any] | Prompts[Any], address: Any = None, *, authkey: bytes | None = None) -> Any:
    """Lets other processes use a ledger or prompts, as long as this process lives. Returns the address.

    Parameters
    ----------
    served : Groups or Prompts
        The object that they use.
    address : Any, optional
        (host, port), or the path of a socket. None: a socket on this machine.
    authkey : bytes, optional
        A secret that clients must know: they can run code here. None: that of multiprocessing, which children inherit.
    """
    if not isinstance(served, (Groups, Prompts)):
        raise InvalidArgument(f"served is {kind_of(served)}; allowed: per.llm.Groups and per.llm.Prompts")
    server: Any = _Manager(address, authkey).get_server()
    server.registry = {"served": (lambda: _Served(served), Proxy._exposed_, None, Proxy)}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.address


def connect(address: Any, *, authkey: bytes | None = None) -> Any:
    """The Groups or Prompts that another process serves, with the same calls. Raises OSError.

    Parameters
    ----------
    address : Any
        What serve() returned.
    authkey : bytes, optional
        The secret of the server. None: that of multiprocessing.
    """
    client = _Manager(address, authkey)
    client.connect()
    return client.served()  # type: ignore[attr-defined]

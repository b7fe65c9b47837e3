"""A ledger or prompts of one process, used by others."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import multiprocessing
import os
import pickle
import threading
import time
import weakref
from multiprocessing.connection import Client, Listener, answer_challenge, deliver_challenge
from typing import Any, NoReturn

from per._errors import InvalidArgument, Timeout, kind_of
from per.llm.groups import Groups
from per.llm.prompts import Prompts

_NAMES = {name for kind in (Groups, Prompts) for name in dir(kind) if name[0] != "_"}

_ends: weakref.WeakSet[Any] = weakref.WeakSet()  # those of servers, of listeners and connections


def _close_ends() -> None:
    """A forked child that kept them would keep clients waiting after the death of the server."""
    for end in list(_ends):
        end.close()


os.register_at_fork(after_in_child=_close_ends)


def _accept(listener: Listener, served: Any, authkey: bytes) -> None:
    while True:
        try:
            client = listener.accept()
        except OSError:  # such as too many open files
            time.sleep(0.1)
            continue
        _ends.add(client)
        threading.Thread(target=_answer, args=(client, served, authkey), daemon=True).start()


def _answer(client: Any, served: Any, authkey: bytes) -> None:
    """Answers the calls of a client until it closes the connection."""
    with client, contextlib.suppress(EOFError, OSError, multiprocessing.AuthenticationError):
        deliver_challenge(client, authkey)
        answer_challenge(client, authkey)
        while True:
            client.send_bytes(_answer_to(client.recv_bytes(), served))


def _answer_to(request: bytes, served: Any) -> bytes:
    """Whether the call succeeded, and its result or error. Pickle sends tensors by value, multiprocessing would not."""
    try:
        name, given, named = pickle.loads(request)
        found = getattr(served, name)
        return pickle.dumps((True, found(*given, **named) if callable(found) else found))
    except Exception as error:
        try:
            return pickle.dumps((False, error))
        except Exception:
            return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))


class Proxy:
    """Stands for a Groups or Prompts of another process: all calls and properties of it work as there.

    Raises OSError if that process has ended.
    """

    def __init__(self, address: Any, authkey: bytes | None) -> None:
        self._address, self._authkey = address, authkey
        # A call takes a connection out, so that no other thread, handler or forked child reads its answer.
        self._process, self._idle = os.getpid(), [self._connection()]

    def _connection(self) -> Any:
        return Client(self._address, authkey=_key(self._authkey))

    def _call(self, name: str, *given: Any, **named: Any) -> Any:
        request = pickle.dumps((name, given, named))
        if self._process != os.getpid():
            self._process, self._idle = os.getpid(), []
        connection = None
        with contextlib.suppress(IndexError):
            connection = self._idle.pop()
        connection = connection or self._connection()
        try:
            connection.send_bytes(request)
            has_succeeded, result = pickle.loads(connection.recv_bytes())
        except BaseException as error:  # also an interrupt, after which the answer would come
            connection.close()
            if isinstance(error, EOFError):
                raise ConnectionResetError("the process that serves this object has ended") from error
            raise
        self._idle.append(connection)
        if not has_succeeded:
            raise result
        return result

    def __getattr__(self, name: str) -> Any:
        if name not in _NAMES:
            raise AttributeError(name)
        is_call = any(callable(getattr(kind, name, None)) for kind in (Groups, Prompts))
        return functools.partial(self._call, name) if is_call else self._call(name)

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return int(self._call("__len__"))

    def __reduce__(self) -> NoReturn:
        raise TypeError("what per.llm.connect() returned cannot be pickled or copied; allowed: to connect() there")

    async def wait(self, *given: Any, **named: Any) -> None:
        """Groups.wait(), on a thread of the server and one of this process."""
        while True:  # so that the threads end soon after a cancellation
            with contextlib.suppress(Timeout):
                return await asyncio.to_thread(self._call, "wait_blocking", *given, **named, timeout=1)


def _key(authkey: bytes | None) -> bytes:
    return multiprocessing.current_process().authkey if authkey is None else authkey


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
    listener = Listener(address, backlog=64)
    _ends.add(listener)
    threading.Thread(target=_accept, args=(listener, served, _key(authkey)), daemon=True).start()
    return listener.address


def connect(address: Any, *, authkey: bytes | None = None) -> Any:
    """The Groups or Prompts that another process serves, with the same calls. Raises OSError.

    Parameters
    ----------
    address : Any
        What serve() returned.
    authkey : bytes, optional
        The secret of the server. None: that of multiprocessing.
    """
    return Proxy(address, authkey)

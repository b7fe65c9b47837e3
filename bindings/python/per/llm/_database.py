"""The file of a ledger: an SQLite database, where each change of the ledger is a transaction."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import pathlib
import secrets
import sqlite3
import struct
import weakref
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from per._errors import Busy, CorruptFile, InvalidArgument, io_error

Row = tuple[str, object, Sequence[object] | None]
"""a table, the key of a row, and its other values; None deletes the row"""

# The columns of each table, of which the first one is the key. key, tag, value and cause are JSON.
_TABLES = {
    "facts": ("name", "value"),
    "groups": ("place", "id", "state", "first", "sealed", "n_tokens", "uses", "priority", "key", "tag"),
    "payloads": ("place", "contents"),
    "retired": ("cause", "n"),
}
_SCHEMA = [
    f"CREATE TABLE {name} ({', '.join(columns)}, checksum, PRIMARY KEY ({columns[0]})) WITHOUT ROWID"
    for name, columns in _TABLES.items()
]

# A lock of this byte, behind those that SQLite locks, shows that a ledger has the file open. SQLite's own locks belong
# to the process, which loses them when it closes any descriptor of the file, for instance after copying it.
_LOCK = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0x40000000 + 512, 1, 0)

_CANNOT_OPEN = "unable to open database file"  # or its log
# SQLite's other texts for errors of the system. All that remain mean that the file is damaged.
_SYSTEM_ERRORS = {
    "attempt to write a readonly database": errno.EACCES,
    "database or disk is full": errno.ENOSPC,
    "disk I/O error": errno.EIO,
}


def _errno_of_opening(path: str) -> int:
    """Why a file cannot be opened, which SQLite does not say."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return error.errno or errno.EIO
    return errno.EACCES  # it can: the log cannot


@contextlib.contextmanager
def _about(path: str) -> Iterator[None]:
    """Turns errors of the system and of SQLite into those of this package."""
    try:
        yield
    except OSError as error:
        raise io_error(f"{path}: {error.strerror}", error.errno, path) from error
    except (OverflowError, sqlite3.DataError) as error:
        raise InvalidArgument(f"{path}: {error}; allowed for a group: up to 1 GB") from error
    except UnicodeDecodeError as error:
        raise CorruptFile(f"{path}: {error}") from error
    except sqlite3.Error as error:
        if "locked" in str(error):
            raise Busy(f"{path} is in use by another ledger, here or in another process") from error
        number = _errno_of_opening(path) if str(error) == _CANNOT_OPEN else _SYSTEM_ERRORS.get(str(error))
        if number is None:
            raise CorruptFile(f"{path}: {error}") from error
        raise io_error(f"{path}: {os.strerror(number)}", number, path) from error


def _checksum(values: Iterable[object]) -> int:
    checksum = 0
    for value in values:
        checksum = zlib.crc32(value if isinstance(value, bytes) else repr(value).encode(), checksum)
    return checksum


def _connected(path: str) -> sqlite3.Connection:
    """A connection to an existing file, which locks it at the first statement that reads or writes."""
    name = f"{pathlib.Path(path).as_uri()}?mode=rw"
    connection = sqlite3.connect(name, timeout=0, isolation_level=None, check_same_thread=False, uri=True)
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("PRAGMA secure_delete = OFF")
    return connection


_databases: weakref.WeakSet[Database] = weakref.WeakSet()


class Database:
    """Tables of rows with checksums in an SQLite file. Only one ledger can have it open; a forked child cannot use it.

    Parameters
    ----------
    path : str
    rows : Iterable[Row], optional
        The rows of a new file. None: opens an existing one.
    """

    def __init__(self, path: str, rows: Iterable[Row] | None = None) -> None:
        self._connection: sqlite3.Connection | None = None
        self._locked: int | None = None  # a descriptor of the file
        self.path = os.path.realpath(path)  # a relative path ends with the current directory
        _databases.add(self)
        try:
            if rows is not None:
                self._create(rows)
            with _about(self.path):
                self._lock(self.path)
                self._connection = _connected(self.path)
                if [sql for (sql,) in self._connection.execute("SELECT sql FROM sqlite_master")] != _SCHEMA:
                    raise CorruptFile(f"{self.path} is not a file of per.llm.Groups")
                for (problem,) in self._connection.execute("PRAGMA integrity_check"):
                    if problem != "ok":
                        raise CorruptFile(f"{self.path}: {problem}")
        except BaseException:
            self.close()  # an exception that is kept keeps this object
            raise

    def _create(self, rows: Iterable[Row]) -> None:
        """Writes a temporary file and links it to the path, so that the file is complete as soon as it exists."""
        for name in (self.path, f"{self.path}-wal"):  # the log of a deleted file would be replayed
            if os.path.lexists(name):
                raise io_error(f"{name}: {os.strerror(errno.EEXIST)}", errno.EEXIST, name)
        part = f"{self.path}.{secrets.token_hex(4)}.part"
        with contextlib.ExitStack() as stack, _about(self.path):
            for name in (part, f"{part}-wal"):
                stack.callback(pathlib.Path(name).unlink, missing_ok=True)
            os.close(os.open(part, os.O_CREAT | os.O_EXCL, 0o666))
            self._connection = _connected(part)
            for statement in ("PRAGMA journal_mode = WAL", *_SCHEMA):
                self._connection.execute(statement)
            self.write(rows, fsync=True)
            self.close()
            os.link(part, self.path)  # an error if another ledger was created meanwhile

    def _lock(self, path: str) -> None:
        self._locked = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.fcntl(self._locked, fcntl.F_OFD_SETLK, _LOCK)
        except BlockingIOError:
            raise Busy(f"{path} is in use by another ledger, here or in another process") from None

    def close(self) -> None:
        """Lets other ledgers use the file."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        locked, self._locked = self._locked, None
        if locked is not None:
            os.close(locked)

    def check_open(self) -> None:
        """Raises InvalidArgument after close()."""
        if self._connection is None:
            raise InvalidArgument(f"{self.path} is closed; allowed: load()")

    def __del__(self) -> None:
        self.close()  # a connection is part of a reference cycle

    def write(self, rows: Iterable[Row], fsync: bool) -> None:
        """Replaces and deletes rows, all of them or, after an error, none.

        They outlive the process, and a power failure if they are written with fsync. Otherwise a power failure may
        bring back an earlier state.
        """
        self.check_open()
        assert self._connection is not None
        execute = self._connection.execute
        with _about(self.path):
            execute(f"PRAGMA synchronous = {'FULL' if fsync else 'NORMAL'}")
            execute("BEGIN IMMEDIATE")
            try:
                for table, key, values in rows:
                    if values is None:
                        execute(f"DELETE FROM {table} WHERE {_TABLES[table][0]} = ?", (key,))
                    else:
                        row = (key, *values, _checksum((key, *values)))
                        execute(f"REPLACE INTO {table} VALUES ({', '.join('?' * len(row))})", row)
                execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    execute("ROLLBACK")
                raise

    def rows(self, table: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a table, without checksums. Raises CorruptFile."""
        assert self._connection is not None
        with _about(self.path):
            for *values, checksum in self._connection.execute(f"SELECT * FROM {table}"):
                if _checksum(values) != checksum:
                    raise CorruptFile(f"{self.path}: {_TABLES[table][0]} {values[0]!r} of {table} is damaged")
                yield tuple(values)


def _leave_to_parent() -> None:
    """Forgets the connections in a forked child, without closing them, which would delete the parent's log."""
    for database in list(_databases):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(database._connection))
        database._connection = None
        database.close()  # its descriptor, of which the parent has its own


os.register_at_fork(after_in_child=_leave_to_parent)

"""The tables of a ledger: an SQLite database in memory, or in a file that only one ledger can have open."""

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
from collections.abc import Iterator
from typing import Any

from per._errors import Busy, CorruptFile, InvalidArgument, io_error

# Columns and primary keys. Texts are JSON. An open group has no first, sealed and n_tokens. No number is a REAL, since
# checksums are those of texts, and SQLite's text of a REAL depends on its version and the processor.
_TABLES = {
    "ledger": ("options, fields, issued, consumed, draws, version, base", "options"),  # one row
    "groups": ("id, key, tag, priority, uses, first, sealed, n_tokens", "id"),
    "answers": ("id, name, member, value", "id, name, member"),  # of sealed groups
    "retired": ("reason, tag, n", "reason, tag"),
}
_SCHEMA = [
    *(f"CREATE TABLE {name} ({of[0]}, checksum, PRIMARY KEY ({of[1]})) WITHOUT ROWID" for name, of in _TABLES.items()),
    "CREATE INDEX by_sealing ON groups (sealed)",
    "CREATE INDEX by_age ON groups (first)",
]
# Leases and the answers of open groups end with the process. INSERT INTO ended ends groups, if they are there. Triggers
# count groups within the statements that make or end them, between which a signal handler may look.
_TEMPORARY = """
CREATE TEMP TABLE unfinished (id, name, member, value, PRIMARY KEY (id, name, member)) WITHOUT ROWID;
CREATE INDEX temp.by_version ON unfinished (value) WHERE name = 'version_first';
CREATE TEMP TABLE leases (number, lease);
CREATE TEMP TABLE leased (id PRIMARY KEY, number);
CREATE TEMP TABLE changed (id PRIMARY KEY);
CREATE TEMP TRIGGER issuing AFTER INSERT ON main.groups BEGIN UPDATE ledger SET issued = issued + 1; END;
CREATE TEMP VIEW ended AS SELECT NULL AS id, NULL AS reason;
CREATE TEMP TRIGGER ending INSTEAD OF INSERT ON ended BEGIN
    UPDATE ledger SET consumed = consumed + 1 WHERE EXISTS (SELECT 1 FROM groups WHERE id = new.id AND uses > 0);
    INSERT INTO retired SELECT new.reason, tag, 1, NULL FROM groups WHERE id = new.id AND uses = 0
        ON CONFLICT (reason, tag) DO UPDATE SET n = n + 1;
    DELETE FROM groups WHERE id = new.id;
    DELETE FROM answers WHERE id = new.id;
    DELETE FROM unfinished WHERE id = new.id;
END;
"""


def _checksum(columns: str, row: str = "") -> str:
    """The expression for the CRC-32 of a row. It calls no code in Python, where Ctrl-C would become an error of SQL."""
    checksum = "0"
    for column in columns.split(", "):
        value = row + column
        contents = f"CASE typeof({value}) WHEN 'blob' THEN {value} ELSE CAST(quote({value}) AS BLOB) END"
        checksum = f"crc32({contents}, {checksum})"
    return checksum


for _table, (_columns, _key) in _TABLES.items():
    for _event in ("INSERT", f"UPDATE OF {_columns}"):
        _TEMPORARY += f"""
CREATE TEMP TRIGGER {_table}_{_event[:6]} AFTER {_event} ON main.{_table} BEGIN
    UPDATE {_table} SET checksum = {_checksum(_columns, "new.")} WHERE ({_key}) = (new.{_key.replace(", ", ", new.")});
END;"""

# Notes in `changed` the groups that a draw by priority must read, at first all.
NOTE_CHANGES = "INSERT INTO changed SELECT id FROM groups;" + "".join(
    f"CREATE TEMP TRIGGER note_{n} AFTER {event} BEGIN INSERT OR IGNORE INTO changed VALUES ({row}.id); END;"
    for n, event, row in (
        (1, "UPDATE OF priority, sealed ON groups", "new"),
        (2, "DELETE ON groups", "old"),
        (3, "INSERT ON leased", "new"),
        (4, "DELETE ON leased", "old"),
    )
)

# ?1 is the number of values of a sealed group.
IS_WHOLE = """SELECT (SELECT count(*) FROM answers) = ?1 * (SELECT count(*) FROM groups WHERE sealed IS NOT NULL)
    AND (SELECT count(*) FROM groups) = issued - consumed - (SELECT coalesce(sum(n), 0) FROM retired) FROM ledger"""
COUNTS = """SELECT issued, (SELECT count(*) FROM groups WHERE sealed IS NULL),
    (SELECT count(*) FROM groups WHERE sealed IS NOT NULL) - (SELECT count(*) FROM leased),
    (SELECT count(*) FROM leased), consumed FROM ledger"""
# ?1 is the id of a group.
IS_SEALED = "SELECT sealed IS NOT NULL FROM groups WHERE id = ?1"
N_CLOSED = "SELECT count(*) FROM unfinished WHERE id = ?1 AND name = 'reward'"
SEAL = (
    """UPDATE groups SET
    first = (SELECT min(value) FROM unfinished WHERE id = ?1 AND name = 'version_first'),
    n_tokens = (SELECT sum(value) FROM unfinished WHERE id = ?1 AND name = 'n_tokens'),
    sealed = (SELECT coalesce(max(sealed) + 1, 0) FROM groups) WHERE id = ?1""",
    "INSERT INTO answers SELECT *, NULL FROM unfinished WHERE id = ?1",
    "DELETE FROM unfinished WHERE id = ?1",
)
# Retires the groups that are too old, unless a learner has them. ?1 is max_age. If it is NULL, no group is.
RETIRE_STALE = """INSERT INTO ended
    SELECT id, '"stale"' FROM groups
    WHERE first < (SELECT version FROM ledger) - ?1 AND id NOT IN (SELECT id FROM leased)
    UNION SELECT id, '"stale"' FROM unfinished
    WHERE name = 'version_first' AND value < (SELECT version FROM ledger) - ?1"""

# A lock of this byte, behind those that SQLite locks, shows that a ledger has the file open. SQLite's own locks belong
# to the process, which loses them when it closes any descriptor of the file, for instance after copying it.
_LOCK = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0x40000000 + 512, 1, 0)

_CANNOT_OPEN = "unable to open database file"  # or its log
# SQLite's texts for errors of the system. All others mean that the file is damaged.
_SYSTEM_ERRORS = {
    "database or disk is full": errno.ENOSPC,
    "disk I/O error": errno.EIO,
    _CANNOT_OPEN: errno.EACCES,
}


@contextlib.contextmanager
def about(path: str, is_file: bool = False) -> Iterator[None]:
    """Turns errors of SQLite into those of this package, and if is_file also those of the system."""
    try:
        yield
    except OSError as error:
        if not is_file or error.errno is None:  # of a signal handler, such as a TimeoutError
            raise
        raise io_error(f"{path}: {error.strerror}", error.errno, path) from error
    except sqlite3.DataError as error:
        raise InvalidArgument(f"{path}: {error}; allowed for a key or a field of an answer: up to 1 GB") from error
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if "locked" in str(error):
            raise Busy(f"{path} is in use by another ledger, here or in another process") from error
        number = _SYSTEM_ERRORS.get(str(error))
        if "readonly" in str(error) and not os.access(os.path.dirname(path), os.W_OK):
            number = errno.EACCES  # no log can be created; otherwise a damaged header says that the file is read-only
        if number is None:
            raise CorruptFile(f"{path}: {error}") from error
        if str(error) == _CANNOT_OPEN:
            with about(path, is_file=True):
                os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))  # says why, unless it is the log
        raise io_error(f"{path}: {os.strerror(number)}", number, path) from error


def _connected(path: str | None) -> sqlite3.Connection:
    """A connection to memory, or to a file that exists, which it locks at the first statement that reads or writes."""
    name = "file::memory:" if path is None else f"{pathlib.Path(path).as_uri()}?mode=rw"
    connection = sqlite3.connect(name, timeout=0, isolation_level=None, check_same_thread=False, uri=True)
    connection.create_function("crc32", 2, zlib.crc32)
    for setting in ("locking_mode = EXCLUSIVE", "secure_delete = OFF", "temp_store = MEMORY"):
        connection.execute(f"PRAGMA {setting}")
    return connection


_databases: weakref.WeakSet[Database] = weakref.WeakSet()


class Database:
    """The tables of a ledger, whose rows have checksums: those of a file, a copy of them in memory, or empty ones.

    A forked child cannot use them.
    """

    def __init__(self, path: str | None = None, is_copy: bool = False) -> None:
        self.connection: Any = None
        self._locked: int | None = None  # a descriptor of the file
        self._end = "is closed"
        self.path = "the ledger" if path is None or is_copy else os.path.realpath(path)
        _databases.add(self)
        try:
            with about(self.path, is_file=True):
                if path is None:
                    self.connection = _connected(None)
                    self.connection.executescript(";".join(_SCHEMA))
                else:
                    self._open(os.path.realpath(path))  # the current directory may change
                if is_copy:
                    memory = _connected(None)
                    self.connection.backup(memory)
                    self.close()
                    self.connection = memory
                self.connection.executescript(_TEMPORARY)
        except BaseException:
            self.close()  # an exception that is kept keeps this object
            raise

    def _open(self, path: str) -> None:
        """Raises Busy if another ledger has the file, and CorruptFile unless all rows are as they were written."""
        self._locked = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.fcntl(self._locked, fcntl.F_OFD_SETLK, _LOCK)
        except BlockingIOError:
            raise Busy(f"{self.path} is in use by another ledger, here or in another process") from None
        self.connection = _connected(path)
        execute = self.connection.execute
        if [sql for (sql,) in execute("SELECT sql FROM sqlite_master")] != _SCHEMA:
            raise CorruptFile(f"{self.path} is not a file of per.llm.Groups")
        problems = [text for (text,) in execute("PRAGMA integrity_check") if text != "ok"]
        for table, (columns, _) in _TABLES.items():
            if execute(f"SELECT count(*) FROM {table} WHERE checksum IS NOT {_checksum(columns)}").fetchone() != (0,):
                problems.append(f"rows of {table} are damaged")
        if problems:
            raise CorruptFile(f"{self.path}: {problems[0]}")
        execute("PRAGMA journal_mode = WAL")

    def sql(self, statement: str, *values: object) -> list[Any]:
        try:
            rows: list[Any] = self.connection.execute(statement, values).fetchall()
        except OverflowError as error:  # 2 GB
            raise sqlite3.DataError(str(error)) from error
        return rows

    def value(self, statement: str, *values: object) -> Any:
        """The first column of the first row; None without rows."""
        return next((row[0] for row in self.sql(statement, *values)), None)

    def check_open(self) -> None:
        """Raises InvalidArgument after close(), and in a forked child."""
        if self.connection is None:
            raise InvalidArgument(f"{self.path} {self._end}; allowed: load()")

    def save(self, path: str) -> None:
        """Copies the tables to a file that does not exist yet. It is complete as soon as it does."""
        path = os.path.realpath(path)
        for name in (path, f"{path}-wal", f"{path}-journal"):  # SQLite would replay the log of a deleted file
            if os.path.lexists(name):
                raise io_error(f"{name}: {os.strerror(errno.EEXIST)}", errno.EEXIST, name)
        part = f"{path}.{secrets.token_hex(4)}.part"
        with about(path, is_file=True), contextlib.ExitStack() as stack:
            stack.callback(pathlib.Path(part).unlink, missing_ok=True)
            descriptor = os.open(part, os.O_CREAT | os.O_EXCL, 0o666)
            stack.callback(os.close, descriptor)
            with contextlib.closing(_connected(part)) as copy:
                self.connection.backup(copy)
                copy.execute("VACUUM")
            os.fsync(descriptor)
            os.link(part, path)  # an error if another ledger was created meanwhile

    def close(self) -> None:
        """Lets other ledgers use the file."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()
        locked, self._locked = self._locked, None
        if locked is not None:
            os.close(locked)

    def __del__(self) -> None:
        self.close()  # a connection is part of a reference cycle


def _leave_to_parent() -> None:
    """Forgets connections in a forked child, without closing them, which would delete the parent's logs."""
    for database in list(_databases):
        if database.connection is not None:
            database._end = "belongs to the process from which this one was forked"
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(database.connection))
        database.connection = None
        database.close()  # its descriptor, of which the parent has its own


os.register_at_fork(after_in_child=_leave_to_parent)

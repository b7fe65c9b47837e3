"""The file of a ledger: record 0 is a checkpoint, and those after it are the changes since."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import struct
import weakref
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from per._errors import Busy, CorruptFile, InvalidArgument, io_error

Arrays = Mapping[str, npt.NDArray[Any]]

_MAGIC = b"PERG"
_HEADER = struct.Struct("<4sQIQ")  # magic, bytes and CRC-32 of a record's contents, and the record's number
_CHECKSUM = struct.Struct("<I")  # CRC-32 of the header, which follows it
_HEADER_BYTES = _HEADER.size + _CHECKSUM.size


def packed(facts: Mapping[str, Any], arrays: Arrays) -> bytes:
    """Facts, which JSON can represent, and arrays as bytes."""
    file = io.BytesIO()
    text = json.dumps([facts, list(arrays)]).encode()
    file.write(_CHECKSUM.pack(len(text)) + text)
    for array in arrays.values():
        np.save(file, array, allow_pickle=False)
    return file.getvalue()


def unpacked(contents: bytes) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """The facts and arrays of packed(). Raises ValueError, TypeError, EOFError or struct.error."""
    file = io.BytesIO(contents)
    facts, names = json.loads(file.read(*_CHECKSUM.unpack(file.read(_CHECKSUM.size))))
    return dict(facts), {str(name): np.load(file, allow_pickle=False) for name in names}


@contextlib.contextmanager
def _about(path: str) -> Iterator[None]:
    """Turns errors of the system into those of this package."""
    try:
        yield
    except OSError as error:
        raise io_error(f"{path}: {error.strerror}", error.errno, path) from error


def _record(number: int, contents: bytes) -> bytes:
    header = _HEADER.pack(_MAGIC, len(contents), zlib.crc32(contents), number)
    return header + _CHECKSUM.pack(zlib.crc32(header)) + contents


def _header_at(data: bytes, at: int) -> tuple[int, int, int] | None:
    """Size and CRC-32 of a record's contents, and its number. None if no header begins there."""
    header, checksum = data[at : at + _HEADER.size], data[at + _HEADER.size : at + _HEADER_BYTES]
    if len(checksum) < _CHECKSUM.size or _CHECKSUM.pack(zlib.crc32(header)) != checksum:
        return None
    magic, n_bytes, crc, number = _HEADER.unpack(header)
    return (n_bytes, crc, number) if magic == _MAGIC else None


def _is_followed(data: bytes, number: int) -> bool:
    """True if a record with a larger number begins anywhere after the first byte."""
    at = 0
    while (at := data.find(_MAGIC, at + 1)) >= 0:
        header = _header_at(data, at)
        if header is not None and header[2] > number:
            return True
    return False


def _write(file: Any, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file.fileno(), left) :]


_journals: weakref.WeakSet[Journal] = weakref.WeakSet()


class Journal:
    """A file of numbered records, which one ledger at a time has open.

    Records outlive the process, and a power failure if they are written with fsync. A forked child closes its copy.

    Parameters
    ----------
    path : str
    contents : bytes, optional
        Record 0 of a new file. None: opens an existing one.
    """

    def __init__(self, path: str, contents: bytes | None = None) -> None:
        self._path, self._file = os.path.realpath(path), None  # a relative path ends with the current directory
        self.next = 0, 0  # number of the next record, and the byte where it begins
        _journals.add(self)
        if contents is None:
            with _about(self._path):
                self._file = self._locked(self._path, 0)
            return
        try:
            self.replace(contents, is_new=True)
        except BaseException:
            self.close()
            raise

    def _locked(self, path: str, flags: int) -> Any:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | flags, 0o666), "r+b", buffering=0)
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):  # otherwise it was replaced since
                return file
        file.close()
        raise Busy(f"{self._path} is in use by another ledger, here or in another process")

    def _opened(self) -> Any:
        if self._file is None:
            raise InvalidArgument(f"{self._path} is closed, or open in the process from which this one was forked")
        return self._file

    def close(self) -> None:
        """Lets other ledgers use the file."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def _check_new(self) -> None:
        if os.path.lexists(self._path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

    def replace(self, contents: bytes, is_new: bool = False) -> None:
        """Starts the file again with a record 0, which replaces all others at once, and writes it to the disk."""
        part, record = f"{self._path}.part", _record(0, contents)
        with _about(self._path), contextlib.ExitStack() as stack:
            if is_new:
                self._check_new()
            elif not os.path.samestat(os.fstat(self._opened().fileno()), os.stat(self._path)):
                raise Busy(f"{self._path} was replaced by another file")
            file = self._locked(part, os.O_CREAT)
            stack.callback(lambda: self._file is file or file.close())
            if is_new:
                self._check_new()  # of those who create it at the same time, one has the lock
            os.ftruncate(file.fileno(), 0)
            _write(file, record)
            os.fsync(file.fileno())
            old, self._file = self._file, None  # closed if an interrupt comes now
            try:
                os.replace(part, self._path)
            except OSError:
                self._file = old
                raise
            self.next, self._file = (1, len(record)), file
            if old is not None:
                old.close()
            folder = os.open(os.path.dirname(self._path), os.O_RDONLY)
            stack.callback(os.close, folder)
            os.fsync(folder)

    def append(self, contents: bytes, fsync: bool) -> None:
        """Adds a record. After an error the file is as before."""
        file, (number, end), record = self._opened(), self.next, _record(self.next[0], contents)
        with _about(self._path):
            try:
                if os.fstat(file.fileno()).st_size > end:  # an error could not be undone
                    os.ftruncate(file.fileno(), end)
                _write(file, record)
                if fsync:
                    os.fdatasync(file.fileno())
                self.next = number + 1, end + len(record)
            except BaseException:
                os.ftruncate(file.fileno(), self.next[1])
                raise

    def records(self) -> Iterator[bytes]:
        """The contents of all records. The last one is cut off if it is incomplete. Raises CorruptFile."""
        with _about(self._path), open(self._opened().fileno(), "rb", closefd=False) as file:
            size = os.fstat(file.fileno()).st_size
            while self.next[1] < size or self.next[0] == 0:
                number, at = self.next
                file.seek(at)
                n_bytes, crc, found = _header_at(file.read(_HEADER_BYTES), 0) or (size, 0, 0)
                end = at + _HEADER_BYTES + n_bytes
                contents = file.read(n_bytes) if end <= size else b""
                if end > size or zlib.crc32(contents) != crc:
                    file.seek(at)
                    if number == 0 or _is_followed(file.read(), number):
                        raise CorruptFile(f"{self._path}: record {number}, at byte {at}, is damaged")
                    return os.ftruncate(file.fileno(), at)
                if found != number:
                    raise CorruptFile(f"{self._path}: record {number} is missing; the next is {found}")
                self.next = number + 1, end
                yield contents


def _close_in_child() -> None:
    for journal in list(_journals):
        journal.close()


os.register_at_fork(after_in_child=_close_in_child)

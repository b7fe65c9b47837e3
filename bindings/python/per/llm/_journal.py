"""The files of a ledger: a checkpoint, and beside it a journal of what happened since."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from per._errors import Busy, CorruptFile, io_error

Arrays = Mapping[str, npt.NDArray[Any]]

_HEADER = struct.Struct("<QIQ")  # bytes and CRC-32 of a record's contents, and the record's number
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
    """The facts and arrays of packed(). Raises CorruptFile."""
    file = io.BytesIO(contents)
    try:
        facts, names = json.loads(file.read(*_CHECKSUM.unpack(file.read(_CHECKSUM.size))))
        return dict(facts), {str(name): np.load(file, allow_pickle=False) for name in names}
    except (ValueError, TypeError, EOFError, struct.error) as error:
        raise CorruptFile(f"the contents of a record cannot be read: {error}") from error


@contextlib.contextmanager
def _about(path: str) -> Iterator[None]:
    """Turns errors of the system into those of this package."""
    try:
        yield
    except OSError as error:
        raise io_error(f"{path}: {error.strerror}", error.errno, path) from error


def _record(number: int, contents: bytes) -> bytes:
    header = _HEADER.pack(len(contents), zlib.crc32(contents), number)
    return header + _CHECKSUM.pack(zlib.crc32(header)) + contents


def _read(file: Any, at: int, size: int) -> tuple[tuple[int, bytes] | None, int]:
    """The number and contents of the record at a byte, None if it is damaged; and the byte where it should end."""
    file.seek(at)
    header = file.read(_HEADER_BYTES)
    if len(header) < _HEADER_BYTES:
        return None, size
    if zlib.crc32(header[: _HEADER.size]) != _CHECKSUM.unpack(header[_HEADER.size :])[0]:
        return None, at
    n_bytes, checksum, number = _HEADER.unpack(header[: _HEADER.size])
    end = at + _HEADER_BYTES + n_bytes
    contents = file.read(n_bytes) if end <= size else b""
    return ((number, contents) if end <= size and zlib.crc32(contents) == checksum else None), min(end, size)


def _write(file: Any, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file.fileno(), left) :]


def write_checkpoint(path: str, contents: bytes, is_new: bool) -> None:
    """Writes a file, which is whole at any time, to the disk. A new one replaces no other."""
    part = f"{path}.part"
    with _about(path):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)  # after a kill it may be another name of the checkpoint
        with open(part, "xb") as file:
            _write(file, _record(0, contents))
            os.fsync(file.fileno())
        (os.link if is_new else os.replace)(part, path)
        if is_new:
            os.unlink(part)
        folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def read_checkpoint(path: str) -> bytes:
    """The contents of such a file. Raises CorruptFile."""
    with _about(path), open(path, "rb") as file:
        record, _ = _read(file, 0, os.fstat(file.fileno()).st_size)
        if record is None or file.read(1):
            raise CorruptFile(f"{path} is damaged, or is no checkpoint of per.llm.Groups")
    return record[1]


class Journal:
    """An append-only file of numbered records, at the path of the checkpoint with ".journal" appended.

    One ledger at a time has it open. Records outlive the process; with `fsync` also a power failure.
    """

    def __init__(self, path: str, fsync: bool, is_new: bool) -> None:
        self._path, self._fsync = f"{path}.journal", fsync
        with _about(self._path):
            flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT if is_new else 0)
            self._file = os.fdopen(os.open(self._path, flags, 0o666), "ab", buffering=0)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Busy(f"{path} is in use by another ledger, here or in another process") from None

    def append(self, number: int, contents: bytes) -> None:
        """Adds a record. After an error the file is as before."""
        with _about(self._path):
            end = os.fstat(self._file.fileno()).st_size
            try:
                _write(self._file, _record(number, contents))
                if self._fsync:
                    os.fdatasync(self._file.fileno())
            except BaseException:
                os.ftruncate(self._file.fileno(), end)
                raise

    def records(self, after: int) -> Iterator[bytes]:
        """The contents of the records with numbers above `after`. The last one is cut off if it is incomplete.

        Raises CorruptFile if a damaged record is followed by others, or if a record is missing.
        """
        with _about(self._path), open(self._path, "rb") as file:
            size, at = os.fstat(file.fileno()).st_size, 0
            while at < size:
                record, end = _read(file, at, size)
                if record is None:
                    file.seek(at)
                    if end < size and any(file.read()):  # a power failure may leave zeros
                        raise CorruptFile(f"{self._path}: the record at byte {at} is damaged, and others follow")
                    return os.ftruncate(self._file.fileno(), at)
                if record[0] > after + 1:
                    raise CorruptFile(f"{self._path}: record {after + 1} is missing; the next is {record[0]}")
                if record[0] == after + 1:
                    after += 1
                    yield record[1]
                at = end

    def clear(self) -> None:
        """Removes all records, once a checkpoint includes them."""
        with _about(self._path):
            os.ftruncate(self._file.fileno(), 0)

"""Errors and warnings in Python's terms: kinds of OSError with errno and path, timeouts, a category of warnings."""

import errno
import inspect
import os
import pathlib
import pickle
import re
import warnings

import numpy as np
import per
import pytest
from per import _errors

_ROOT = pathlib.Path(__file__).resolve().parents[3]
FIELDS = {"observation": per.Field()}


def filled(**options):
    buffer = per.ReplayBuffer(8, FIELDS, **options)
    buffer.extend(observation=np.zeros(4), reward=np.zeros(4), terminated=np.zeros(4), truncated=np.zeros(4))
    return buffer


def saved_later(path):
    filled().save(path, wait=False).wait()


CALLS = {
    "load": per.ReplayBuffer.load,
    "save": lambda path: filled().save(path),
    "save, not waiting": saved_later,
    "checkpoint": lambda path: filled().checkpoint(path),
    "storage": lambda path: per.ReplayBuffer(8, FIELDS, storage=path, device="cpu"),
    "writer": per.Writer,
    "reader": per.Reader,
}


@pytest.mark.parametrize("call", CALLS)
def test_path_that_is_not_there_is_a_file_not_found_error_with_errno_and_filename(call, tmp_path):
    path = str(tmp_path / "none" / "at" / "all")
    with pytest.raises(FileNotFoundError) as raised:
        CALLS[call](path)
    error = raised.value
    assert isinstance(error, per.IoError) and error.status == _errors.STATUS["PER_ERROR_IO"]
    assert error.errno == errno.ENOENT and error.strerror == os.strerror(errno.ENOENT) and error.filename == path
    assert str(error).endswith(os.strerror(errno.ENOENT)) and not str(error).startswith("[Errno")
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, FileNotFoundError) and isinstance(copy, per.IoError)
    assert (str(copy), copy.errno, copy.filename) == (str(error), error.errno, error.filename)


def test_other_reasons_of_the_system_are_their_exceptions(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        filled().save(tmp_path / "file" / "below")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(per.IoError) as raised:
        per.ReplayBuffer.load(loop)
    assert raised.value.errno == errno.ELOOP and raised.value.filename == str(loop)


def test_file_name_is_that_of_the_argument_that_the_message_names(tmp_path):
    file, none = tmp_path / "file", str(tmp_path / "none" / "at" / "all")
    filled().save(file)
    for path, storage, filename in ((file, none, none), (none, tmp_path, none)):
        with pytest.raises(FileNotFoundError) as raised:
            per.ReplayBuffer.load(path, storage=storage)
        assert raised.value.filename == filename and filename in str(raised.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may do anything")
def test_forbidden_path_is_a_permission_error(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError):
        filled().save(tmp_path / "file")


def test_message_without_a_reason_of_the_system_has_no_errno(tmp_path):
    with pytest.raises(per.IoError, match="holds no checkpoint") as raised:
        per.ReplayBuffer.load(tmp_path)
    assert type(raised.value) is per.IoError and raised.value.errno is None
    assert raised.value.filename == str(tmp_path)


@pytest.mark.parametrize("number", errno.errorcode)
def test_reason_of_the_system_gives_the_kind_that_python_has_for_it(number):
    error = _errors.of_status(_errors.STATUS["PER_ERROR_IO"], f"path /x cannot be read: {os.strerror(number)}")
    assert isinstance(error, type(OSError(number, ""))) and error.errno == number


def test_reason_of_the_system_is_found_in_the_language_of_the_program(monkeypatch):
    def not_found():
        message = f"path /x cannot be read: {os.strerror(errno.ENOENT)}"
        return _errors.of_status(_errors.STATUS["PER_ERROR_IO"], message)

    assert isinstance(not_found(), FileNotFoundError)
    monkeypatch.setattr(os, "strerror", lambda number: f"Fehler {number}")  # as after locale.setlocale()
    error = not_found()
    assert isinstance(error, FileNotFoundError)
    data = pickle.dumps(error)
    monkeypatch.undo()  # another process may use another language
    copy = pickle.loads(data)
    assert isinstance(copy, FileNotFoundError) and copy.errno == errno.ENOENT and str(copy).endswith("Fehler 2")


WAITS = {
    "rate limiter": lambda: filled(min_size_to_sample=9, samples_per_insert=1, samples_tolerance=9).wait_to_sample(
        1, timeout=0.01
    ),
    "loader": lambda: (
        filled(min_size_to_sample=9, samples_per_insert=1, samples_tolerance=9).loader(2).take(timeout=0.01)
    ),
}


@pytest.mark.parametrize("wait", WAITS)
def test_wait_whose_timeout_passes_is_a_timeout_error(wait):
    with pytest.raises(TimeoutError) as raised:
        WAITS[wait]()
    assert type(raised.value) is per.Timeout and isinstance(raised.value, per.Busy)
    assert isinstance(pickle.loads(pickle.dumps(raised.value)), per.Timeout)


def test_busy_without_a_wait_is_no_timeout():
    buffer = filled(min_size_to_sample=9, samples_per_insert=1, samples_tolerance=9)
    with pytest.raises(per.Busy) as raised:
        buffer.sample(1)
    assert not isinstance(raised.value, TimeoutError)


@pytest.mark.parametrize("call", ["update_priorities", "cut", "load", "checkpoint", "summarize"])
def test_wrong_arguments_are_errors_that_name_the_class_of_users(call):
    with pytest.raises(TypeError, match=rf"^ReplayBuffer\.{call}\(\) got an unexpected keyword argument 'x'"):
        getattr(per.ReplayBuffer if call == "load" else filled(), call)(x=1)
    function = inspect.getattr_static(per.ReplayBuffer, call)
    if inspect.isfunction(function):
        assert pickle.loads(pickle.dumps(function)) is function


def test_names_follow_those_of_the_statuses():
    places = {"CUDA", "IO", "CALLBACK", "INTERNAL"}
    for status, number in _errors.STATUS.items():
        name = status.removeprefix("PER_ERROR_")
        if number != 0:
            words = "".join(map(str.capitalize, name.split("_"))) + "Error" * (name in places)
            assert _errors.BY_STATUS[number].__name__ == words


def test_all_warnings_of_the_package_have_its_category():
    assert issubclass(per.PerWarning, UserWarning)
    with pytest.warns(per.PerWarning, match="beta stays"):
        per.ReplayBuffer(8, FIELDS, beta_final=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", per.PerWarning)
        per.ReplayBuffer(8, FIELDS, beta_final=0.5)


def test_every_exception_is_documented_on_the_site():
    rst = (_ROOT / "docs/reference/python.rst").read_text()
    shown = set(re.findall(r"autoexception:: (\w+)", rst))
    kinds = {name for name in per.__all__ if isinstance(getattr(per, name), type)}
    assert shown == {name for name in kinds if issubclass(getattr(per, name), (per.Error, per.PerWarning))}

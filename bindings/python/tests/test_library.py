"""Loading libper, and selecting how arrays are passed."""

import os
import pathlib
import shutil
import subprocess
import sys

import per
import pytest
from per import _bridging, _errors, _library

PACKAGE = pathlib.Path(per.__file__).parent


def run(program, package=None, **variables):
    """Runs a program in a fresh interpreter that finds the package in this folder or a copy of it."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PER_BRIDGE", "PYTHONPATH")}
    environment["LIBPER_PATH"] = _library.path
    environment["PYTHONPATH"] = str(package or PACKAGE.parent)
    environment.update({name: value for name, value in variables.items() if value is not None})
    for name in [name for name, value in variables.items() if value is None]:
        environment.pop(name, None)
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True)


def copy_of_package(folder, with_bridge):
    ignored = shutil.ignore_patterns("__pycache__", "libper*", *([] if with_bridge else ["_bridge.*"]))
    shutil.copytree(PACKAGE, folder / "per", ignore=ignored)
    return folder


def test_libper_path_names_the_library():
    result = run("import per; print(per.library_path, per.__version__)")
    assert result.stdout.split() == [_library.path, per.__version__], result.stderr


def test_load_error_lists_every_place_and_why(tmp_path):
    result = run("import per", package=copy_of_package(tmp_path, with_bridge=False), LIBPER_PATH=None)
    if result.returncode == 0:
        pytest.skip("a libper is installed on this machine")
    message = result.stderr[result.stderr.index("ImportError") :]
    name = f"libper.so.{_library.ABI_VERSION}"
    assert f"  {tmp_path}/per/{name} (beside the package): " in message
    assert f"  {name} (the system's library path): " in message
    assert message.count("cannot open shared object file") == 2
    assert "Set LIBPER_PATH" in message


def test_libper_path_that_is_wrong_is_an_error_and_nothing_else_is_tried(tmp_path):
    path = str(tmp_path / "absent.so")
    result = run("import per", LIBPER_PATH=path)
    assert f"  {path} (LIBPER_PATH): " in result.stderr and "beside the package" not in result.stderr


def test_library_that_is_not_libper_is_refused():
    result = run("import per", LIBPER_PATH="libc.so.6")
    assert "libc.so.6 (LIBPER_PATH): " in result.stderr and "per_abi_version" in result.stderr


def test_library_of_another_abi_version_is_refused(tmp_path):
    source, library = tmp_path / "other.c", tmp_path / "other.so"
    source.write_text("int per_abi_version(void) { return 99; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", library], check=True)
    result = run("import per", LIBPER_PATH=str(library))
    assert f"has ABI version 99, this package needs {_library.ABI_VERSION}" in result.stderr


def test_library_beside_the_package_is_loaded(tmp_path):
    copy_of_package(tmp_path, with_bridge=True)
    shutil.copy(_library.path, tmp_path / "per" / _library.FILE_NAME)
    result = run("import per; print(per.library_path)", package=tmp_path, LIBPER_PATH=None)
    assert result.stdout.strip() == str(tmp_path / "per" / _library.FILE_NAME), result.stderr


WHICH_WAY = """
import numpy, per
from per import _bridging
buffer = per.ReplayBuffer(10, {"observation": per.Field(2)})
buffer.add(observation=[1, 2], reward=3, terminated=True, truncated=False, next_observation=[4, 5])
batch = buffer.sample(4)
buffer.update_priorities(batch.ids, batch.reward)
print(_bridging.bridge is not None, type(buffer._exchange).__module__, batch.reward.tolist())
"""


@pytest.mark.parametrize(
    "choice, way", [(None, "per._bridge"), ("1", "per._bridge"), ("", "per._bridge"), ("0", "per._exchange")]
)
def test_per_bridge_chooses_the_way_of_arrays(choice, way):
    result = run(WHICH_WAY, PER_BRIDGE=choice)
    assert result.stdout.split(maxsplit=2)[:2] == [str(way == "per._bridge"), way], result.stderr
    assert "[3.0, 3.0, 3.0, 3.0]" in result.stdout


def test_package_works_without_the_bridges_file(tmp_path):
    copy_of_package(tmp_path, with_bridge=False)
    assert "False per._exchange [3.0, 3.0, 3.0, 3.0]" in run(WHICH_WAY, package=tmp_path).stdout
    asked_for = run(WHICH_WAY, package=tmp_path, PER_BRIDGE="1")
    assert "No module named 'per._bridge'" in asked_for.stderr


def test_per_bridge_of_another_value_is_an_error():
    assert "PER_BRIDGE is 'yes'; allowed: 0 or 1" in run("import per", PER_BRIDGE="yes").stderr


def test_bridge_built_for_another_header_is_refused(monkeypatch):
    assert _bridging.bridge is not None
    monkeypatch.delenv("PER_BRIDGE", raising=False)
    monkeypatch.setitem(_bridging.bridge.sizes, "per_steps", 8)
    with pytest.raises(ImportError, match=r"per\._bridge was built for another per\.h"):
        _bridging.load()


def test_every_status_has_an_exception_of_the_kind_that_python_would_raise():
    kinds = {
        "PER_ERROR_INVALID_ARGUMENT": (per.InvalidArgument, ValueError),
        "PER_ERROR_OUT_OF_MEMORY": (per.OutOfMemory, MemoryError),
        "PER_ERROR_EMPTY": (per.Empty, RuntimeError),
        "PER_ERROR_FULL": (per.Full, RuntimeError),
        "PER_ERROR_BUSY": (per.Busy, RuntimeError),
        "PER_ERROR_UNSUPPORTED": (per.Unsupported, NotImplementedError),
        "PER_ERROR_NO_DEVICE": (per.NoDevice, RuntimeError),
        "PER_ERROR_CUDA": (per.CudaError, RuntimeError),
        "PER_ERROR_CALLBACK": (per.CallbackError, RuntimeError),
        "PER_ERROR_IO": (per.IoError, OSError),
        "PER_ERROR_CORRUPT_FILE": (per.CorruptFile, ValueError),
        "PER_ERROR_INTERNAL": (per.InternalError, RuntimeError),
    }
    assert set(kinds) == set(_errors.STATUS) - {"PER_OK"}
    for name, (error, kind) in kinds.items():
        assert issubclass(error, per.Error) and issubclass(error, kind)
        assert error.status == _errors.STATUS[name]
        assert _errors.BY_STATUS[_errors.STATUS[name]] is error
        with pytest.raises(error):
            _library.check(error.status)
    _library.check(0)


def test_names_of_choices_are_those_of_the_header():
    assert _library.choices("per_scheme") == {
        "stratified": 0,
        "independent": 1,
        "systematic": 2,
        "without_replacement": 3,
    }
    assert _library.choices("per_max_priority") == {"ever": 0, "now": 1}
    assert _library.choices("per_normalization") == {"batch_max": 0, "buffer_max": 1, "none": 2}
    assert _library.choices("per_device") == {"cpu": 0, "cuda": 1}
    assert _library.choices("per_role")["recurrent_state"] == 3


CYCLES = """
import gc
import per
from per import _handle

class Printing:
    def __init__(self, lib):
        self.lib = lib
    def __getattr__(self, name):
        function = getattr(self.lib, name)
        return (lambda handle: (print(name), function(handle))) if name.endswith("_free") else function

_handle.lib = Printing(_handle.lib)
empty = bytes(per.ReplayBuffer(4, {"observation": per.Field(1)}))
gc.collect()
makes = {"loader": {"batch_size": 2}, "shared_loader": {"batch_size": 2, "readers": 1}, "channel": {}}
for method, arguments in makes.items():
    buffer = per.ReplayBuffer.from_bytes(empty)  # its handle is older than the object
    child = getattr(buffer, method)(**arguments)
    cycle = [buffer, child, child._handle]
    cycle.append(cycle)
    del buffer, child, cycle
    gc.collect()
"""


def test_cycle_of_references_frees_a_buffer_after_what_it_was_made_for():
    """Without the bridge, whose object hides the handle of the buffer from the collector."""
    done = run(CYCLES, PER_BRIDGE="0")
    assert done.returncode == 0, done.stderr
    of_buffer = "per_replay_free"
    expected = [of_buffer]
    for child in ("per_loader_free", "per_shared_loader_free", "per_channel_free"):
        expected += [child, of_buffer]
    assert done.stdout.split() == expected


def test_exceptions_have_the_name_that_users_have_them_by_and_subclasses_elsewhere_their_own():
    class Own(per.InvalidArgument):
        pass

    for kind in (per.Error, *_errors.BY_STATUS.values()):
        assert kind.__module__ == "per"
        assert getattr(per, kind.__name__) is kind
    assert Own.__module__ == __name__


def test_package_works_in_a_subinterpreter():
    interpreters = pytest.importorskip("_xxsubinterpreters")
    program = f"""
import {interpreters.__name__} as interpreters
interpreters.run_string(interpreters.create(), {WHICH_WAY!r})
"""
    assert "False per._exchange [3.0, 3.0, 3.0, 3.0]" in run(program).stdout
    asked_for = run(program, PER_BRIDGE="1")
    assert "PER_BRIDGE is 1 in a subinterpreter; allowed there: 0" in asked_for.stderr

"""What pip installs: one wheel for every Python 3, with the bridge and libper in it, made from an sdist."""

import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile

import per
import pytest
from per import _library

ROOT = pathlib.Path(__file__).resolve().parents[3]


def source_tree(tmp_path):
    """A copy of the source tree, whose build/ holds a library that no wheel may have."""
    tree = tmp_path / "tree"
    not_sources = shutil.ignore_patterns("*.so", "tests", "build", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "bindings" / "python", tree / "bindings" / "python", ignore=not_sources)
    for name in ("CMakeLists.txt", "LICENSE", "cmake", "include", "src"):
        (tree / name).symlink_to(ROOT / name)
    (tree / "build").mkdir()
    (tree / "build" / _library.FILE_NAME).write_text("stale")
    return tree


def build_sdist(tree, folder):
    command = [sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", str(folder)]
    subprocess.run(command, cwd=tree / "bindings" / "python", check=True)
    (sdist,) = folder.glob("*.tar.gz")
    return sdist


def build_wheel(source, folder, **environment):
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    command += ["--wheel-dir", str(folder), str(source)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


def test_wheel_is_built_from_its_sources_and_needs_nothing_beside_it(tmp_path):
    sdist = build_sdist(source_tree(tmp_path), tmp_path)
    with tarfile.open(sdist) as archive:
        xxhash = archive.extractfile(f"libper-{per.__version__}/libper/xxhash/xxhash.h").read().decode()
    installed = tmp_path / "installed"
    fast = {"CFLAGS": "-O0", "CMAKE_ARGS": "-DPER_CUDA=OFF -DCMAKE_BUILD_TYPE=Debug"}
    built = build_wheel(sdist, tmp_path, **fast)
    assert built.returncode == 0, built.stdout + built.stderr

    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith(f"libper-{per.__version__}-py3-none-linux_")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    program = "import per; from per import _bridging; print(per.library_path, _bridging.bridge.__file__)"
    environment = {key: value for key, value in os.environ.items() if key not in ("LIBPER_PATH", "PER_BRIDGE")}
    environment["PYTHONPATH"] = str(installed)
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd="/", capture_output=True, text=True, check=True
    )
    library, bridge = map(pathlib.Path, result.stdout.split())
    assert library == installed / "per" / _library.FILE_NAME
    assert bridge.parent == installed / "per"
    dynamic = subprocess.run(["readelf", "-d", str(library)], capture_output=True, text=True, check=True).stdout
    assert "NODELETE" in dynamic  # the threads of its loaders run on after dlclose()
    assert (installed / "per" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    licence = (installed / "per" / "LICENSE.xxhash").read_text()
    assert "BSD 2-Clause License" in licence and xxhash.startswith(licence)


def test_wheel_without_cmake_says_so_before_anything_is_compiled(tmp_path):
    tree = source_tree(tmp_path)
    (tmp_path / "empty").mkdir()
    scripts = pathlib.Path(sys.prefix, "bin")
    if (scripts / "cmake").exists():
        pytest.skip("cmake is installed beside this interpreter")
    built = build_wheel(tree / "bindings" / "python", tmp_path, PATH=str(tmp_path / "empty"))
    assert built.returncode != 0
    assert "cmake is not found" in built.stdout + built.stderr
    assert not list((tree / "bindings" / "python").rglob("*.o"))

"""What pip installs: one wheel for every Python 3, with the bridge and libper in it."""

import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import per
from per import _library

ROOT = pathlib.Path(__file__).resolve().parents[3]


def test_wheel_from_the_source_tree_needs_nothing_beside_it(tmp_path):
    tree, installed = tmp_path / "tree", tmp_path / "installed"
    not_sources = shutil.ignore_patterns("*.so", "tests", "build", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "bindings" / "python", tree / "bindings" / "python", ignore=not_sources)
    for name in ("CMakeLists.txt", "LICENSE", "cmake", "include", "src"):
        (tree / name).symlink_to(ROOT / name)
    (tree / "build").mkdir()
    shutil.copy(_library.path, tree / "build" / _library.FILE_NAME)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    command += ["--wheel-dir", str(tmp_path), str(tree / "bindings" / "python")]
    subprocess.run(command, check=True, env={**os.environ, "CFLAGS": "-O0"})

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
    assert (installed / "per" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()

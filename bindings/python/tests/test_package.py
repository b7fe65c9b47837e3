"""The results of pip: a wheel per processor for every Python 3, with bridges and libper, built from an sdist."""

import glob
import importlib.util
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import per
import pytest
from per import _library

ROOT = pathlib.Path(__file__).resolve().parents[3]
MACHINE = platform.machine()
IS_LONG = os.environ.get("PER_TEST_ALL") == "1"
AARCH64_PYTHON = pathlib.Path(sys.prefix, "aarch64")
MACHINES = ["x86_64", pytest.param("aarch64", marks=pytest.mark.long)]
PROGRAM = """
import platform, per
from per import _bridging
tree = per.SumTree(4, seed=7)
tree.update([0, 1, 2], [1.0, 2.0, 3.0])
buffer = per.ReplayBuffer(8, {"observation": per.Field(2), "action": per.Field((), "int64")})
for t in range(4):
    buffer.add(observation=[t, 0], action=t, reward=t, terminated=t == 3, truncated=False, next_observation=[t + 1, 0])
assert buffer.sample(16).observation.shape == (16, 2)
bridge = getattr(_bridging.bridge, "__file__", None)
print(platform.machine(), per.library_path, bridge, tree.sample(6).indices.tolist())
"""


def source_tree(folder):
    """A copy of the source tree, with a library in build/ that must not get into a wheel."""
    tree = folder / "tree"
    not_sources = shutil.ignore_patterns("*.so", "tests", "build", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "bindings" / "python", tree / "bindings" / "python", ignore=not_sources)
    for name in ("CMakeLists.txt", "LICENSE", "bench", "cmake", "examples", "include", "scripts", "src"):
        (tree / name).symlink_to(ROOT / name)
    (tree / ".venv").symlink_to(sys.prefix)
    (tree / "build").mkdir()
    (tree / "build" / _library.FILE_NAME).write_text("stale")
    return tree


def interpreters():
    """The machine's interpreters that the package supports, by version: its own and the newest, or all."""
    folders = glob.glob(os.path.expanduser("~/.pyenv/versions/*/bin"))
    search = os.pathsep.join([*folders, "/usr/local/bin", "/usr/bin"])
    found = {f"3.{minor}": shutil.which(f"python3.{minor}", path=search) for minor in range(10, 20)}
    found = {version: path for version, path in found.items() if path}
    tried = found if IS_LONG else (f"3.{sys.version_info.minor}", *[*found][-1:])
    return {version: path for version, path in found.items() if version in tried}


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The output of scripts/wheel, compiled quickly and without CUDA."""
    folder = tmp_path_factory.mktemp("dist")
    versions = tmp_path_factory.mktemp("pyenv") / "versions"
    versions.mkdir()
    for version, path in interpreters().items():
        (versions / version).symlink_to(pathlib.Path(path).parents[1])
    fast = {"CXXFLAGS": "-O0", "CMAKE_ARGS": "-DPER_CUDA=OFF -DCMAKE_BUILD_TYPE=Debug", "WHEEL_FOLDER": str(folder)}
    fast["PYENV_ROOT"] = str(versions.parent)
    can_cross = shutil.which("aarch64-linux-gnu-g++-11") and pathlib.Path(sys.prefix, "aarch64").exists()
    tools = ["x86_64", "aarch64"] if can_cross and IS_LONG else [MACHINE]
    command = [str(source_tree(tmp_path_factory.mktemp("source")) / "scripts" / "wheel"), *tools]
    built = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **fast})
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def wheel_for(dist, machine):
    wheels = list(dist.glob(f"*_{machine}.whl"))
    if not wheels:
        pytest.skip(f"no compiler for {machine}")
    return wheels[0]


def output_of(command, folder, **environment):
    """The output of a program that can find only the installed package."""
    kept = {key: value for key, value in os.environ.items() if key not in ("LIBPER_PATH", "PER_BRIDGE", "PYTHONPATH")}
    result = subprocess.run(
        list(map(str, command)), env={**kept, **environment}, cwd=folder, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def run_installed(command, **environment):
    """The output of PROGRAM, split into words."""
    return output_of([*command, "-c", PROGRAM], "/", **environment).split(maxsplit=3)


def build_wheel(source, folder, **environment):
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    command += ["--wheel-dir", str(folder), str(source)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


@pytest.mark.parametrize("machine", MACHINES)
def test_wheel_needs_no_more_than_glibc_2_34(dist, machine):
    wheel = wheel_for(dist, machine)
    assert wheel.name == f"libper-{per.__version__}-py3-none-manylinux_2_34_{machine}.whl"
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    verdict = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.search(rf'following\s+platform\s+tag:\s+"manylinux_2_34_{machine}"', verdict), verdict


def test_wheel_is_built_from_its_sources_and_needs_nothing_beside_it(dist, tmp_path):
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        xxhash = archive.extractfile(f"libper-{per.__version__}/libper/xxhash/xxhash.h").read().decode()
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel_for(dist, MACHINE)) as archive:
        archive.extractall(installed)
    _, library, bridge, _ = run_installed([sys.executable], PYTHONPATH=str(installed))
    library = pathlib.Path(library)
    assert library == installed / "per" / _library.FILE_NAME
    assert pathlib.Path(bridge).parent == installed / "per"
    dynamic = subprocess.run(["readelf", "-d", str(library)], capture_output=True, text=True, check=True).stdout
    assert "NODELETE" in dynamic  # the threads of its loaders run on after dlclose()
    assert (installed / "per" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert "Zstandard" in (installed / "per" / "LICENSE.zstd").read_text()
    licence = (installed / "per" / "LICENSE.xxhash").read_text()
    assert "BSD 2-Clause License" in licence and xxhash.startswith(licence)


@pytest.mark.parametrize("machine", MACHINES)
def test_wheel_holds_the_custom_calls_of_jax_with_the_licence_of_their_headers(dist, tmp_path, machine):
    with zipfile.ZipFile(wheel_for(dist, machine)) as archive:
        archive.extractall(tmp_path)
    header = subprocess.run(["readelf", "-h", str(tmp_path / "per" / "libper_xla.so")], capture_output=True, text=True)
    assert {"x86_64": "X86-64", "aarch64": "AArch64"}[machine] in header.stdout
    assert "Apache License" in (tmp_path / "per" / "LICENSE.xla").read_text()
    if machine == MACHINE and importlib.util.find_spec("jax"):
        program = "import per.jax; per.jax.make_flat_buffer(9, 1, 1).init(1.0); print(per.jax.__file__)"
        printed = output_of([sys.executable, "-c", program], tmp_path, PYTHONPATH=str(tmp_path))
        assert printed.strip() == str(tmp_path / "per" / "jax.py")


@pytest.mark.parametrize("command", ["bench", "referee", "demo"])
def test_wheel_carries_the_programs_of_its_command(dist, tmp_path, command):
    few = {
        "bench": ["--library", "libper", "numpy cumsum", "--capacity", "100", "--batch", "8", "--seconds", "0"],
        "demo": ["--short"],
        "referee": ["--library", "libper", "--check", "draws_follow_equation_1"],
    }
    if command == "demo":
        pytest.importorskip("matplotlib")
        pytest.importorskip("tqdm")
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel_for(dist, MACHINE)) as archive:
        archive.extractall(installed)
    printed = output_of([sys.executable, "-m", "per", command, *few[command]], tmp_path, PYTHONPATH=str(installed))
    shown = {"bench": "N = 100, B = 8", "demo": "DeepSea 10 x 10: prioritized", "referee": ": 1 hold"}
    assert shown[command] in printed


@pytest.mark.parametrize("version", interpreters())
def test_wheel_is_installed_into_an_empty_environment(dist, tmp_path, version):
    subprocess.run([interpreters()[version], "-m", "venv", tmp_path], check=True)
    python = tmp_path / "bin" / "python"
    install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", wheel_for(dist, MACHINE)]
    installed = subprocess.run(install, capture_output=True, text=True)
    assert installed.returncode == 0, installed.stderr
    _, library, bridge, _ = run_installed([python])
    assert pathlib.Path(library).is_relative_to(tmp_path)
    assert bridge.endswith(f".cpython-3{version[2:]}-{MACHINE}-linux-gnu.so")


@pytest.mark.long
def test_wheel_for_aarch64_draws_the_same_on_an_emulated_one(dist):
    wheel = wheel_for(dist, "aarch64")
    python = AARCH64_PYTHON / "usr" / "bin" / "python3.11"
    if not (python.exists() and shutil.which("qemu-aarch64")):
        pytest.skip("no emulator or no Python for aarch64: scripts/setup gets them")
    installed = wheel.parent / "aarch64"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    pip += ["--only-binary=:all:", "--platform", "manylinux_2_34_aarch64", "--target", str(installed), str(wheel)]
    subprocess.run(pip, check=True)
    here = run_installed([sys.executable])
    search = os.pathsep.join(map(str, (AARCH64_PYTHON / "site", installed)))
    there = run_installed(["qemu-aarch64", "-L", AARCH64_PYTHON, python], PYTHONPATH=search)
    assert there[0] == "aarch64"
    assert there[2] == str(installed / "per" / "_bridge.cpython-311-aarch64-linux-gnu.so")
    assert there[3] == here[3]


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


def test_wheel_without_a_compiler_says_so_in_one_line(tmp_path):
    tree = source_tree(tmp_path)
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "cmake").symlink_to(shutil.which("cmake"))
    built = build_wheel(tree / "bindings" / "python", tmp_path, PATH=str(programs), CXX="")
    assert built.returncode != 0
    assert "no C++ compiler (Debian: g++) is found as c++ or g++ or clang++" in built.stdout + built.stderr
    assert "Traceback" not in built.stdout + built.stderr

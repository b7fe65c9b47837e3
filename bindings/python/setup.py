"""Builds the package: the bridge for each interpreter found, XLA's custom calls of per.jax, and libper beside them.

libper is built from the sources of the tree that contains this file, or from their copy in an sdist; with zstd if its
static library is found. An sdist also contains the headers of xxHash and XLA. CMAKE_ARGS has further arguments for
cmake, such as -DPER_CUDA=OFF. An editable installation does not build libper, and loads it from build/ of the source
tree. If XLA's headers are not found, the package has no custom calls, and importing per.jax reports that.

_PYTHON_HOST_PLATFORM=linux-aarch64, with CC and CXX, builds a wheel for another processor. Its bridges are compiled
with the headers of this machine's interpreters, which describe the same types on every 64-bit Linux.
"""

import importlib.metadata
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sysconfig

import numpy
from pybind11.setup_helpers import Pybind11Extension
from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

HERE = pathlib.Path(__file__).resolve().parent
SOURCES = ("CMakeLists.txt", "LICENSE", "cmake", "include", "src")
# The files that `python -m per bench` and `python -m per demo` run, in the source tree or in the package's "programs".
# `python -m per referee` runs the Python modules of REFEREE, which read its JSON files.
PROGRAMS = (
    *(f"bench/{name}.py" for name in ("libper_buffers", "peer_buffers", "peers", "picture", "torchrl_extension")),
    "bench/transitions.py",
    *(f"examples/python/{name}.py" for name in ("blind_cliffwalk", "rare_reward")),
)
REFEREE = "bench/referee"


def library_source() -> pathlib.Path:
    """The folder of libper's sources: the repository, or its copy in an sdist."""
    places = (HERE / "libper", HERE.parent.parent)
    for place in places:
        if (place / "include" / "per.h").is_file():
            return place
    raise SystemExit(f"per.h is in none of: {', '.join(str(place / 'include') for place in places)}")


LIBPER = library_source()
CMAKE = (LIBPER / "CMakeLists.txt").read_text()
VERSION = re.search(r"VERSION (\d+\.\d+\.\d+)", CMAKE).group(1)
ABI_VERSION = re.search(r"PER_ABI_VERSION = (\d+)", (LIBPER / "include" / "per" / "base.h").read_text()).group(1)
LIBRARY = f"libper.so.{ABI_VERSION}"
HEADERS = sorted(map(str, (LIBPER / "include").rglob("*.h")))
XLA_LIBRARY = "libper_xla"
BUILD_MACHINE = os.uname().machine
MACHINE = sysconfig.get_platform().removeprefix("linux-")  # that of _PYTHON_HOST_PLATFORM, else this one


def xxhash_header() -> pathlib.Path:
    """The header of xxHash, which computes libper's checksums: from the sdist, or the system's."""
    places = (LIBPER / "xxhash", pathlib.Path("/usr/local/include"), pathlib.Path("/usr/include"))
    for place in places:
        if (place / "xxhash.h").is_file():
            return place / "xxhash.h"
    raise SystemExit(f"xxhash.h (Debian: libxxhash-dev) is in none of: {', '.join(map(str, places))}")


def xla_headers() -> tuple[pathlib.Path, pathlib.Path] | None:
    """The folder of XLA's headers, and their licence, from the sdist or the installed jaxlib; None without either."""
    carried = LIBPER / "jaxlib"
    if carried.is_dir():
        return carried / "include", carried / "LICENSE.txt"
    try:
        files = importlib.metadata.files("jaxlib") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = {file.name: pathlib.Path(file.locate()) for file in files if file.name in ("ffi.h", "LICENSE.txt")}
    return (found["ffi.h"].parents[3], found["LICENSE.txt"]) if len(found) == 2 else None


def opening_comment(source: pathlib.Path) -> str:
    """The first comment of a C file, which has its licence."""
    return source.read_text().partition("*/")[0] + "*/\n"


def copy_programs(folder: pathlib.Path) -> None:
    found = [path for pattern in ("*.py", "*.json") for path in (LIBPER / REFEREE).rglob(pattern)]
    for name in (*PROGRAMS, *(str(path.relative_to(LIBPER)) for path in found)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(LIBPER / name, folder / name)


def tool(name: str) -> str | None:
    """A program on PATH, or of this interpreter's environment."""
    return shutil.which(name) or shutil.which(name, path=sysconfig.get_path("scripts"))


def other_interpreters() -> dict[str, str]:
    """Include folders of the other Python 3 interpreters on PATH that have headers, by the suffix of their modules."""
    program = (
        "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'), sysconfig.get_path('include'), sep='\\n')"
    )
    found = {}
    for minor in range(10, 30):
        interpreter = shutil.which(f"python3.{minor}")
        answer = interpreter and subprocess.run([interpreter, "-c", program], capture_output=True, text=True)
        if answer and answer.returncode == 0:
            suffix, include = answer.stdout.splitlines()
            if pathlib.Path(include, "Python.h").is_file():
                found[suffix] = include
    found.pop(sysconfig.get_config_var("EXT_SUFFIX"), None)
    return {suffix.replace(BUILD_MACHINE, MACHINE): include for suffix, include in found.items()}


class BuildBridge(build_ext):
    """Builds the bridge and libper, and for a wheel also the bridges of other interpreters."""

    def run(self) -> None:
        with_library = not (self.inplace or self.editable_mode)
        self.cmake = tool("cmake") if with_library else None
        if with_library and self.cmake is None:
            raise SystemExit(
                "cmake is not found, which libper is built with: it is a build requirement of this package. "
                "Install it (pip install cmake ninja), or let pip do so by leaving --no-build-isolation out"
            )
        compilers = [shlex.split(os.environ["CXX"])[0]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
        if not any(map(shutil.which, compilers)):
            raise SystemExit(f"no C++ compiler (Debian: g++) is found as {' or '.join(compilers)}; CXX may name one")
        xxhash = xxhash_header() if with_library else None
        include = sysconfig.get_path("include")
        if not pathlib.Path(include, "Python.h").is_file():
            raise SystemExit(f"Python.h (Debian: python3-dev) is not in {include}")
        super().run()
        if not with_library:
            return
        package = pathlib.Path(self.build_lib, "per")
        for suffix, include in other_interpreters().items():
            self.build_for(include, package / f"_bridge{suffix}")
        shutil.copyfile(LIBPER / "LICENSE", package / "LICENSE")
        copy_programs(package / "programs")
        (package / "LICENSE.xxhash").write_text(opening_comment(xxhash))
        shutil.copyfile(LIBPER / "cmake" / "LICENSE.zstd", package / "LICENSE.zstd")
        if XLA is not None:
            shutil.copyfile(XLA[1], package / "LICENSE.xla")
        shutil.copyfile(self.libper(), package / LIBRARY)

    def get_ext_filename(self, fullname: str) -> str:
        if fullname.endswith(XLA_LIBRARY):
            return os.path.join(*fullname.split(".")) + ".so"
        return super().get_ext_filename(fullname).replace(BUILD_MACHINE, MACHINE)

    def build_for(self, include: str, target: pathlib.Path) -> None:
        bridge = self.extensions[0]
        own_include = sysconfig.get_path("include")
        folders = [include, *(folder for folder in self.include_dirs + bridge.include_dirs if folder != own_include)]
        objects = self.compiler.compile(
            bridge.sources,
            output_dir=os.path.join(self.build_temp, target.name),
            include_dirs=folders,
            extra_postargs=bridge.extra_compile_args,
        )
        self.compiler.link_shared_object(objects, str(target), extra_postargs=bridge.extra_link_args, target_lang="c++")

    def libper(self) -> pathlib.Path:
        folder = pathlib.Path(self.build_temp, "libper").absolute()
        shutil.rmtree(folder, ignore_errors=True)  # an earlier build may have had other arguments
        options = [
            "-DPER_BUILD_TESTS=OFF",
            "-DPER_BUILD_BENCH=OFF",
            "-DPER_WERROR=OFF",
            "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
            "-DCMAKE_SHARED_LINKER_FLAGS=-s",
            *shlex.split(os.environ.get("CMAKE_ARGS", "")),
        ]
        if MACHINE != BUILD_MACHINE:
            options += ["-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={MACHINE}"]
        if ninja := tool("ninja"):
            options += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
        for command in (
            [self.cmake, "-S", str(LIBPER), "-B", str(folder), *options],
            [self.cmake, "--build", str(folder), "--parallel", str(os.cpu_count() or 1)],
        ):
            if subprocess.run(command).returncode != 0:
                raise SystemExit(f"libper cannot be built; what cmake says of it is above: {shlex.join(command)}")
        return folder / LIBRARY


class SourceDistribution(sdist):
    """Adds libper's sources, from which the wheel is then built, and headers of other projects with their licences."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        target = pathlib.Path(base_dir, "libper")
        for name in SOURCES:
            source = LIBPER / name
            copy = shutil.copytree if source.is_dir() else shutil.copy2
            target.mkdir(exist_ok=True)
            copy(source, target / name)
        copy_programs(target)
        (target / "xxhash").mkdir()
        shutil.copy2(xxhash_header(), target / "xxhash")
        if XLA is not None:
            shutil.copytree(XLA[0], target / "jaxlib" / "include")
            shutil.copy2(XLA[1], target / "jaxlib" / "LICENSE.txt")


class Wheel(bdist_wheel):
    """py3-none: the package works with every Python 3, and faster with those that it has a bridge for."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


bridge = Pybind11Extension(
    "per._bridge",
    sorted(str(path.relative_to(HERE)) for path in HERE.glob("bridge/*.cpp")),
    depends=[*map(str, HERE.glob("bridge/*.h")), *HEADERS],
    include_dirs=[os.path.relpath(LIBPER / "include", HERE), numpy.get_include()],
    extra_compile_args=["-ffp-contract=off"],
    extra_link_args=["-Wl,--wrap=__gxx_personality_v0"],  # see bridge/parked_threads.cpp
    cxx_std=20,
)
extensions = [bridge]
XLA = xla_headers()
if XLA is not None:
    # A plain shared library, which per.jax loads, whatever the interpreter.
    xla_library = Extension(
        f"per.{XLA_LIBRARY}",
        ["xla/handlers.cpp"],
        depends=[*HEADERS],
        include_dirs=[os.path.relpath(LIBPER / "include", HERE)],
        extra_compile_args=["-std=c++20", "-fvisibility=hidden", "-g0", "-isystem", str(XLA[0])],
        language="c++",
    )
    extensions.append(xla_library)

setup(
    version=VERSION,
    ext_modules=extensions,
    cmdclass={"build_ext": BuildBridge, "sdist": SourceDistribution, "bdist_wheel": Wheel},
)

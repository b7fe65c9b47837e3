"""The recipes in packaging/ have the project's versions and requirements, and configure the contents of an sdist.

Stand-ins replace the functions of conda, BinaryBuilder and vcpkg.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import tomllib
import yaml

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"
VERSION = re.search(r"VERSION (\d+\.\d+\.\d+)", (ROOT / "CMakeLists.txt").read_text())[1]

# Stand-ins for vcpkg's functions. They configure but do not build.
VCPKG = """
set(VERSION {version})
set(PORT libper)
set(CURRENT_PACKAGES_DIR {work}/packages)
function(vcpkg_check_linkage linkage)
    message("linkage ${{linkage}}")
endfunction()
function(vcpkg_download_distfile out)
    message("download ${{ARGV}}")
    set(${{out}} {sdist} PARENT_SCOPE)
endfunction()
function(vcpkg_extract_source_archive out key archive)
    file(ARCHIVE_EXTRACT INPUT ${{archive}} DESTINATION {work})
    set(${{out}} {work}/libper-{version} PARENT_SCOPE)
endfunction()
function(vcpkg_cmake_configure)
    cmake_parse_arguments(arg "" SOURCE_PATH OPTIONS ${{ARGN}})
    execute_process(COMMAND ${{CMAKE_COMMAND}} -S ${{arg_SOURCE_PATH}} -B {work}/build ${{arg_OPTIONS}}
                    COMMAND_ERROR_IS_FATAL ANY)
endfunction()
function(vcpkg_cmake_install)
endfunction()
function(vcpkg_cmake_config_fixup)
    message("fixup ${{ARGV}}")
endfunction()
function(vcpkg_fixup_pkgconfig)
endfunction()
function(vcpkg_install_copyright key)
    file(INSTALL ${{ARGN}} DESTINATION ${{CURRENT_PACKAGES_DIR}}/share/libper)
endfunction()
include({portfile})
"""

# Stand-ins for the commands of BinaryBuilder.
BINARY_BUILDER = """
set -e
cmake() { case $1 in --build | --install) ;; *) command cmake "$@" ;; esac; }
install_license() { cp "$@" "$WORKSPACE"; }
"""
JULIA = """
module BinaryBuilder
export ArchiveSource, Platform, LibraryProduct, Dependency, build_tarballs
struct Dependency end
ArchiveSource(url, sha256) = url
Platform(machine, system; libc) = "$machine-$system-$libc"
LibraryProduct(name, symbol) = name
function build_tarballs(arguments, name, version, sources, script, platforms, products, dependencies; settings...)
    foreach(println, (name, version, only(sources), join(platforms, ' '), only(products)))
    println(script)
end
end
using .BinaryBuilder
only(list) = first(list)
for expression in Meta.parse("begin\\n" * read(ARGS[1], String) * "\\nend").args
    Meta.isexpr(expression, :using) || Base.eval(Main, expression)
end
"""


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", str(folder)]
    subprocess.run(command, cwd=ROOT / "bindings" / "python", check=True)
    (path,) = folder.glob("*.tar.gz")
    return path


def run(command: list[str], **environment: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_conda_recipe_asks_for_what_the_package_asks_for(sdist: Path) -> None:
    recipe = yaml.safe_load((PACKAGING / "conda" / "recipe.yaml").read_text())
    project = tomllib.loads((ROOT / "bindings" / "python" / "pyproject.toml").read_text())
    assert recipe["context"]["version"] == VERSION
    needed = {word.replace(" ", "") for word in recipe["requirements"]["run"]}
    assert needed == {*project["project"]["dependencies"], "python" + project["project"]["requires-python"]}
    built_with = {word.replace(" ", "") for key in ("build", "host") for word in recipe["requirements"][key]}
    assert set(project["build-system"]["requires"]) <= built_with
    with tarfile.open(sdist) as archive:
        held = archive.getnames()
    assert all(f"libper-{VERSION}/{name}" in held for name in recipe["about"]["license_file"])


def test_vcpkg_port_configures_what_the_sdist_holds(sdist: Path, tmp_path: Path) -> None:
    manifest = json.loads((PACKAGING / "vcpkg" / "vcpkg.json").read_text())
    assert manifest["version"] == VERSION
    program = tmp_path / "vcpkg.cmake"
    portfile = PACKAGING / "vcpkg" / "portfile.cmake"
    program.write_text(VCPKG.format(version=VERSION, work=tmp_path, sdist=sdist, portfile=portfile))
    said = run(["cmake", "-P", str(program)])
    assert f"/libper-{VERSION}.tar.gz" in said and "linkage ONLY_DYNAMIC_LIBRARY" in said
    assert (tmp_path / "build" / "per.pc").exists()
    assert {path.name for path in (tmp_path / "packages/share/libper").iterdir()} == {"LICENSE", "usage", "xxhash.h"}


@pytest.mark.skipif(shutil.which("julia") is None, reason="Julia is not installed")
def test_jll_recipe_configures_what_the_sdist_holds(sdist: Path, tmp_path: Path) -> None:
    recipe = PACKAGING / "julia" / "build_tarballs.jl"
    said = run(["julia", "--startup-file=no", "-e", JULIA, str(recipe)])
    name, version, source, platforms, product, script = said.split("\n", 5)
    assert (name, version, product) == ("PER", VERSION, "libper")
    assert source.endswith(f"/libper-{VERSION}.tar.gz")
    assert platforms == "x86_64-linux-glibc aarch64-linux-glibc"

    (tmp_path / "srcdir").mkdir()
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "srcdir")
    (tmp_path / "toolchain.cmake").touch()
    prefix, toolchain = str(tmp_path / "prefix"), str(tmp_path / "toolchain.cmake")
    environment = {"WORKSPACE": str(tmp_path), "prefix": prefix, "CMAKE_TARGET_TOOLCHAIN": toolchain, "nproc": "2"}
    run(["bash", "-c", BINARY_BUILDER + script], **environment)
    cache = (tmp_path / "srcdir" / f"libper-{VERSION}" / "libper" / "build" / "CMakeCache.txt").read_text()
    assert f"CMAKE_INSTALL_PREFIX:PATH={prefix}" in cache
    assert {"LICENSE", "xxhash.h"} <= {path.name for path in tmp_path.iterdir()}

# BinaryBuilder recipe of PER_jll. The source is the sdist of scripts/wheel, with its sha256.
using BinaryBuilder

name = "PER"
version = v"0.1.0"

sources = [
    ArchiveSource("https://pypi.org/packages/source/l/libper/libper-$version.tar.gz",
                  "0000000000000000000000000000000000000000000000000000000000000000"),
]

script = raw"""
cd ${WORKSPACE}/srcdir/libper-*/libper
cmake -S . -B build -G Ninja \
    -DCMAKE_INSTALL_PREFIX=${prefix} -DCMAKE_TOOLCHAIN_FILE=${CMAKE_TARGET_TOOLCHAIN} \
    -DCMAKE_BUILD_TYPE=RelWithDebInfo -DPER_CUDA=OFF -DPER_ZSTD=OFF \
    -DPER_BUILD_TESTS=OFF -DPER_BUILD_BENCH=OFF -DPER_WERROR=OFF
cmake --build build --parallel ${nproc}
cmake --install build
install_license LICENSE xxhash/xxhash.h
"""

platforms = [
    Platform("x86_64", "linux"; libc = "glibc"),
    Platform("aarch64", "linux"; libc = "glibc"),
]

products = [LibraryProduct("libper", :libper)]

build_tarballs(ARGS, name, version, sources, script, platforms, products, Dependency[];
               julia_compat = "1.6", preferred_gcc_version = v"11")

# vcpkg port. The source is the sdist of scripts/wheel, with its sha512. The library is shared only, since its threads
# and fork handlers must stay in memory.
vcpkg_check_linkage(ONLY_DYNAMIC_LIBRARY)

vcpkg_download_distfile(archive
    URLS "https://pypi.org/packages/source/l/libper/libper-${VERSION}.tar.gz"
    FILENAME "libper-${VERSION}.tar.gz"
    SHA512 0
)
vcpkg_extract_source_archive(sdist ARCHIVE "${archive}")

vcpkg_cmake_configure(
    SOURCE_PATH "${sdist}/libper"
    OPTIONS
        -DPER_CUDA=OFF
        -DPER_ZSTD=OFF
        -DPER_BUILD_TESTS=OFF
        -DPER_BUILD_BENCH=OFF
        -DPER_WERROR=OFF
)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME per CONFIG_PATH lib/cmake/per)
vcpkg_fixup_pkgconfig()

file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include")
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${sdist}/libper/LICENSE" "${sdist}/libper/xxhash/xxhash.h")

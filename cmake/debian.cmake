# cpack builds libper1, the library, and libper-dev, the development files. Configure with -DCMAKE_INSTALL_PREFIX=/usr
# for Debian's folders.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "The libper authors")
set(CPACK_PACKAGE_VENDOR "The libper authors")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL runtime development)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS ON)
set(CPACK_COMPONENT_DEVELOPMENT_DEPENDS runtime)

set(per_deb_library libper${PER_ABI_VERSION})
set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME ${per_deb_library})
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY >=)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/triggers)
file(WRITE ${PROJECT_BINARY_DIR}/triggers "activate-noawait ldconfig\n")
set(CPACK_COMPONENT_RUNTIME_DESCRIPTION
    "Buffers of transitions for reinforcement learning, drawn in proportion to
 their priorities (Schaul et al. 2016) with exact sums. The shared library.")

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libper-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION
    "The headers per.h and per.hpp, the CMake package per and per.pc for
 pkg-config, to build programs that use libper.")

# Debian stores a package's licence in its own folder. Other installations do not.
foreach(component IN ITEMS RUNTIME DEVELOPMENT)
    string(TOLOWER ${component} per_component)
    install(FILES ${PROJECT_SOURCE_DIR}/LICENSE RENAME copyright COMPONENT ${per_component} EXCLUDE_FROM_ALL
            DESTINATION share/doc/${CPACK_DEBIAN_${component}_PACKAGE_NAME})
endforeach()
include(CPack)

# Builds consumer.c and consumer.cpp as a user would and runs both; they must print the same: cmake -D MODE=... -P
# consume.cmake
#
#   MODE        install, find_package, add_subdirectory, pkg_config, static or debian
#   SOURCE_DIR  of libper     BUILD_DIR  of libper     WORK_DIR  to build in
#   C_COMPILER, CXX_COMPILER
set(prefix ${WORK_DIR}/prefix)
set(build ${WORK_DIR}/${MODE})

function(run)
    execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

function(run_consumer program)
    foreach(name ${program} ${program}_cpp)
        execute_process(COMMAND ${CMAKE_COMMAND} -E env ${ARGN} ${name}
                        OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
        get_filename_component(name ${name} NAME)
        file(WRITE ${WORK_DIR}/${MODE}_${name}.txt "${output}")
    endforeach()
    run(${CMAKE_COMMAND} -E compare_files ${WORK_DIR}/${MODE}_consumer.txt ${WORK_DIR}/${MODE}_consumer_cpp.txt)
endfunction()

function(build_consumer)
    file(REMOVE_RECURSE ${build})
    run(${CMAKE_COMMAND} -S ${SOURCE_DIR}/tests/consumer -B ${build} -G Ninja -D CMAKE_BUILD_TYPE=Release
        -D CMAKE_C_COMPILER=${C_COMPILER} -D CMAKE_CXX_COMPILER=${CXX_COMPILER} ${ARGV})
    run(${CMAKE_COMMAND} --build ${build})
endfunction()

# With the flags that pkg-config gives for an installation at a prefix.
function(build_and_run_by_pkg_config prefix)
    file(GLOB_RECURSE pc ${prefix}/per.pc)
    get_filename_component(pc_dir ${pc} DIRECTORY)
    set(ENV{PKG_CONFIG_PATH} ${pc_dir})
    execute_process(COMMAND pkg-config --cflags --libs per OUTPUT_VARIABLE flags
                    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    execute_process(COMMAND pkg-config --variable=libdir per OUTPUT_VARIABLE libdir
                    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    separate_arguments(flags)
    file(MAKE_DIRECTORY ${build})
    run(${C_COMPILER} -std=c99 ${SOURCE_DIR}/tests/consumer/consumer.c ${flags} -o ${build}/consumer)
    run(${CXX_COMPILER} -std=c++17 ${SOURCE_DIR}/tests/consumer/consumer.cpp ${flags} -o ${build}/consumer_cpp)
    run_consumer(${build}/consumer LD_LIBRARY_PATH=${libdir})
endfunction()

if(MODE STREQUAL "install")
    file(REMOVE_RECURSE ${prefix})
    run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${prefix})

elseif(MODE STREQUAL "find_package")
    build_consumer(-D CMAKE_PREFIX_PATH=${prefix})
    run_consumer(${build}/consumer)

elseif(MODE STREQUAL "pkg_config")
    build_and_run_by_pkg_config(${prefix})

elseif(MODE STREQUAL "static")
    # The portable library, to be checked by needs_posix_only.py. The build is kept for the next run.
    set(library ${WORK_DIR}/static-library)
    set(prefix ${WORK_DIR}/static-prefix)
    file(REMOVE_RECURSE ${prefix})
    run(${CMAKE_COMMAND} -S ${SOURCE_DIR} -B ${library} -G Ninja -D CMAKE_BUILD_TYPE=Debug
        -D CMAKE_C_COMPILER=${C_COMPILER} -D CMAKE_CXX_COMPILER=${CXX_COMPILER} -D CMAKE_EXPORT_COMPILE_COMMANDS=ON
        -D BUILD_SHARED_LIBS=OFF -D PER_PORTABLE=ON -D PER_CUDA=OFF -D PER_BUILD_TESTS=OFF -D PER_BUILD_BENCH=OFF)
    run(${CMAKE_COMMAND} --build ${library})
    run(${CMAKE_COMMAND} --install ${library} --prefix ${prefix})
    build_consumer(-D CMAKE_PREFIX_PATH=${prefix})
    run_consumer(${build}/consumer)
    run(${CMAKE_COMMAND} -E compare_files ${WORK_DIR}/find_package_consumer.txt ${WORK_DIR}/static_consumer.txt)
    build_and_run_by_pkg_config(${prefix})
    run(${CMAKE_COMMAND} -E compare_files ${WORK_DIR}/find_package_consumer.txt ${WORK_DIR}/static_consumer.txt)

elseif(MODE STREQUAL "debian")
    # Unpacks both packages into a folder that holds nothing else, and builds the consumer with it.
    file(REMOVE_RECURSE ${WORK_DIR}/debian-packages ${WORK_DIR}/debian-root)
    run(${CPACK} --config ${BUILD_DIR}/CPackConfig.cmake -B ${WORK_DIR}/debian-packages)
    foreach(package IN ITEMS libper1 libper-dev)
        file(GLOB deb ${WORK_DIR}/debian-packages/${package}_*.deb)
        run(dpkg-deb -x ${deb} ${WORK_DIR}/debian-root)
        execute_process(COMMAND dpkg-deb -f ${deb} Depends OUTPUT_VARIABLE depends_${package}
                        OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
        if(NOT EXISTS ${WORK_DIR}/debian-root/usr/share/doc/${package}/copyright)
            message(FATAL_ERROR "${package} has no copyright")
        endif()
    endforeach()
    if(NOT depends_libper1 MATCHES "^libc6 \\(>= [0-9.]+\\)$"
       OR NOT depends_libper-dev MATCHES "^libper1 \\(= [0-9.]+\\)$")
        message(FATAL_ERROR "libper1 depends on ${depends_libper1}, libper-dev on ${depends_libper-dev}")
    endif()
    build_consumer(-D CMAKE_PREFIX_PATH=${WORK_DIR}/debian-root/usr)
    run_consumer(${build}/consumer)

elseif(MODE STREQUAL "add_subdirectory")
    file(STRINGS /proc/cpuinfo fma REGEX "^flags.* fma .*avx2" LIMIT_COUNT 1)
    if(fma)
        set(fma -D CONSUMER_FMA=ON)
    endif()
    # Without CUDA, even if the machine has it.
    build_consumer(-D PER_SOURCE_DIR=${SOURCE_DIR} -D PER_CUDA=OFF ${fma})
    run_consumer(${build}/consumer)
    # Results are bit-identical even under flags that let the compiler change them. Rounding to float32 hides a
    # contraction in most results, so the code is searched for them.
    execute_process(COMMAND objdump -d --no-show-raw-insn ${build}/per/libper.so
                    OUTPUT_VARIABLE code COMMAND_ERROR_IS_FATAL ANY)
    string(REGEX MATCH "vfn?m(add|sub)[^\n]*" contraction "${code}")
    if(contraction)
        message(FATAL_ERROR "libper.so contracts a product and a sum: ${contraction}")
    endif()
    run(${CMAKE_COMMAND} -E compare_files ${WORK_DIR}/find_package_consumer.txt
        ${WORK_DIR}/add_subdirectory_consumer.txt)

else()
    message(FATAL_ERROR "MODE is '${MODE}'")
endif()

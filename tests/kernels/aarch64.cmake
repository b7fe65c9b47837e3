# Builds the library for aarch64 and runs C tests on it, in emulation.
#   cmake -D SOURCE_DIR=.. -D WORK_DIR=.. -D C_COMPILER=.. -D CXX_COMPILER=.. -D EMULATOR=.. -P aarch64.cmake
foreach(argument SOURCE_DIR WORK_DIR C_COMPILER CXX_COMPILER EMULATOR)
    if(NOT DEFINED ${argument})
        message(FATAL_ERROR "${argument} is not defined")
    endif()
endforeach()

function(run)
    execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
    if(NOT result EQUAL 0)
        string(REPLACE ";" " " command "${ARGN}")
        message(FATAL_ERROR "${command}: ${result}\n${output}")
    endif()
endfunction()

run(${CMAKE_COMMAND} -S ${SOURCE_DIR} -B ${WORK_DIR} -G Ninja
    -D CMAKE_SYSTEM_NAME=Linux -D CMAKE_SYSTEM_PROCESSOR=aarch64
    -D CMAKE_C_COMPILER=${C_COMPILER} -D CMAKE_CXX_COMPILER=${CXX_COMPILER}
    -D CMAKE_BUILD_TYPE=Release -D CMAKE_CXX_FLAGS_RELEASE=-O1
    -D PER_BUILD_TESTS=OFF -D PER_BUILD_BENCH=OFF -D PER_INSTALL=OFF)
run(${CMAKE_COMMAND} --build ${WORK_DIR})

# The tests that compare results with those of other machines, and those of the buffer that take seconds in emulation.
set(tests tree_golden_draws tree_first_and_last_unit_of_every_leaf tree_extreme_priorities tree_weights
          tree_flush_to_zero_host tree_bad_arguments_change_nothing tree_duplicates_last_wins
          replay_golden_epochs replay_golden_hindsight replay_ends_of_episodes replay_cuts replay_autoreset
          replay_frame_stack replay_sequences replay_weights replay_td_errors replay_hindsight replay_advantages
          replay_get_and_set replay_late_updates_touch_nothing replay_bad_arguments_change_nothing replay_threads
          loader_draws_are_those_without_it)
set(golden "")
foreach(name draws epochs hindsight)
    string(TOUPPER ${name} macro)
    list(APPEND golden "-DPER_GOLDEN_${macro}=\"${SOURCE_DIR}/tests/golden/${name}.csv\"")
endforeach()
foreach(test IN LISTS tests)
    run(${C_COMPILER} -std=c99 -O1 -I${SOURCE_DIR}/include
        ${golden} ${SOURCE_DIR}/tests/c/${test}.c -o ${WORK_DIR}/${test} -L${WORK_DIR} -lper -lm -pthread)
    run(${EMULATOR} -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH=${WORK_DIR} ${WORK_DIR}/${test})
    message(STATUS "${test} passed")
endforeach()

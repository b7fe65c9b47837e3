# Writes commit.h, which names the commit being built. Runs at every build, and writes the file only if it changed.
#   cmake -DSOURCE_DIR=... -DHEADER=... -P commit.cmake
execute_process(COMMAND git describe --always --dirty --abbrev=12 --exclude=*
                WORKING_DIRECTORY ${SOURCE_DIR}
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
                RESULT_VARIABLE failed)
if(failed)
    set(commit "unknown")
endif()
file(CONFIGURE OUTPUT ${HEADER} CONTENT "#define PER_BENCH_COMMIT \"${commit}\"\n" @ONLY)

// Checks for programs that run on a real device. They exit with 1 if a condition is false.
#pragma once

#include <per.h>

#include <cstdio>
#include <cstdlib>

#define REQUIRE(condition)                                                                                  \
    do {                                                                                                    \
        if (!(condition)) {                                                                                 \
            std::fprintf(stderr, "%s:%d: not so: %s; last error: \"%s\"\n", __FILE__, __LINE__, #condition, \
                         per_last_error());                                                                 \
            std::exit(1);                                                                                   \
        }                                                                                                   \
    } while (0)

// Exits with 77 if a handle could not be created for lack of a device.
inline void require_created(per_status status) {
    if (status == PER_ERROR_NO_DEVICE) {
        std::printf("skipped: %s\n", per_last_error());
        std::exit(77);
    }
    REQUIRE(status == PER_OK);
}

inline per_array array_of(const void* data, int32_t dtype) {
    per_array array = {};
    array.data = data;
    array.dtype = dtype;
    return array;
}

// What programs that run on a real device check with: they exit with 1 where something is not so.
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

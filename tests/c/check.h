/* Checks for the C tests. The first failure prints its place and ends the program with status 1. */
#ifndef CHECK_H
#define CHECK_H

#include <per.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                               \
    do {                                                                                               \
        if (!(condition)) {                                                                            \
            fprintf(stderr, "%s:%d: not so: %s; last error: \"%s\"\n", __FILE__, __LINE__, #condition, \
                    per_last_error());                                                                 \
            exit(1);                                                                                   \
        }                                                                                              \
    } while (0)

#define CHECK_OK(call) CHECK((call) == PER_OK)

/* The call fails with this status, and its message contains `text`. */
#define CHECK_FAILS(call, status, text)                  \
    do {                                                 \
        CHECK((call) == (status));                       \
        CHECK(strstr(per_last_error(), (text)) != NULL); \
    } while (0)

#define CHECK_REFUSED(call, text) CHECK_FAILS(call, PER_ERROR_INVALID_ARGUMENT, text)

/* A pointer one byte into an array of larger elements, and a call given it as the argument `name`. */
#define MISALIGNED(array) ((void*)((char*)(array) + 1))
#define CHECK_MISALIGNED(call, name)                                           \
    do {                                                                       \
        CHECK_REFUSED(call, name " is 0x");                                    \
        CHECK(strstr(per_last_error(), ", the size of its elements") != NULL); \
    } while (0)

/* Set in builds with a sanitizer, which reserves huge address ranges. clang reports it by __has_feature. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define SANITIZED 1
#endif
#endif

/* default_batch() and the like return a struct as its _init function leaves it, which must set every byte. */
#define DEFINE_DEFAULT(name)                                 \
    static inline per_##name default_##name(void) {          \
        per_##name filled;                                   \
        memset(&filled, 0xAA, sizeof filled);                \
        CHECK_OK(per_##name##_init(&filled, sizeof filled)); \
        return filled;                                       \
    }
DEFINE_DEFAULT(tree_options)
DEFINE_DEFAULT(replay_options)
DEFINE_DEFAULT(steps)
DEFINE_DEFAULT(sample_options)
DEFINE_DEFAULT(hindsight_options)
DEFINE_DEFAULT(batch)
DEFINE_DEFAULT(save_options)
DEFINE_DEFAULT(load_options)
DEFINE_DEFAULT(loader_options)
DEFINE_DEFAULT(channel_options)
DEFINE_DEFAULT(shared_loader_options)
#undef DEFINE_DEFAULT

/* A generator of test values that shares nothing with the library: splitmix64 (Steele et al. 2014). */
static inline uint64_t next_random(uint64_t* state) {
    uint64_t z = (*state += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

#endif

/*
 * The device under test: the CPU, or CUDA if PER_TEST_DEVICE is "cuda". On CUDA, tests pass host arrays as device
 * arrays, which they are on the simulated GPU.
 */
#ifndef DEVICE_CHECK_H
#define DEVICE_CHECK_H

#include "check.h"

static inline int on_cuda(void) {
    const char* device = getenv("PER_TEST_DEVICE");
    return device != NULL && strcmp(device, "cuda") == 0;
}

static inline int32_t test_device(void) {
    return on_cuda() ? PER_CUDA : PER_CPU;
}

static inline per_tree* create_tree(int64_t capacity, uint64_t seed) {
    per_tree_options options = default_tree_options();
    per_tree* tree = NULL;
    options.capacity = capacity;
    options.seed = seed;
    options.device = test_device();
    CHECK_OK(per_tree_create(&options, &tree));
    CHECK(tree != NULL);
    return tree;
}

static inline per_tree_description description_of(per_tree* tree) {
    per_tree_description description;
    CHECK_OK(per_tree_describe(tree, &description, sizeof description));
    return description;
}

static inline double total_of(per_tree* tree) {
    return description_of(tree).total;
}

static inline uint64_t total_mass_of(per_tree* tree) {
    return description_of(tree).total_mass;
}

static inline int32_t scale_of(per_tree* tree) {
    return description_of(tree).scale;
}

/* An invalid stream. The CPU refuses any stream; CUDA uses it as given. */
#define CHECK_NO_STREAM(call)                                                        \
    do {                                                                             \
        if (!on_cuda()) CHECK_FAILS(call, PER_ERROR_INVALID_ARGUMENT, "stream is "); \
    } while (0)

/* Returns n, or less on a simulated GPU, which is slower, and slower still under a sanitizer. */
static inline int rounds(int n) {
#ifdef SANITIZED
    const int shorter = 60;
#else
    const int shorter = 10;
#endif
    return on_cuda() ? (n + shorter - 1) / shorter : n;
}

#endif

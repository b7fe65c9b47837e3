/*
 * Trees for tests. On CUDA each call is followed by per_tree_synchronize(), so that outputs and errors are available
 * when it returns, as on the CPU.
 */
#ifndef TREE_CHECK_H
#define TREE_CHECK_H

#include <math.h>

#include "device_check.h"

static inline per_status synchronized(per_tree* tree, per_status status) {
    return status == PER_OK && on_cuda() ? per_tree_synchronize(tree, NULL) : status;
}

/* The CPU names a bad entry. CUDA skips it, and counts it. */
#define CHECK_BAD_ENTRY(call, text) CHECK_FAILS(call, PER_ERROR_INVALID_ARGUMENT, on_cuda() ? "1 entries" : (text))

/* The output for a bad entry; it was -7 before. */
static inline int64_t after_bad_entry(void) {
    return on_cuda() ? -1 : -7;
}

#define per_update(tree, ...) synchronized(tree, per_update(tree, __VA_ARGS__))
#define per_sample(tree, ...) synchronized(tree, per_sample(tree, __VA_ARGS__))
#define per_tree_find(tree, ...) synchronized(tree, per_tree_find(tree, __VA_ARGS__))
#define per_tree_find_mass(tree, ...) synchronized(tree, per_tree_find_mass(tree, __VA_ARGS__))
#define per_tree_get_priorities(tree, ...) synchronized(tree, per_tree_get_priorities(tree, __VA_ARGS__))
#define per_tree_reset(tree, ...) synchronized(tree, per_tree_reset(tree, __VA_ARGS__))

static inline void update_one(per_tree* tree, int64_t index, float priority) {
    CHECK_OK(per_update(tree, 1, &index, &priority, NULL));
}

static inline void update_all(per_tree* tree, int64_t capacity, const float* priorities) {
    int64_t* indices = malloc((size_t)capacity * sizeof *indices);
    CHECK(indices != NULL);
    for (int64_t i = 0; i < capacity; ++i) indices[i] = i;
    CHECK_OK(per_update(tree, capacity, indices, priorities, NULL));
    free(indices);
}

static inline int64_t find_mass(per_tree* tree, uint64_t unit) {
    int64_t index = -1;
    CHECK_OK(per_tree_find_mass(tree, 1, &unit, &index, NULL));
    return index;
}

/* A random number in [0, 1). */
static inline double next_uniform(uint64_t* state) {
    return (double)(next_random(state) >> 11) * 0x1p-53;
}

/* The chi-square value exceeded with probability 1e-4, by the cube-root approximation (Wilson, Hilferty 1931). */
static inline double critical_value(int degrees) {
    double a = 2.0 / (9.0 * degrees), z = 3.719;
    return degrees * pow(1 - a + z * sqrt(a), 3);
}

#endif

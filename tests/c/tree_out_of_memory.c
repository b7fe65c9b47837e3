/*
 * Out of memory is a status: no handle is created, and a handle whose call failed is unchanged. The memory is that of
 * the process, or of the device: no device has room for 2^40 leaves, and calls on a tree there never allocate.
 */
#define _POSIX_C_SOURCE 200809L
#include <sys/resource.h>

#include "tree_check.h"

enum { N = 1000, BATCH = 1 << 24 };

static void check_too_large(int64_t capacity) {
    per_tree_options options;
    per_tree* large = (per_tree*)&options;
    options = default_tree_options();
    options.capacity = capacity;
    options.device = test_device();
    CHECK_FAILS(per_tree_create(&options, &large), PER_ERROR_OUT_OF_MEMORY, on_cuda() ? "Memory" : "memory");
    CHECK(large == NULL);
}

static void within_a_limit(per_tree* tree) {
#ifndef SANITIZED /* a sanitizer cannot run under a memory limit */
    static int64_t indices[BATCH];
    struct rlimit limit = {64 << 20, RLIM_INFINITY}, before;
    CHECK(getrlimit(RLIMIT_AS, &before) == 0);
    limit.rlim_cur = sizeof indices + (64 << 20);
    limit.rlim_max = before.rlim_max;
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    check_too_large(100000000);
    indices[0] = -7;
    CHECK_FAILS(per_sample(tree, BATCH, PER_STRATIFIED, 1, indices, NULL, NULL, NULL), PER_ERROR_OUT_OF_MEMORY,
                "memory");
    CHECK(indices[0] == -7);
    CHECK(setrlimit(RLIMIT_AS, &before) == 0);
#else
    (void)tree;
#endif
}

int main(void) {
    static float priorities[N];
    per_tree *tree = create_tree(N, 4), *twin = create_tree(N, 4);
    int64_t index, twin_index;
    for (int i = 0; i < N; ++i) priorities[i] = (float)(i % 5);
    update_all(tree, N, priorities);
    update_all(twin, N, priorities);
    if (on_cuda())
        for (int i = 0; i < 3; ++i) check_too_large(INT64_C(1) << 40);
    else
        within_a_limit(tree);
    CHECK(total_mass_of(tree) == total_mass_of(twin));
    CHECK_OK(per_sample(tree, 1, PER_INDEPENDENT, 1, &index, NULL, NULL, NULL));
    CHECK_OK(per_sample(twin, 1, PER_INDEPENDENT, 1, &twin_index, NULL, NULL, NULL));
    CHECK(index == twin_index);
    per_tree_free(tree);
    per_tree_free(twin);
    return 0;
}

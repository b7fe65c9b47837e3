/* Out of memory is a status: no handle is created, and a handle whose call failed is as it was. */
#define _POSIX_C_SOURCE 200809L
#include <sys/resource.h>

#include "tree_check.h"

int main(void) {
#ifdef SANITIZED
    return 0; /* there is no room below any limit */
#else
    enum { N = 1000, BATCH = 1 << 24 };
    static float priorities[N];
    static int64_t indices[BATCH];
    struct rlimit limit = {64 << 20, RLIM_INFINITY}, before;
    per_tree_options options;
    per_tree *tree = create_tree(N, 4), *twin = create_tree(N, 4), *large = tree;
    int64_t index, twin_index;
    int i;
    for (i = 0; i < N; ++i) priorities[i] = (float)(i % 5);
    update_all(tree, N, priorities);
    update_all(twin, N, priorities);

    CHECK(getrlimit(RLIMIT_AS, &before) == 0);
    limit.rlim_cur = sizeof indices + (64 << 20);
    limit.rlim_max = before.rlim_max;
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    CHECK_OK(per_tree_options_init(&options, sizeof options));
    options.capacity = 100000000;
    CHECK_FAILS(per_tree_create(&options, &large), PER_ERROR_OUT_OF_MEMORY, "memory");
    CHECK(large == NULL);
    indices[0] = -7;
    CHECK_FAILS(per_sample(tree, BATCH, PER_STRATIFIED, 1, indices, NULL, NULL, NULL), PER_ERROR_OUT_OF_MEMORY,
                "memory");
    CHECK(indices[0] == -7);
    CHECK(setrlimit(RLIMIT_AS, &before) == 0);

    CHECK(total_mass_of(tree) == total_mass_of(twin));
    CHECK_OK(per_sample(tree, 1, PER_INDEPENDENT, 1, &index, NULL, NULL, NULL));
    CHECK_OK(per_sample(twin, 1, PER_INDEPENDENT, 1, &twin_index, NULL, NULL, NULL));
    CHECK(index == twin_index);
    per_tree_free(tree);
    per_tree_free(twin);
    return 0;
#endif
}

/*
 * Tests of the tree implementations that preceded libper: the four small trees of one in numpy, and the invariants and
 * the distribution of one in CUDA.
 */
#include <math.h>

#include "tree_check.h"

static void basic_total(void) {
    static const float priorities[4] = {1, 2, 3, 4};
    per_tree* tree = create_tree(4, 0);
    update_all(tree, 4, priorities);
    CHECK(total_of(tree) == 10);
    per_tree_free(tree);
}

static void get_returns_the_correct_leaf(void) {
    static const float priorities[4] = {1, 2, 3, 4};
    static const double prefix_sums[3] = {0.5, 2.5, 7.0};
    static const int64_t expected[3] = {0, 1, 3};
    int64_t indices[3];
    per_tree* tree = create_tree(4, 0);
    update_all(tree, 4, priorities);
    CHECK_OK(per_tree_find(tree, 3, prefix_sums, indices, NULL));
    CHECK(memcmp(indices, expected, sizeof indices) == 0);
    per_tree_free(tree);
}

static void an_update_reaches_the_total(void) {
    static const float priorities[4] = {1, 1, 1, 1};
    per_tree* tree = create_tree(4, 0);
    update_all(tree, 4, priorities);
    CHECK(total_of(tree) == 4);
    update_one(tree, 0, 5);
    CHECK(total_of(tree) == 8);
    per_tree_free(tree);
}

static void a_circular_overwrite_replaces(void) {
    per_tree* tree = create_tree(3, 0);
    for (int i = 0; i < 4; ++i) update_one(tree, i % 3, i == 3 ? 10 : (float)(i + 1));
    CHECK(total_of(tree) == 15);
    per_tree_free(tree);
}

/* Random updates with duplicates: the total equals the sum of the leaves. */
static void total_is_the_sum_of_the_leaves(void) {
    enum { N = 1024, COUNT = 5000 };
    static int64_t indices[COUNT];
    static float priorities[COUNT], leaves[N];
    per_tree* tree = create_tree(N, 0);
    uint64_t state = 1;
    double sum = 0;
    for (int i = 0; i < COUNT; ++i) {
        indices[i] = (int64_t)(next_random(&state) % N);
        priorities[i] = (float)next_uniform(&state);
    }
    CHECK_OK(per_update(tree, COUNT, indices, priorities, NULL));
    CHECK_OK(per_tree_get_priorities(tree, N, NULL, leaves, NULL));
    for (int i = 0; i < N; ++i) sum += leaves[i];
    CHECK(fabs(total_of(tree) / sum - 1) < 1e-12);
    per_tree_free(tree);
}

/*
 * Priorities 1 .. 128, 200 000 stratified draws (fewer on CUDA) with seed 1: the L1 distance of the histogram to P. A
 * stratum has the width of a draw, so a leaf's count differs from its expectation by less than 2: the distance is
 * always below 256 / draws.
 */
static void distribution_is_that_of_the_priorities(void) {
    enum { N = 128, BATCH = 200000 };
    float priorities[N];
    static int64_t indices[BATCH];
    const int n_draws = rounds(BATCH);
    int counts[N] = {0}, i;
    double distance = 0;
    per_tree* tree = create_tree(N, 1);
    for (i = 0; i < N; ++i) priorities[i] = (float)(i + 1);
    update_all(tree, N, priorities);
    CHECK_OK(per_sample(tree, n_draws, PER_STRATIFIED, 1, indices, NULL, NULL, NULL));
    for (i = 0; i < n_draws; ++i) ++counts[indices[i]];
    for (i = 0; i < N; ++i) distance += fabs(counts[i] / (double)n_draws - priorities[i] / (N * (N + 1) / 2.0));
    CHECK(distance < 256.0 / n_draws);
    per_tree_free(tree);
}

int main(void) {
    basic_total();
    get_returns_the_correct_leaf();
    an_update_reaches_the_total();
    a_circular_overwrite_replaces();
    total_is_the_sum_of_the_leaves();
    distribution_is_that_of_the_priorities();
    return 0;
}

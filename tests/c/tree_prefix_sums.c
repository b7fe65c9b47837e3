/* per_tree_find() in units of priority: leaf i holds p_0 + .. + p_(i-1) <= s < p_0 + .. + p_i. */
#include <math.h>

#include "tree_check.h"

/* Any number of searches in one call: each result is right, and nothing is written after the last. */
static void many(void) {
    enum { LEAVES = 1000, MOST = 600 };
    static const int64_t counts[] = {1, 15, 16, 17, 31, 255, 256, 257, 511, 512, 513, MOST};
    static float priorities[LEAVES];
    static double sums[MOST];
    static uint64_t units[MOST];
    static int64_t expected[MOST], indices[MOST + 1];
    uint64_t random = 3;
    per_tree* tree = create_tree(LEAVES, 0);
    for (int64_t i = 0; i < LEAVES; ++i) priorities[i] = (float)(i % 3); /* integers: their sums are exact */
    update_all(tree, LEAVES, priorities);
    int32_t scale = scale_of(tree);
    for (int64_t i = 0; i < MOST; ++i) {
        /* Three consecutive leaves have 0 + 1 + 2: the first unit of each such group belongs to the second leaf. */
        const uint64_t sum = next_random(&random) % 999;
        sums[i] = (double)sum + (i % 2 == 0 ? 0.0 : 0.75);
        units[i] = (sum << scale) + (i % 2 == 0 ? 0 : (UINT64_C(3) << scale) / 4);
        expected[i] = (int64_t)(sum / 3 * 3 + (sum % 3 == 0 ? 1 : 2));
    }
    for (size_t k = 0; k < sizeof counts / sizeof *counts; ++k) {
        const int64_t n = counts[k];
        memset(indices, 0xAA, sizeof indices);
        CHECK_OK(per_tree_find(tree, n, sums, indices, NULL));
        CHECK(memcmp(indices, expected, (size_t)n * sizeof *indices) == 0);
        CHECK(((unsigned char*)(indices + n))[0] == 0xAA);
        memset(indices, 0xAA, sizeof indices);
        CHECK_OK(per_tree_find_mass(tree, n, units, indices, NULL));
        CHECK(memcmp(indices, expected, (size_t)n * sizeof *indices) == 0);
        CHECK(((unsigned char*)(indices + n))[0] == 0xAA);
    }
    per_tree_free(tree);
}

int main(void) {
    static const float priorities[4] = {1, 2, 0, 4};
    static const double inside[] = {0, 0.5, 0.9999999, 1, 2.5, 2.9999999, 3, 5, 6.9999999};
    static const int64_t expected[] = {0, 0, 0, 1, 1, 1, 3, 3, 3};
    static const double outside[] = {7, 7.5, -1e-9, -INFINITY, INFINITY, NAN};
    double two[2] = {1, 0};
    int64_t indices[9];
    per_tree* tree = create_tree(4, 0);

    indices[0] = -7;
    CHECK_FAILS(per_tree_find(tree, 1, inside, indices, NULL), PER_ERROR_EMPTY, "0");
    CHECK(indices[0] == after_bad_entry());
    update_all(tree, 4, priorities);
    CHECK_OK(per_tree_find(tree, 9, inside, indices, NULL));
    for (size_t i = 0; i < 9; ++i) CHECK(indices[i] == expected[i]);
    for (size_t i = 0; i < sizeof outside / sizeof *outside; ++i) {
        two[1] = outside[i];
        indices[0] = indices[1] = -7;
        CHECK_BAD_ENTRY(per_tree_find(tree, 2, two, indices, NULL), "prefix_sums[1]");
        CHECK(indices[0] == (on_cuda() ? 1 : -7) && indices[1] == after_bad_entry());
    }

    /* The largest double below the total is inside, for any total. */
    for (size_t i = 1; i < 100; ++i) {
        update_one(tree, 3, (float)(1e-3 * (double)(i * i)));
        two[0] = nextafter(total_of(tree), 0);
        CHECK_OK(per_tree_find(tree, 1, two, indices, NULL));
        CHECK(indices[0] == 3);
    }
    per_tree_free(tree);
    many();
    return 0;
}

/*
 * Draws follow P(i) = p_i / sum_k p_k: chi-square tests. As seeds are fixed, the false-alarm rate is that of choosing a
 * bad seed: 1e-4 for each of the 12 tests. On CUDA 6 of them run with fewer batches, so some leaves have less than one
 * expected draw: 2e-4.
 */
#include <math.h>

#include "tree_check.h"

enum { N = 200, BATCH = 50, BATCHES = 4000 };

static void fill(float* priorities, uint64_t seed) {
    uint64_t state = seed;
    for (int i = 0; i < N; ++i) priorities[i] = i % 10 == 3 ? 0 : (float)pow(next_uniform(&state) + 0.01, 1.5);
}

/*
 * Counts of all draws together. Stratified draws vary less than independent ones, so their statistic is below the
 * chi-square distribution's, and the test is only one-sided for them.
 */
static void counts_follow_the_priorities(int32_t scheme, uint64_t seed) {
    static float priorities[N];
    int64_t indices[BATCH];
    double counts[N] = {0}, chi_square = 0, total = 0;
    int degrees = -1;
    per_tree* tree = create_tree(N, seed);
    fill(priorities, seed);
    update_all(tree, N, priorities);
    for (int i = 0; i < N; ++i) total += priorities[i];
    for (int batch = 0; batch < rounds(BATCHES); ++batch) {
        CHECK_OK(per_sample(tree, BATCH, scheme, 1, indices, NULL, NULL, NULL));
        for (int i = 0; i < BATCH; ++i) ++counts[indices[i]];
    }
    for (int i = 0; i < N; ++i) {
        double expected = (double)BATCH * rounds(BATCHES) * priorities[i] / total;
        if (priorities[i] == 0) {
            CHECK(counts[i] == 0);
            continue;
        }
        chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
        ++degrees;
    }
    CHECK(chi_square < critical_value(degrees));
    per_tree_free(tree);
}

/*
 * Draw i of a stratified batch is uniform in its stratum. With equal priorities and 20 leaves a stratum, draw i must
 * find leaves 20 i .. 20 i + 19 equally often.
 */
static void strata_are_filled_evenly(uint64_t seed) {
    enum { STRATA = 16, PARTS = 20 };
    static float priorities[STRATA * PARTS];
    double counts[STRATA * PARTS] = {0}, chi_square = 0, expected = rounds(BATCHES) / (double)PARTS;
    int64_t indices[STRATA];
    per_tree* tree = create_tree(STRATA * PARTS, seed);
    for (int i = 0; i < STRATA * PARTS; ++i) priorities[i] = 3;
    update_all(tree, STRATA * PARTS, priorities);
    for (int batch = 0; batch < rounds(BATCHES); ++batch) {
        CHECK_OK(per_sample(tree, STRATA, PER_STRATIFIED, 1, indices, NULL, NULL, NULL));
        for (int i = 0; i < STRATA; ++i) {
            CHECK(indices[i] / PARTS == i);
            ++counts[indices[i]];
        }
    }
    for (int i = 0; i < STRATA * PARTS; ++i) chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
    CHECK(chi_square < critical_value(STRATA * (PARTS - 1)));
    per_tree_free(tree);
}

/* Two draws of one batch, and the same draw of two batches, are independent: 5 x 5 tables of pairs. */
static void draws_are_independent(uint64_t seed) {
    enum { M = 5 };
    static const float priorities[M] = {1, 1, 1, 1, 1};
    double within[M][M] = {{0}}, between[M][M] = {{0}}, chi_square[2] = {0, 0}, expected = rounds(BATCHES) / 25.0;
    int64_t indices[2], previous = -1;
    per_tree* tree = create_tree(M, seed);
    update_all(tree, M, priorities);
    for (int batch = 0; batch < rounds(BATCHES) + 1; ++batch) {
        CHECK_OK(per_sample(tree, 2, PER_INDEPENDENT, 1, indices, NULL, NULL, NULL));
        if (batch > 0) {
            ++within[indices[0]][indices[1]];
            ++between[previous][indices[0]];
        }
        previous = indices[0];
    }
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < M; ++j) {
            chi_square[0] += (within[i][j] - expected) * (within[i][j] - expected) / expected;
            chi_square[1] += (between[i][j] - expected) * (between[i][j] - expected) / expected;
        }
    CHECK(chi_square[0] < critical_value(M * M - 1));
    CHECK(chi_square[1] < critical_value(M * M - 1));
    per_tree_free(tree);
}

int main(void) {
    for (uint64_t seed = 1; seed <= (on_cuda() ? 1 : 2); ++seed) {
        counts_follow_the_priorities(PER_STRATIFIED, seed);
        counts_follow_the_priorities(PER_INDEPENDENT, seed);
        counts_follow_the_priorities(PER_SYSTEMATIC, seed);
        strata_are_filled_evenly(seed);
        draws_are_independent(seed);
    }
    return 0;
}

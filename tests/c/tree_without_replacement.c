/* PER_WITHOUT_REPLACEMENT: no index occurs twice, each draw is in proportion to the remaining leaves, and the tree is
   unchanged. */
#include "tree_check.h"

/*
 * All ordered triples of 5 leaves, against their exact probabilities p_i / T * p_j / (T - p_i) * ..; seeds are fixed,
 * so the false-alarm rate of 1e-4 is that of choosing a bad seed. If one leaf holds nearly all mass, most draws are
 * repeated.
 */
static void triples_follow_their_probabilities(const float* priorities, uint64_t seed) {
    enum { N = 5, BATCHES = 30000 };
    static double counts[N][N][N];
    double total = 0, chi_square = 0, pooled_count = 0, pooled_expected = 0;
    int64_t draw[3];
    int degrees = -1;
    per_tree* tree = create_tree(N, seed);
    memset(counts, 0, sizeof counts);
    update_all(tree, N, priorities);
    for (int i = 0; i < N; ++i) total += priorities[i];
    for (int batch = 0; batch < BATCHES; ++batch) {
        CHECK_OK(per_sample(tree, 3, PER_WITHOUT_REPLACEMENT, 1, draw, NULL, NULL, NULL));
        ++counts[draw[0]][draw[1]][draw[2]];
    }
    for (int i = 0; i < N; ++i)
        for (int j = 0; j < N; ++j)
            for (int k = 0; k < N; ++k) {
                double rest = total - priorities[i];
                if (i == j || i == k || j == k) {
                    CHECK(counts[i][j][k] == 0);
                    continue;
                }
                double p = priorities[i] / total * priorities[j] / rest * priorities[k] / (rest - priorities[j]);
                double expected = p * BATCHES;
                if (expected < 10) {
                    pooled_expected += expected;
                    pooled_count += counts[i][j][k];
                    continue;
                }
                chi_square += (counts[i][j][k] - expected) * (counts[i][j][k] - expected) / expected;
                ++degrees;
            }
    if (pooled_expected >= 10) {
        chi_square += (pooled_count - pooled_expected) * (pooled_count - pooled_expected) / pooled_expected;
        ++degrees;
    }
    CHECK(chi_square < critical_value(degrees));
    per_tree_free(tree);
}

static void indices_differ_and_the_tree_is_unchanged(void) {
    enum { N = 3000, BATCH = 1200 };
    static float priorities[N], read[N], drawn[BATCH], weights[BATCH];
    static int64_t indices[BATCH];
    static char seen[N];
    per_tree* tree = create_tree(N, 8);
    uint64_t state = 2, mass;
    int32_t scale;
    for (int round = 0; round < 50; round += 50 / rounds(50)) {
        /* Priorities from even to so skewed that a few leaves hold nearly all mass. */
        for (int i = 0; i < N; ++i) priorities[i] = i % 5 == 0 ? 0 : (float)exp(round * next_uniform(&state));
        update_all(tree, N, priorities);
        mass = total_mass_of(tree);
        scale = scale_of(tree);
        CHECK_OK(per_sample(tree, BATCH, PER_WITHOUT_REPLACEMENT, 0.5f, indices, drawn, weights, NULL));
        memset(seen, 0, sizeof seen);
        for (int i = 0; i < BATCH; ++i) {
            CHECK(indices[i] >= 0 && indices[i] < N && !seen[indices[i]]);
            CHECK(drawn[i] == priorities[indices[i]] && drawn[i] > 0);
            CHECK(weights[i] > 0 && weights[i] <= 1);
            seen[indices[i]] = 1;
        }
        CHECK(total_mass_of(tree) == mass && scale_of(tree) == scale);
        CHECK_OK(per_tree_get_priorities(tree, N, NULL, read, NULL));
        CHECK(memcmp(read, priorities, sizeof read) == 0);
        CHECK(find_mass(tree, mass - 1) == N - 1);
    }
    per_tree_free(tree);
}

/* A batch as large as the number of leaves with mass contains each of them with weight 1. A larger one is an error. */
static void all_leaves_and_one_more(void) {
    static const float priorities[8] = {1e-30f, 0, 3, 1e20f, 0, 1e-30f, 2, 1};
    per_tree *tree = create_tree(8, 1), *twin = create_tree(8, 1);
    int64_t indices[8], twin_indices[8];
    float weights[8];
    int found = 0;
    update_all(tree, 8, priorities);
    update_all(twin, 8, priorities);
    CHECK_OK(per_sample(twin, 6, PER_WITHOUT_REPLACEMENT, 1, twin_indices, NULL, NULL, NULL));
    indices[0] = -7;
    weights[0] = -7;
    CHECK_REFUSED(per_sample(tree, 7, PER_WITHOUT_REPLACEMENT, 1, indices, NULL, weights, NULL),
                  on_cuda() ? "batch_size" : "batch_size is 7: only 6");
    CHECK(indices[0] == after_bad_entry() && weights[0] == (on_cuda() ? 0 : -7));
    CHECK(total_mass_of(tree) == total_mass_of(twin));
    /* The refused call did not count as a draw. */
    CHECK_OK(per_sample(tree, 6, PER_WITHOUT_REPLACEMENT, 1, indices, NULL, weights, NULL));
    CHECK(memcmp(indices, twin_indices, 6 * sizeof *indices) == 0);
    for (int i = 0; i < 6; ++i) {
        found |= 1 << indices[i];
        CHECK(weights[i] == 1);
    }
    CHECK(found == 0xED);
    per_tree_free(tree);
    per_tree_free(twin);
}

int main(void) {
    static const float even[5] = {3, 2, 2, 1, 4};
    static const float skewed[5] = {1, 1048576, 2, 1, 3};
    static const float very_skewed[5] = {1, 1e9f, 0.5f, 0.25f, 4e8f};
    /* Draws on CUDA equal those of the CPU; tree_golden_draws tests this. */
    if (!on_cuda()) {
        triples_follow_their_probabilities(even, 1);
        triples_follow_their_probabilities(skewed, 2);
        triples_follow_their_probabilities(very_skewed, 3);
    }
    indices_differ_and_the_tree_is_unchanged();
    all_leaves_and_one_more();
    return 0;
}

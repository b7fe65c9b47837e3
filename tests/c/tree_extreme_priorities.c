/* Priorities from the smallest subnormal to the largest float32, mixed: sums stay exact, and each leaf can be drawn. */
#include <float.h>
#include <math.h>

#include "tree_check.h"

#define SMALLEST 1.40129846e-45f

/* Compares the total, the limits of the scale and the first unit of every leaf with the priorities. */
static void check_tree(per_tree* tree, int64_t capacity, const float* priorities) {
    uint64_t before = 0;
    int32_t scale = scale_of(tree);
    for (int64_t i = 0; i < capacity; ++i) {
        double mass = ceil(ldexp(priorities[i], scale));
        CHECK(mass < 0x1p52);
        CHECK((mass > 0) == (priorities[i] > 0));
        if (mass > 0) CHECK(find_mass(tree, before) == i);
        before += (uint64_t)mass;
    }
    CHECK(before < UINT64_C(1) << 62);
    CHECK(total_mass_of(tree) == before);
}

static void alternating_large_and_small(void) {
    enum { N = 1000 };
    const int n_steps = rounds(20000);
    static float priorities[N];
    per_tree* tree = create_tree(N, 0);
    uint64_t state = 5;
    for (int step = 0; step < N; ++step) priorities[step] = 1;
    update_all(tree, N, priorities);
    for (int step = 0; step < n_steps; ++step) {
        int64_t index = (int64_t)(next_random(&state) % N);
        priorities[index] = step % 2 == 0 ? 1e30f : 1e-30f;
        update_one(tree, index, priorities[index]);
        if (step % 2000 == 0) check_tree(tree, N, priorities);
    }
    check_tree(tree, N, priorities);
    per_tree_free(tree);
}

static void one_leaf_alternates(void) {
    static float priorities[3] = {0.5f, 0, 2};
    per_tree* tree = create_tree(3, 0);
    update_all(tree, 3, priorities);
    for (int step = 0; step < 100; ++step) {
        priorities[1] = step % 2 == 0 ? FLT_MAX : SMALLEST;
        update_one(tree, 1, priorities[1]);
        check_tree(tree, 3, priorities);
    }
    priorities[0] = priorities[2] = 0;
    update_one(tree, 0, 0);
    update_one(tree, 2, 0);
    check_tree(tree, 3, priorities);
    CHECK(total_of(tree) == SMALLEST);
    per_tree_free(tree);
}

static void all_magnitudes(void) {
    enum { N = 277 };
    static float priorities[N];
    per_tree* tree = create_tree(N, 0);
    const int step = N / rounds(N); /* interval between checks of the whole tree */
    for (int i = 0; i < N; ++i) priorities[i] = (float)ldexp(1.25, i - 149);
    CHECK(priorities[0] == SMALLEST && priorities[N - 1] > 1e38f);
    update_all(tree, N, priorities);
    check_tree(tree, N, priorities);
    /* Priorities fall from the largest: the remaining ones decide each change of scale. */
    for (int i = N - 1; i >= 0; --i) {
        priorities[i] = 0;
        update_one(tree, i, 0);
        if (i % step == 0) check_tree(tree, N, priorities);
    }
    CHECK(total_mass_of(tree) == 0);
    /* Then they grow again, from an empty tree. */
    for (int i = 0; i < N; ++i) {
        priorities[i] = (float)ldexp(1.75, i - 149);
        update_one(tree, i, priorities[i]);
        if (i % step == 0) check_tree(tree, N, priorities);
    }
    per_tree_free(tree);
}

static void many_of_the_largest(void) {
    enum { N = 5000 };
    static float priorities[N];
    per_tree* tree = create_tree(N, 0);
    int64_t index[2];
    for (int i = 0; i < N; ++i) priorities[i] = FLT_MAX;
    update_all(tree, N, priorities);
    check_tree(tree, N, priorities);
    CHECK(fabs(total_of(tree) / (N * (double)FLT_MAX) - 1) < 1e-12);
    CHECK_OK(per_sample(tree, 2, PER_STRATIFIED, 1, index, NULL, NULL, NULL));
    CHECK(index[0] < N / 2 && index[1] >= N / 2);
    per_tree_free(tree);
}

/* The sum of many leaves reaches its limit while each leaf is far from its own: set as a run, and in any order. */
static void many_grow_together(void) {
    enum { MOST = 1 << 17 };
    static float priorities[MOST];
    static int64_t backwards[MOST];
    /* At 2^43 times 2^8, the sum of 2^13 leaves exceeds its limit, though no leaf does. */
    const int n = on_cuda() ? MOST / 16 : MOST;
    per_tree* tree = create_tree(n, 0);
    for (int i = 0; i < n; ++i) backwards[i] = n - 1 - i;
    for (int round = 0; round < 6; ++round) {
        for (int i = 0; i < n; ++i) priorities[i] = (float)ldexp(1, 8 * round);
        if (round % 2 == 0)
            update_all(tree, n, priorities);
        else
            CHECK_OK(per_update(tree, n, backwards, priorities, NULL));
        CHECK(total_mass_of(tree) < UINT64_C(1) << 62);
        CHECK(total_of(tree) == ldexp(n, 8 * round));
        CHECK(find_mass(tree, total_mass_of(tree) / 2) == n / 2);
    }
    per_tree_free(tree);
}

/* -0 is a zero: it compares equal, has no mass, and is returned as 0, at any position among others: in consecutive
 * leaves, far apart, or in a small tree. */
static void negative_zero(void) {
    enum { N = 21 };
    static const int64_t strides[] = {1, 40, -1};
    int64_t indices[N];
    float priorities[N], read[N];
    for (int round = 0; round < 3; ++round) {
        per_tree* tree = create_tree(round == 1 ? 1000 : N, 0);
        for (int i = 0; i < N; ++i) {
            indices[i] = (strides[round] < 0 ? N - 1 : 0) + i * strides[round];
            priorities[i] = i % 3 == 0 ? 1 : -0.0f;
        }
        CHECK_OK(per_update(tree, N, indices, priorities, NULL));
        CHECK_OK(per_tree_get_priorities(tree, N, indices, read, NULL));
        for (int i = 0; i < N; ++i) CHECK(read[i] == priorities[i] && !signbit(read[i]));
        CHECK(total_of(tree) == N / 3);
        per_tree_free(tree);
    }
}

int main(void) {
    alternating_large_and_small();
    one_leaf_alternates();
    all_magnitudes();
    many_of_the_largest();
    many_grow_together();
    negative_zero();
    return 0;
}

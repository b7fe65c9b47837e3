/* The last of equal indices in one update wins, and the total counts it once. */
#include "tree_check.h"

/* There are so few leaves that sums are updated by each leaf's difference, not recomputed. */
static void few_in_a_large_tree(void) {
    enum { N = 2000, APART = 150, PLACES = 12, COUNT = 30 };
    int64_t indices[COUNT];
    float priorities[COUNT], expected[PLACES] = {0};
    per_tree* tree = create_tree(N, 0);
    uint64_t state = 7;
    for (int round = 0; round < 200; ++round) {
        double total = 0;
        for (int i = 0; i < COUNT; ++i) {
            const int place = (int)(next_random(&state) % PLACES);
            indices[i] = place * APART;
            priorities[i] = (float)(next_random(&state) % 1024) / 64;
            expected[place] = priorities[i];
        }
        CHECK_OK(per_update(tree, COUNT, indices, priorities, NULL));
        for (int i = 0; i < PLACES; ++i) total += expected[i];
        CHECK(total_of(tree) == total);
        for (int i = 0; i < PLACES; ++i) indices[i] = i * APART;
        CHECK_OK(per_tree_get_priorities(tree, PLACES, indices, priorities, NULL));
        for (int i = 0; i < PLACES; ++i) CHECK(priorities[i] == expected[i]);
    }
    per_tree_free(tree);
}

int main(void) {
    enum { N = 40, COUNT = 1000 };
    static const int64_t few[] = {3, 1, 3, 3};
    static const float values[] = {5, 2, 7, 0.5f};
    static int64_t indices[COUNT];
    static float priorities[COUNT], expected[N], read[N];
    per_tree* tree = create_tree(N, 0);
    uint64_t state = 3;
    double total = 0;
    int i;

    CHECK_OK(per_update(tree, 4, few, values, NULL));
    CHECK(total_of(tree) == 2.5);
    CHECK_OK(per_tree_get_priorities(tree, N, NULL, read, NULL));
    CHECK(read[1] == 2 && read[3] == 0.5f && read[0] == 0);

    expected[1] = 2;
    expected[3] = 0.5f;
    for (int round = 0; round < 50; ++round) {
        for (i = 0; i < COUNT; ++i) {
            indices[i] = (int64_t)(next_random(&state) % N);
            priorities[i] = (float)(next_random(&state) % 1024) / 64;
            expected[indices[i]] = priorities[i];
        }
        CHECK_OK(per_update(tree, COUNT, indices, priorities, NULL));
        CHECK_OK(per_tree_get_priorities(tree, N, NULL, read, NULL));
        for (total = 0, i = 0; i < N; ++i) {
            CHECK(read[i] == expected[i]);
            total += expected[i];
        }
        /* Multiples of 1/64 have exact masses. */
        CHECK(total_of(tree) == total);
    }
    per_tree_free(tree);
    few_in_a_large_tree();
    return 0;
}

/*
 * Several threads on one tree: each call is atomic. Writers move one unit of priority between two leaves in a single
 * update, so readers always find the same total and draw only leaves that have mass at that moment.
 */

#include "thread_check.h"
#include "tree_check.h"

enum { N = 4096, BATCH = 64, ROUNDS = 4000, READERS = 3 };

static per_tree* tree;

/* Either leaf 2 k or leaf 2 k + 1 has priority 1, the other one 0. */
static void* write_pairs(void* argument) {
    uint64_t state = *(uint64_t*)argument;
    for (int round = 0; round < rounds(ROUNDS); ++round) {
        int64_t indices[2 * BATCH];
        float priorities[2 * BATCH];
        for (int i = 0; i < BATCH; ++i) {
            uint64_t random = next_random(&state);
            indices[2 * i] = (int64_t)(random % (N / 2) * 2);
            indices[2 * i + 1] = indices[2 * i] + 1;
            priorities[2 * i] = (float)(random >> 63);
            priorities[2 * i + 1] = 1 - priorities[2 * i];
        }
        CHECK_OK(per_update(tree, 2 * BATCH, indices, priorities, NULL));
    }
    return NULL;
}

static void* read_all(void* argument) {
    (void)argument;
    for (int round = 0; round < rounds(ROUNDS); ++round) {
        int64_t indices[BATCH];
        float drawn[BATCH], weights[BATCH];
        static const int32_t schemes[] = {PER_STRATIFIED, PER_INDEPENDENT, PER_SYSTEMATIC};
        CHECK_OK(per_sample(tree, BATCH, schemes[round % 3], 0.5f, indices, drawn, weights, NULL));
        for (int i = 0; i < BATCH; ++i) CHECK(drawn[i] == 1 && weights[i] == 1);
        CHECK(total_of(tree) == N / 2);
    }
    return NULL;
}

int main(void) {
    static float priorities[N];
    pthread_t writers[2], readers[READERS];
    uint64_t seeds[2] = {1, 2};
    tree = create_tree(N, 3);
    for (int i = 0; i < N; i += 2) priorities[i] = 1;
    update_all(tree, N, priorities);
    for (int i = 0; i < 2; ++i) writers[i] = start_thread(write_pairs, &seeds[i]);
    for (int i = 0; i < READERS; ++i) readers[i] = start_thread(read_all, NULL);
    for (int i = 0; i < 2; ++i) join_thread(writers[i]);
    for (int i = 0; i < READERS; ++i) join_thread(readers[i]);
    per_tree_free(tree);
    return 0;
}

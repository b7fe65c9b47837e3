/*
 * Threads that sample one tree together draw the batches that one thread would: each batch number is used once, but by
 * any thread.
 */

#include "thread_check.h"
#include "tree_check.h"

enum { N = 1000, BATCH = 16, BATCHES = 3000, THREADS = 4 };

static per_tree* tree;
static int64_t drawn[THREADS * BATCHES][BATCH];

static void* draw(void* first) {
    const int n = rounds(BATCHES);
    int64_t(*batches)[BATCH] = first;
    for (int i = 0; i < n; ++i) CHECK_OK(per_sample(tree, BATCH, PER_INDEPENDENT, 0, batches[i], NULL, NULL, NULL));
    return NULL;
}

static int compare(const void* a, const void* b) {
    return memcmp(a, b, sizeof drawn[0]);
}

int main(void) {
    static int64_t expected[THREADS * BATCHES][BATCH];
    static float priorities[N];
    const int n = rounds(BATCHES);
    pthread_t threads[THREADS];
    per_tree* twin = create_tree(N, 6);
    tree = create_tree(N, 6);
    for (int i = 0; i < N; ++i) priorities[i] = (float)(i % 11);
    update_all(tree, N, priorities);
    update_all(twin, N, priorities);
    for (int i = 0; i < THREADS; ++i) threads[i] = start_thread(draw, drawn[i * n]);
    for (int i = 0; i < THREADS; ++i) join_thread(threads[i]);
    for (int i = 0; i < THREADS * n; ++i)
        CHECK_OK(per_sample(twin, BATCH, PER_INDEPENDENT, 0, expected[i], NULL, NULL, NULL));
    qsort(drawn, (size_t)(THREADS * n), sizeof drawn[0], compare);
    qsort(expected, (size_t)(THREADS * n), sizeof expected[0], compare);
    CHECK(memcmp(drawn, expected, (size_t)(THREADS * n) * sizeof drawn[0]) == 0);
    per_tree_free(tree);
    per_tree_free(twin);
    return 0;
}

/*
 * Threads that sample without a pause do not starve an update: they continue until all updates are done, so the program
 * ends only if the updates proceed. (With locks that let readers overtake, each update waited for milliseconds.)
 */

#include "thread_check.h"
#include "tree_check.h"

enum { N = 10000, BATCH = 256, UPDATES = 2000, READERS = 3 };

static per_tree* tree;
static int finished;

static void* sample(void* argument) {
    const int batch_size = on_cuda() ? BATCH / 16 : BATCH;
    int64_t indices[BATCH];
    (void)argument;
    while (!__atomic_load_n(&finished, __ATOMIC_RELAXED))
        CHECK_OK(per_sample(tree, batch_size, PER_STRATIFIED, 1, indices, NULL, NULL, NULL));
    return NULL;
}

int main(void) {
    static float priorities[N];
    const int updates = rounds(UPDATES);
    pthread_t readers[READERS];
    int64_t index;
    tree = create_tree(N, 0);
    for (int i = 0; i < N; ++i) priorities[i] = 1;
    update_all(tree, N, priorities);
    for (int i = 0; i < READERS; ++i) readers[i] = start_thread(sample, NULL);
    for (int i = 0; i < updates; ++i) {
        index = i % N;
        update_one(tree, index, 2);
    }
    __atomic_store_n(&finished, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < READERS; ++i) join_thread(readers[i]);
    CHECK(total_of(tree) == N + updates);
    per_tree_free(tree);
    return 0;
}

/*
 * After a fork while other threads are inside calls, the child can use its copy of the tree, which is consistent: each
 * update keeps the total, so the child sees that total at any moment of the fork. The child can only free a tree on
 * CUDA; it can create another one on the CPU.
 */
#define _POSIX_C_SOURCE 200809L
#include <unistd.h>

#include "posix_check.h"
#include "thread_check.h"
#include "tree_check.h"

enum { N = 100000, BATCH = 512, FORKS = 60 };

static per_tree* tree;
static int stopping;

static void* exchange_priorities(void* argument) {
    uint64_t state = 1;
    int64_t indices[BATCH];
    float priorities[BATCH];
    (void)argument;
    while (!__atomic_load_n(&stopping, __ATOMIC_RELAXED)) {
        for (int i = 0; i < BATCH; i += 2) {
            uint64_t random = next_random(&state);
            indices[i] = (int64_t)(random % (N / 2) * 2);
            indices[i + 1] = indices[i] + 1;
            priorities[i] = (float)(random >> 62) / 2;
            priorities[i + 1] = 2 - priorities[i];
        }
        CHECK_OK(per_update(tree, BATCH, indices, priorities, NULL));
    }
    return NULL;
}

static void* sample(void* argument) {
    int64_t indices[BATCH];
    (void)argument;
    while (!__atomic_load_n(&stopping, __ATOMIC_RELAXED))
        CHECK_OK(per_sample(tree, BATCH, PER_STRATIFIED, 1, indices, NULL, NULL, NULL));
    return NULL;
}

static void use_copy(void) {
    int64_t index = 7;
    float priority = 2 + 16;
    static float before;
    CHECK(total_of(tree) == N);
    CHECK_OK(per_tree_get_priorities(tree, 1, &index, &before, NULL));
    CHECK_OK(per_update(tree, 1, &index, &priority, NULL));
    CHECK(total_of(tree) == N + 18 - (double)before);
    CHECK_OK(per_sample(tree, 1, PER_INDEPENDENT, 1, &index, NULL, NULL, NULL));
}

static void refuse_everything(void) {
    static const char* const why = "cannot be used in a forked child";
    int64_t index = 7;
    float priority = 2;
    double sum = 0;
    uint64_t unit = 7;
    per_tree_description description;
    description.capacity = 7;
    CHECK_FAILS(per_update(tree, 1, &index, &priority, NULL), PER_ERROR_NO_DEVICE, why);
    CHECK_FAILS(per_sample(tree, 1, PER_INDEPENDENT, 1, &index, NULL, NULL, NULL), PER_ERROR_NO_DEVICE, why);
    CHECK_FAILS(per_tree_find(tree, 1, &sum, &index, NULL), PER_ERROR_NO_DEVICE, why);
    CHECK_FAILS(per_tree_find_mass(tree, 1, &unit, &index, NULL), PER_ERROR_NO_DEVICE, why);
    CHECK_FAILS(per_tree_get_priorities(tree, 1, &index, &priority, NULL), PER_ERROR_NO_DEVICE, why);
    CHECK_FAILS(per_tree_describe(tree, &description, sizeof description), PER_ERROR_NO_DEVICE, why);
    CHECK_FAILS(per_tree_reset(tree, NULL), PER_ERROR_NO_DEVICE, why);
    CHECK_FAILS(per_tree_synchronize(tree, NULL), PER_ERROR_NO_DEVICE, why);
    CHECK(index == 7 && priority == 2 && description.capacity == 7);
}

static void use_in_child(void) {
    per_tree* other;
    int64_t index = 1;
    const float priority = 1;
    alarm(20); /* a wait for a lock that is never released ends the test */
    if (on_cuda())
        refuse_everything();
    else
        use_copy();
    per_tree_options options = default_tree_options();
    options.capacity = 10;
    CHECK_OK(per_tree_create(&options, &other));
    CHECK_OK((per_update)(other, 1, &index, &priority, NULL));
    per_tree_free(other);
    per_tree_free(tree);
    _exit(0);
}

int main(void) {
    static float priorities[N];
    pthread_t threads[3];
    for (int i = 0; i < N; ++i) priorities[i] = 1;
    tree = create_tree(N, 0);
    update_all(tree, N, priorities);
    threads[0] = start_thread(exchange_priorities, NULL);
    threads[1] = start_thread(sample, NULL);
    threads[2] = start_thread(sample, NULL);
    for (int i = 0; i < (on_cuda() ? FORKS / 4 : FORKS); ++i) {
        pid_t child = start_child();
        if (child == 0) use_in_child();
        check_child(child);
    }
    CHECK(total_of(tree) == N);
    __atomic_store_n(&stopping, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < 3; ++i) join_thread(threads[i]);
    per_tree_free(tree);
    return 0;
}

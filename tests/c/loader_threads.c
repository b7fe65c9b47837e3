/*
 * Several consumers of one loader, while other threads add, update and draw: every batch is whole, goes to one
 * consumer, and is counted once.
 */

#include "loader_check.h"
#include "thread_check.h"

enum { CONSUMERS = 3, BATCH = 64, SLOTS = 3, BATCHES = 700, STEPS = 2000 };

static int n_batches, n_steps;
static per_replay* replay;
static per_loader* loader;
static int stopping;

static void* consume(void* argument) {
    (void)argument;
    for (int k = 0; k < n_batches; ++k) {
        per_batch batch;
        const int64_t slot = take(loader, &batch);
        float* observation = batch.fields[0];
        for (int i = 0; i < BATCH; ++i) {
            CHECK(observation[i] == (float)batch.ids[i]);
            observation[i] = -1; /* the slot is this consumer's until it is released */
        }
        if (k % 3 == 0) CHECK_OK(write_td_errors(replay, BATCH, batch.ids, 1, batch.weights, NULL));
        for (int i = 0; i < BATCH; ++i) CHECK(observation[i] == -1);
        CHECK_OK(per_loader_release(loader, slot, NULL));
    }
    return NULL;
}

static void* add(void* argument) {
    (void)argument;
    add_run(replay, n_steps / 2, n_steps);
    return NULL;
}

static void* use(void* argument) {
    static rows drawn;
    (void)argument;
    while (!__atomic_load_n(&stopping, __ATOMIC_RELAXED)) {
        draw(replay, BATCH, &drawn);
        CHECK_OK(change_beta(replay, 0.5, NULL));
        CHECK(stats_of(replay).max_priority >= 1);
    }
    return NULL;
}

int main(void) {
    pthread_t consumers[CONSUMERS], others[2];
    n_batches = rounds(BATCHES);
    n_steps = on_cuda() ? 60 : STEPS;
    per_replay_options options = replay_options(n_steps + 10, 1);
    options.beta_steps = 10;
    replay = create_replay(&options);
    add_run(replay, 0, n_steps / 2);
    loader = create_loader(replay, BATCH, SLOTS, NULL);
    others[0] = start_thread(add, NULL);
    others[1] = start_thread(use, NULL);
    for (int i = 0; i < CONSUMERS; ++i) consumers[i] = start_thread(consume, NULL);
    for (int i = 0; i < CONSUMERS; ++i) join_thread(consumers[i]);
    __atomic_store_n(&stopping, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < 2; ++i) join_thread(others[i]);
    int64_t samples = stats_of(replay).samples;
    int64_t beta_steps = stats_of(replay).beta_step;
    CHECK(samples - beta_steps == SLOTS); /* drawn ahead; all others are counted once */
    CHECK(beta_steps >= CONSUMERS * n_batches);
    per_loader_free(loader);
    CHECK(stats_of(replay).samples == samples && stats_of(replay).beta_step == beta_steps);
    per_replay_free(replay);
    return 0;
}

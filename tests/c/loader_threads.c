/*
 * Several consumers of one loader, while other threads add, update and draw: every batch is whole, goes to one
 * consumer, and is counted once.
 */

#include "loader_check.h"
#include "thread_check.h"

enum { CONSUMERS = 3, BATCH = 64, SLOTS = 3, BATCHES = 700, STEPS = 2000, LARGE_BATCH = 60000, AHEAD = 200 };

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

/* Takes the batches that were drawn ahead, over some milliseconds. */
static void* take_all(void* argument) {
    (void)argument;
    for (int k = 1; k < AHEAD; ++k) {
        per_batch batch;
        take(loader, &batch);
        for (volatile int i = 0; i < 5000; ++i) continue;
    }
    return NULL;
}

/* Each batch that a loader hands out advances the schedule of beta. A draw still uses a single beta, so its weights agree
 * with the statistics. */
static void a_draw_of_a_mixture_has_one_beta(void) {
    static float priorities[STEPS], weights[LARGE_BATCH];
    static int64_t ids[LARGE_BATCH];
    per_replay_options options = replay_options(STEPS + 10, 1);
    options.beta = 0;
    options.beta_final = 2;
    options.beta_steps = 2 * AHEAD;
    options.alpha = 1;
    for (int i = 0; i < STEPS; ++i) priorities[i] = (float)(1 + i % 7);
    for (int round = 0; round < rounds(80); ++round) {
        per_source source = {.share = 1};
        per_batch batch = default_batch(), of_loader;
        replay = source.replay = create_replay(&options);
        add_run(replay, 0, STEPS);
        for (int i = 0; i < STEPS; ++i) ids[i] = i;
        CHECK_OK(write_priorities(replay, STEPS, ids, priorities, NULL));
        loader = create_loader(replay, 8, AHEAD, NULL);
        take(loader, &of_loader);
        while (stats_of(replay).samples < AHEAD + 1) continue; /* now it waits for a slot */
        const pthread_t consumer = start_thread(take_all, NULL);
        batch.ids = ids;
        batch.weights = weights;
        CHECK_OK(per_mixture_sample(&source, 1, NULL, LARGE_BATCH, &batch, NULL, NULL));
        const per_replay_statistics statistics = stats_of(replay);
        join_thread(consumer);
        double sum = 0, squares = 0;
        for (int i = 0; i < LARGE_BATCH; ++i) {
            sum += (double)weights[i];
            squares += (double)weights[i] * (double)weights[i];
        }
        CHECK(statistics.last_batch_size == LARGE_BATCH);
        CHECK(fabs(statistics.last_effective_size - sum * sum / squares) < 1e-4 * sum);
        per_loader_free(loader);
        per_replay_free(replay);
    }
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
    if (!on_cuda()) a_draw_of_a_mixture_has_one_beta();
    return 0;
}

/*
 * Threads on one buffer: each call is atomic. Every observation identifies its environment and step, the values of a
 * batch's row must agree, and the final counts must add up.
 */

#include "replay_check.h"
#include "thread_check.h"

/* The first steps are added before the threads start, so that transitions are live: on CUDA the error of an empty draw
   could be reported to another thread. */
enum { ENVS = 4, ROWS = 64, BATCH = 256, ROUNDS = 8000, FIRST = 2, SAMPLERS = 3 };

static per_replay* replay;
static int stopping;

static int is_stopping(void) {
    return __atomic_load_n(&stopping, __ATOMIC_RELAXED);
}

/* Environment e, step t: observation 65536 e + t, reward t; the episode ends after every 11th step. */
static void add_one(int64_t env, int t) {
    const float base = (float)(65536 * env);
    const int64_t id =
        add_full(replay, env, base + (float)t, (float)t, t % 11 == 10 ? TRUNCATED : GOES_ON, base + (float)t + 1);
    CHECK(id % ENVS == env);
}

static void* add(void* argument) {
    const int64_t env = *(const int64_t*)argument;
    for (int t = FIRST; t < rounds(ROUNDS); ++t) add_one(env, t);
    return NULL;
}

static void* sample_and_update(void* argument) {
    rows* drawn = malloc(sizeof *drawn);
    const int batch_size = on_cuda() ? BATCH / 16 : BATCH;
    float errors[BATCH];
    (void)argument;
    CHECK(drawn != NULL);
    fill_rows(drawn);
    while (!is_stopping()) {
        CHECK_OK(per_replay_sample(replay, NULL, batch_size, &drawn->batch, NULL));
        for (int i = 0; i < batch_size; ++i) {
            const int64_t env = drawn->ids[i] % ENVS;
            const float t = drawn->observation[i] - (float)(65536 * env);
            CHECK(t >= 0 && t < rounds(ROUNDS) && drawn->n_steps[i] >= 1);
            CHECK(drawn->next[i] == drawn->observation[i] + (float)drawn->n_steps[i]);
            /* gamma 1: the return is the sum of t, t + 1, .. */
            CHECK(drawn->reward[i] == (float)drawn->n_steps[i] * t + (float)(drawn->n_steps[i] == 2));
            CHECK(drawn->truncated[i] == ((int)t % 11 + drawn->n_steps[i] == 11));
            CHECK(drawn->weights[i] > 0 && drawn->weights[i] <= 1 && drawn->priorities[i] > 0);
            errors[i] = (float)(i % 5 + 1);
        }
        CHECK_OK(write_td_errors(replay, batch_size, drawn->ids, 1, errors, NULL));
    }
    free(drawn);
    return NULL;
}

static void* look(void* argument) {
    (void)argument;
    while (!is_stopping()) {
        const per_replay_statistics statistics = stats_of(replay);
        CHECK(statistics.live >= 0 && statistics.live <= ROWS * ENVS && statistics.max_priority >= 1);
        /* Before alpha is applied, priorities are 1 to 5 + epsilon. */
        CHECK(statistics.total <= 5.1 * (double)statistics.live && statistics.total >= (double)statistics.live);
        CHECK(statistics.max_priority < 5.1 && statistics.cuts == 0);
    }
    return NULL;
}

static void* change_settings(void* argument) {
    double alpha = 0.5;
    (void)argument;
    while (!is_stopping()) {
        CHECK_OK(change_alpha(replay, alpha, NULL));
        CHECK_OK(change_beta(replay, alpha, NULL));
        alpha = alpha == 0.5 ? 0.9 : 0.5;
    }
    return NULL;
}

int main(void) {
    per_replay_options options = replay_options(ROWS * ENVS, ENVS);
    int64_t envs[ENVS];
    pthread_t adders[ENVS], others[SAMPLERS + 2];
    options.n_step = 2;
    options.gamma = 1;
    replay = create_replay(&options);
    for (int t = 0; t < FIRST; ++t)
        for (int i = 0; i < ENVS; ++i) add_one(i, t);
    for (int i = 0; i < SAMPLERS; ++i) others[i] = start_thread(sample_and_update, NULL);
    others[SAMPLERS] = start_thread(look, NULL);
    others[SAMPLERS + 1] = start_thread(change_settings, NULL);
    for (int i = 0; i < ENVS; ++i) {
        envs[i] = i;
        adders[i] = start_thread(add, &envs[i]);
    }
    for (int i = 0; i < ENVS; ++i) join_thread(adders[i]);
    __atomic_store_n(&stopping, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < SAMPLERS + 2; ++i) join_thread(others[i]);
    CHECK(stats_of(replay).added == ENVS * rounds(ROUNDS));
    CHECK(stats_of(replay).episodes == ENVS * (rounds(ROUNDS) / 11) && stats_of(replay).rejected_updates == 0);
    per_replay_free(replay);
    return 0;
}

/* An epoch contains every live transition exactly once, with the values of a draw, whatever is drawn or added
   meanwhile. */
#include "replay_check.h"

enum { ENVS = 3 };

/* Three lanes in different states: a wrapped one that goes on, one with ends of every kind, and one with a single
   step. */
static per_replay* filled(uint64_t seed, int64_t n_step) {
    per_replay_options options = replay_options(60, ENVS);
    options.seed = seed;
    options.n_step = n_step;
    options.gamma = 0.5;
    per_replay* replay = create_replay(&options);
    for (int t = 0; t < 30; ++t) add_full(replay, 0, (float)t, (float)t, GOES_ON, (float)t + 1);
    add_full(replay, 1, 100, 1, GOES_ON, 101);
    add_full(replay, 1, 101, 2, TERMINATED, 102);
    add_full(replay, 1, 110, 3, TRUNCATED, 111);
    add_unknown_end(replay, 1, 120, 4, TERMINATED);
    add_step(replay, 1, 130, 5);
    add_unknown_end(replay, 1, 131, 6, TRUNCATED);
    add_step(replay, 1, 140, 7);
    add_step(replay, 1, 141, 8);
    add_full(replay, 2, 200, 9, GOES_ON, 201);
    return replay;
}

static int64_t next(per_replay* replay, per_epochs* walk, rows* out) {
    int64_t count = -1;
    fill_rows(out);
    CHECK_OK(synchronized(replay, per_epochs_next(walk, &out->batch, &count, NULL)));
    return count;
}

/* An epoch in minibatches of `batch_size`; records the ids in order. */
static void take_epoch(per_replay* replay, per_epochs* walk, int64_t n, int64_t batch_size, int64_t* ids) {
    static rows out;
    int64_t place = 0;
    while (place < n) {
        const int64_t count = next(replay, walk, &out);
        CHECK(count == (n - place < batch_size ? n - place : batch_size));
        memcpy(ids + place, out.ids, (size_t)count * sizeof *ids);
        place += count;
    }
}

static void check_permutation(const int64_t* ids, const int64_t* others, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        int times = 0;
        for (int64_t j = 0; j < n; ++j) times += ids[j] == others[i];
        CHECK(times == 1);
    }
}

/* The live ids, found by many draws. No two are equal within an epoch, and each epoch has all of them. */
static void each_once_an_epoch(int64_t n_step, int64_t batch_size) {
    static rows drawn, out;
    int64_t first[64], second[64], third[64];
    per_replay *replay = filled(4, n_step), *twin = filled(4, n_step);
    per_epochs *walk, *twin_walk;
    int64_t n = live_of(replay);
    CHECK(n > 20 && n < 64);
    CHECK_OK(per_epochs_create(replay, 3, batch_size, 0, NULL, &walk));
    CHECK(stats_of(replay).samples == 3 && stats_of(replay).beta_step == 0);
    take_epoch(replay, walk, n, batch_size, first);
    take_epoch(replay, walk, n, batch_size, second);
    check_permutation(first, second, n);
    CHECK(memcmp(first, second, (size_t)n * sizeof *first) != 0);
    check_permutation(first, first, n);
    draw(replay, MANY, &drawn);
    for (int64_t i = 0; i < n; ++i) CHECK(place_of(&drawn, MANY, first[i]) >= 0);

    /* The same calls give the same epochs, also if draws and adds come in between, and later draws agree. */
    CHECK_OK(per_epochs_create(twin, 3, n, 1, NULL, &twin_walk));
    take_epoch(twin, twin_walk, n, n, third);
    CHECK(memcmp(first, third, (size_t)n * sizeof *first) == 0);
    draw(twin, MANY, &out);
    CHECK(memcmp(out.ids, drawn.ids, sizeof out.ids) == 0);
    add_full(twin, 2, 201, 0, GOES_ON, 202);
    take_epoch(twin, twin_walk, n, n, third);
    CHECK(memcmp(second, third, (size_t)n * sizeof *first) == 0);
    take_epoch(replay, walk, n, batch_size, first);
    take_epoch(twin, twin_walk, n, n, third);
    CHECK(memcmp(first, third, (size_t)n * sizeof *first) == 0);

    /* The epochs are over. */
    for (int64_t i = 0; i < 3; ++i) {
        CHECK(next(replay, walk, &out) == 0);
        CHECK(out.ids[0] == 0 && out.weights[0] == 0); /* nothing was written */
    }
    per_epochs_free(walk);
    per_epochs_free(twin_walk);
    free_both(replay, twin);
}

/* The rows of a minibatch equal those of a draw; only weights and probabilities differ. */
static void rows_are_those_of_draws(void) {
    static rows drawn, out;
    per_replay* replay = filled(9, 3);
    per_epochs* walk;
    int64_t j;
    set_priority(replay, 27 * ENVS, 5);
    draw(replay, MANY, &drawn);
    CHECK_OK(per_epochs_create(replay, 1, MANY, 0, NULL, &walk));
    int64_t count = next(replay, walk, &out);
    CHECK(count == live_of(replay));
    for (int64_t i = 0; i < count; ++i) {
        j = place_of(&drawn, MANY, out.ids[i]);
        CHECK(j >= 0 && out.observation[i] == drawn.observation[j] && out.next[i] == drawn.next[j]);
        CHECK(out.reward[i] == drawn.reward[j] && out.discount[i] == drawn.discount[j]);
        CHECK(out.n_steps[i] == drawn.n_steps[j] && out.terminated[i] == drawn.terminated[j]);
        CHECK(out.truncated[i] == drawn.truncated[j] && out.priorities[i] == drawn.priorities[j]);
        CHECK(out.weights[i] == 1 && out.probabilities[i] == (float)(1.0 / (double)count));
    }
    per_epochs_free(walk);
    per_replay_free(replay);
}

static void last_minibatch_is_smaller_or_dropped(void) {
    static rows out;
    static const int64_t kept[] = {4, 4, 2, 4, 4, 2, 0}, dropped[] = {4, 4, 4, 4, 0}, exact[] = {5, 5, 5, 5, 0};
    per_replay* replay = create_plain(20, 1);
    per_epochs* walk;
    add_run(replay, 0, 10);
    CHECK_OK(per_epochs_create(replay, 2, 4, 0, NULL, &walk));
    for (int t = 0; t < 7; ++t) CHECK(next(replay, walk, &out) == kept[t]);
    per_epochs_free(walk);
    CHECK_OK(per_epochs_create(replay, 2, 4, 1, NULL, &walk));
    for (int t = 0; t < 5; ++t) CHECK(next(replay, walk, &out) == dropped[t]);
    per_epochs_free(walk);
    CHECK_OK(per_epochs_create(replay, 2, 5, -1, NULL, &walk));
    for (int t = 0; t < 5; ++t) CHECK(next(replay, walk, &out) == exact[t]);
    per_epochs_free(walk);
    per_replay_free(replay);
}

/* Over 6000 epochs each of the 6 orders of 3 transitions is expected 1000 times: chi-square with 5 degrees of freedom,
   seed 1; the probability of more than 30 is 1 in 68000. */
static void orders_are_uniform(void) {
    static rows out;
    per_replay_options options = replay_options(20, 1);
    per_epochs* walk;
    double counts[6] = {0}, chi_square = 0;
    options.seed = 1;
    per_replay* replay = create_replay(&options);
    add_run(replay, 0, 3);
    CHECK_OK(per_epochs_create(replay, 6000, 3, 0, NULL, &walk));
    while (next(replay, walk, &out) > 0) counts[out.ids[0] * 2 + (out.ids[1] > out.ids[2])] += 1;
    for (int t = 0; t < 6; ++t) chi_square += (counts[t] - 1000) * (counts[t] - 1000) / 1000;
    CHECK(chi_square < 30);
    per_epochs_free(walk);
    per_replay_free(replay);
}

int main(void) {
    each_once_an_epoch(1, 7);
    each_once_an_epoch(3, 1);
    each_once_an_epoch(1, 1000);
    rows_are_those_of_draws();
    last_minibatch_is_smaller_or_dropped();
    orders_are_uniform();
    per_epochs_free(NULL);
    return 0;
}

/*
 * At each of many random calls, the rate limiter allows what per.h specifies, computed here from all adds and draws. A
 * refused call changes nothing, and one side can always proceed.
 */
#include "replay_check.h"

static per_replay* limited(double samples_per_insert, int64_t tolerance, int64_t min_size, int64_t n_envs) {
    per_replay_options options = replay_options(200 * n_envs, n_envs);
    set_rate_limit(&options, samples_per_insert, tolerance, min_size);
    return create_replay(&options);
}

/* `length` steps of all environments. */
static per_status add_steps(per_replay* replay, int64_t length) {
    static const float observation[4096];
    call given;
    fill_call(&given, length, observation, observation, observation, NULL, NULL);
    return per_replay_add(replay, &given.steps, NULL, NULL);
}

static per_status draw_some(per_replay* replay, int64_t batch_size) {
    static rows out;
    fill_rows(&out);
    return per_replay_sample(replay, NULL, batch_size, &out.batch, NULL);
}

static uint64_t random_state = 1;
static int64_t random_below(int64_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((random_state >> 33) % (uint64_t)n);
}

/* Converts quarters of a transition to whole transitions, rounded down. All rates below are multiples of a quarter. */
static int64_t floored_quarters(int64_t quarters) {
    return quarters >= 0 ? quarters / 4 : -((3 - quarters) / 4);
}

static void random_calls(int64_t quarters_per_insert, int64_t tolerance, int64_t min_size, int64_t n_envs) {
    const int64_t most_steps = tolerance * 4 / quarters_per_insert / n_envs, m = min_size > 1 ? min_size : 1;
    per_replay* replay = limited((double)quarters_per_insert / 4, tolerance, min_size, n_envs);
    int64_t added = 0, drawn = 0, n_refused_adds = 0, n_refused_draws = 0;
    for (int i = 0; i < rounds(4000); ++i) {
        const int64_t length = 1 + random_below(most_steps < 9 ? most_steps : 9), k = length * n_envs;
        const int64_t b = 1 + random_below(tolerance);
        const int may_add = added < m || floored_quarters(quarters_per_insert * (added + k - m)) - drawn <= tolerance;
        const int may_draw =
            added >= m && floored_quarters(quarters_per_insert * (added - m)) - drawn - b >= -tolerance;
        CHECK(may_add || may_draw);
        CHECK(per_replay_wait_to_add(replay, k, 0) == (may_add ? PER_OK : PER_ERROR_BUSY));
        CHECK(per_replay_wait_to_sample(replay, b, 0) == (may_draw ? PER_OK : PER_ERROR_BUSY));
        if (random_below(2) == 0) {
            CHECK(add_steps(replay, length) == (may_add ? PER_OK : PER_ERROR_BUSY));
            if (may_add) added += k;
            n_refused_adds += !may_add;
        } else {
            CHECK(draw_some(replay, b) == (may_draw ? PER_OK : PER_ERROR_BUSY));
            if (may_draw) drawn += b;
            n_refused_draws += !may_draw;
        }
        if (random_below(500) == 0) {
            CHECK_OK(per_replay_clear(replay, NULL));
            added = drawn = 0;
        }
    }
    CHECK(n_refused_adds > 0 && n_refused_draws > 0);
    per_replay_free(replay);
}

static void what_is_allowed_is_said(void) {
    per_replay* replay = limited(2, 8, 5, 1);
    const per_replay_options described = describe_replay(replay);
    CHECK(described.rate_limit.samples_per_insert == 2 && described.rate_limit.samples_tolerance == 8 &&
          described.rate_limit.min_size_to_sample == 5);
    CHECK_OK(add_steps(replay, 4));
    CHECK_FAILS(
        draw_some(replay, 3), PER_ERROR_BUSY,
        "batch_size is 3: the rate limiter allows no draw before 5 steps are added (min_size_to_sample); 4 are so far. "
        "wait_to_sample() waits for them");
    /* One of the 5 free steps is left, and 8 / 2 more are allowed. */
    per_replay_statistics before = stats_of(replay);
    CHECK_REFUSED(add_steps(replay, 6),
                  "steps of the call are 6: allowed are 0 .. 5, 1 up to min_size_to_sample and those that "
                  "samples_tolerance 8 with samples_per_insert 2 allows beyond it");
    CHECK(stats_of(replay).added == before.added && stats_of(replay).live == before.live);
    CHECK_OK(add_steps(replay, 5));
    before = stats_of(replay);
    CHECK_FAILS(add_steps(replay, 2), PER_ERROR_BUSY,
                "steps of the call are 2: the rate limiter allows at most 0 before more transitions are drawn "
                "(samples_per_insert 2, samples_tolerance 8); 9 steps are added, 0 transitions drawn. "
                "wait_to_add() waits for more draws");
    CHECK(stats_of(replay).added == before.added && stats_of(replay).live == before.live);
    CHECK_REFUSED(add_steps(replay, 5),
                  "steps of the call are 5: allowed by samples_tolerance 8 with samples_per_insert 2 are 0 .. 4");
    CHECK_REFUSED(per_replay_wait_to_add(replay, 5, -1), "steps of the call are 5");
    CHECK_REFUSED(draw_some(replay, 9), "batch_size is 9: allowed by samples_tolerance are 1 .. 8");
    CHECK_REFUSED(per_replay_wait_to_sample(replay, 9, -1), "batch_size is 9");
    /* 8 transitions are due, and up to 16 may be drawn. */
    CHECK_OK(draw_some(replay, 4));
    CHECK_FAILS(add_steps(replay, 3), PER_ERROR_BUSY,
                "steps of the call are 3: the rate limiter allows at most 2 before more transitions are drawn "
                "(samples_per_insert 2, samples_tolerance 8); 9 steps are added, 4 transitions drawn");
    CHECK_OK(draw_some(replay, 8));
    before = stats_of(replay);
    CHECK_FAILS(draw_some(replay, 5), PER_ERROR_BUSY,
                "batch_size is 5: the rate limiter allows at most 4 before more steps are added (samples_per_insert 2, "
                "samples_tolerance 8); 9 steps are added, 12 transitions drawn. wait_to_sample() waits for more steps");
    CHECK(stats_of(replay).samples == before.samples && stats_of(replay).beta_step == before.beta_step);
    CHECK_OK(draw_some(replay, 4));
    CHECK_FAILS(draw_some(replay, 1), PER_ERROR_BUSY, "allows at most 0");
    CHECK_OK(add_steps(replay, 4));
    CHECK_OK(draw_some(replay, 8));
    per_replay_free(replay);
}

/* A call that can never be allowed is refused even when it would fit now: 12 steps are too many. */
static void what_never_is_allowed_is_refused_at_any_time(void) {
    per_replay* replay = limited(1, 8, 1, 1);
    CHECK_REFUSED(per_replay_wait_to_add(replay, 12, -1), "allowed are 0 .. 9, 1 up to");
    CHECK_OK(per_replay_wait_to_add(replay, 9, 0));
    CHECK_OK(add_steps(replay, 1));
    CHECK_REFUSED(per_replay_wait_to_add(replay, 12, -1), "allowed by samples_tolerance 8");
    CHECK_OK(draw_some(replay, 8));
    CHECK_REFUSED(per_replay_wait_to_add(replay, 12, -1), "allowed by samples_tolerance 8");
    CHECK_REFUSED(add_steps(replay, 12), "allowed by samples_tolerance 8");
    CHECK_OK(add_steps(replay, 8));
    per_replay_free(replay);
}

/* 1 + 4 steps are allowed before a draw. On CUDA the host does not read the mask, and all its steps count. */
static void adds_of_nothing_are_allowed_at_any_time(void) {
    static const float zero[1];
    static const uint8_t mask[1] = {0};
    per_replay* replay = limited(1, 4, 1, 1);
    call given;
    CHECK_OK(add_steps(replay, 5));
    CHECK_FAILS(per_replay_wait_to_add(replay, 1, 0), PER_ERROR_BUSY, "allows at most 0");
    CHECK_OK(per_replay_wait_to_add(replay, 0, 0));
    fill_call(&given, 1, zero, zero, zero, NULL, NULL);
    given.steps.mask = array_of(mask, PER_BOOL);
    CHECK(per_replay_add(replay, &given.steps, NULL, NULL) == (on_cuda() ? PER_ERROR_BUSY : PER_OK));
    CHECK(stats_of(replay).added == 5);
    per_replay_free(replay);
}

/* A call of several steps is allowed if as many single-step calls are, whatever the state before. */
static void one_call_brings_as_much_as_several(int64_t samples_per_insert, int64_t tolerance, int64_t min_size,
                                               int64_t n_envs) {
    per_replay* ones = limited((double)samples_per_insert, tolerance, min_size, n_envs);
    int64_t most = 0;
    while (add_steps(ones, 1) == PER_OK) ++most;
    per_replay_free(ones);
    for (int64_t before = 0; before <= most; ++before) {
        for (int64_t length = 1; length < most - before + 4; ++length) {
            per_replay* at_once = limited((double)samples_per_insert, tolerance, min_size, n_envs);
            const int fits = before + length <= most;
            for (int64_t i = 0; i < before; ++i) CHECK_OK(add_steps(at_once, 1));
            CHECK((add_steps(at_once, length) == PER_OK) == fits);
            CHECK(stats_of(at_once).added == (before + (fits ? length : 0)) * n_envs);
            per_replay_free(at_once);
        }
    }
}

/* Without overwriting, a buffer of 3 lanes with 4 rows never gets more than 12 steps. */
static void a_least_size_that_is_never_there_is_refused(void) {
    per_replay_options options = replay_options(10, 3);
    options.rate_limit.min_size_to_sample = 13;
    per_replay* replay = create_replay(&options);
    per_replay_free(replay);
    options.overwrite = 0;
    CHECK_REFUSED(per_replay_create(&options, &replay), "min_size_to_sample is 13: allowed are 0 .. 12");
    options.rate_limit.min_size_to_sample = 12;
    replay = create_replay(&options);
    per_replay_free(replay);
}

static void a_least_size_alone(void) {
    per_replay* replay = limited(0, 0, 6, 2);
    CHECK_OK(add_steps(replay, 2));
    CHECK_FAILS(draw_some(replay, 100), PER_ERROR_BUSY, "before 6 steps are added (min_size_to_sample); 4 are so far");
    CHECK_OK(per_replay_wait_to_add(replay, 1000000, 0));
    CHECK_OK(add_steps(replay, 1));
    CHECK_OK(draw_some(replay, 100));
    CHECK_OK(add_steps(replay, 20));
    CHECK_OK(draw_some(replay, many()));
    per_replay_free(replay);
}

static void without_limits_nothing_waits(void) {
    per_replay* replay = limited(0, 0, 0, 1);
    CHECK_OK(per_replay_wait_to_add(replay, INT64_C(1) << 40, -1));
    CHECK_OK(per_replay_wait_to_sample(replay, 1 << 24, -1));
    CHECK_FAILS(draw_some(replay, 1), PER_ERROR_EMPTY, "");
    CHECK_OK(per_replay_stop_limiting(replay));
    per_replay_free(replay);
}

/* The mask leaves out 2 of 4 environments. On CUDA the host does not read it. */
static void steps_that_a_mask_leaves_out(void) {
    static const float zeros[4];
    static const uint8_t mask[4] = {1, 0, 0, 1};
    per_replay* replay = limited(1, 4, 1, 4);
    call given;
    CHECK_OK(add_steps(replay, 1));
    CHECK_OK(draw_some(replay, 4));
    fill_call(&given, 1, zeros, zeros, zeros, NULL, NULL);
    given.steps.mask = array_of(mask, PER_BOOL);
    for (int i = 0; i < 2; ++i)
        CHECK(per_replay_add(replay, &given.steps, NULL, NULL) == (on_cuda() && i > 0 ? PER_ERROR_BUSY : PER_OK));
    CHECK(stats_of(replay).added == (on_cuda() ? 6 : 8));
    per_replay_free(replay);
}

static void what_is_no_draw_is_not_limited(void) {
    per_replay* replay = limited(1, 1, 1, 1);
    static rows out;
    const int64_t ids[] = {0}, unit[] = {0};
    per_epochs* epochs = NULL;
    int64_t count = 0;
    CHECK_OK(add_steps(replay, 1));
    CHECK_OK(draw_some(replay, 1));
    CHECK_FAILS(draw_some(replay, 1), PER_ERROR_BUSY, "allows at most 0");
    fill_rows(&out);
    for (int i = 0; i < 3; ++i) {
        CHECK_OK(per_replay_get_windows(replay, NULL, PER_INVALID_ERROR, 1, ids, &out.batch, NULL));
        CHECK_OK(per_replay_get_units(replay, NULL, 1, unit, &out.batch, NULL, NULL, NULL));
        CHECK_OK(per_epochs_create(replay, 1, 1, 0, NULL, &epochs));
        CHECK_OK(per_epochs_next(epochs, &out.batch, &count, NULL));
        CHECK(count == 1);
        per_epochs_free(epochs);
    }
    CHECK_OK(per_replay_synchronize(replay, NULL));
    CHECK_FAILS(draw_some(replay, 1), PER_ERROR_BUSY, "1 steps are added, 1 transitions drawn");
    per_replay_free(replay);
}

static void failed_calls_do_not_count(void) {
    per_replay* replay = limited(1, 2, 2, 1);
    static rows out;
    fill_rows(&out);
    CHECK_OK(add_steps(replay, 2));
    per_sample_options options = default_sample_options();
    options.scheme = 7;
    CHECK_REFUSED(per_replay_sample(replay, &options, 2, &out.batch, NULL), "scheme");
    CHECK_OK(draw_some(replay, 2));
    CHECK_FAILS(draw_some(replay, 1), PER_ERROR_BUSY, "2 transitions drawn");
    per_replay_free(replay);
}

static void limits_end(void) {
    per_replay* replay = limited(1, 4, 2, 1);
    CHECK_OK(add_steps(replay, 4));
    CHECK_FAILS(add_steps(replay, 3), PER_ERROR_BUSY, "");
    CHECK_OK(per_replay_stop_limiting(replay));
    CHECK_OK(add_steps(replay, 50));
    CHECK_OK(draw_some(replay, many()));
    const per_replay_options described = describe_replay(replay);
    CHECK(described.rate_limit.samples_per_insert == 0 && described.rate_limit.samples_tolerance == 0 &&
          described.rate_limit.min_size_to_sample == 0);
    per_replay_free(replay);
}

int main(void) {
    what_is_allowed_is_said();
    what_never_is_allowed_is_refused_at_any_time();
    adds_of_nothing_are_allowed_at_any_time();
    one_call_brings_as_much_as_several(2, 8, 5, 1);
    one_call_brings_as_much_as_several(1, 8, 6, 2);
    one_call_brings_as_much_as_several(3, 9, 0, 1);
    one_call_brings_as_much_as_several(2, 20, 7, 3);
    a_least_size_that_is_never_there_is_refused();
    a_least_size_alone();
    without_limits_nothing_waits();
    steps_that_a_mask_leaves_out();
    what_is_no_draw_is_not_limited();
    failed_calls_do_not_count();
    limits_end();
    random_calls(4, 8, 4, 1);
    random_calls(1, 3, 0, 1);
    random_calls(33, on_cuda() ? 30 : 100, 20, 3);
    if (!on_cuda()) random_calls(4000, 1000, 1, 1); /* CUDA simulates thousands of transitions one by one */
    return 0;
}

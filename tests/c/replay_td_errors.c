/*
 * p = mean or maximum over the critics of |td_error|, + epsilon. Values that are not finite, or overflow, are an error
 * that changes nothing; with PER_INVALID_SKIP they are skipped and counted.
 */
#include <float.h>

#include "replay_check.h"

static per_replay* create_for(int32_t critics, double epsilon, int32_t on_invalid) {
    per_replay_options options = replay_options(20, 1);
    options.alpha = 1;
    options.critics = critics;
    options.epsilon = epsilon;
    options.on_invalid = on_invalid;
    per_replay* replay = create_replay(&options);
    for (int t = 0; t < 5; ++t) add_step(replay, 0, (float)t, 0);
    CHECK_LIVE(replay, 0, 1, 2, 3);
    return replay;
}

static per_replay* create(double epsilon, int32_t on_invalid) {
    return create_for(PER_CRITICS_MEAN, epsilon, on_invalid);
}

static void magnitude_plus_epsilon(void) {
    per_replay* replay = create(0.25, PER_INVALID_ERROR);
    const int64_t ids[] = {0, 1, 2, 3};
    const float td_errors[] = {-2, 0, 0.5f, -0.0f};
    CHECK_OK(write_td_errors(replay, 4, ids, 1, td_errors, NULL));
    CHECK(priority_of(replay, 0) == 2.25f && priority_of(replay, 1) == 0.25f);
    CHECK(priority_of(replay, 2) == 0.75f && priority_of(replay, 3) == 0.25f);
    CHECK(stats_of(replay).total == 3.5 && stats_of(replay).max_priority == 2.25);
    per_replay_free(replay);
}

/* Every remainder of vectorized loops, and both signs in each position. */
static void magnitudes_of_many(void) {
    enum { MOST = 40 };
    per_replay_options options = replay_options(MOST + 8, 1);
    int64_t ids[MOST];
    float td_errors[MOST];
    options.epsilon = 0.25;
    per_replay* replay = create_replay(&options);
    for (int64_t i = 0; i < MOST; ++i) ids[i] = add_full(replay, 0, (float)i, 0, GOES_ON, (float)i + 1);
    for (int64_t n = 1; n <= MOST; ++n) {
        for (int64_t i = 0; i < n; ++i) td_errors[i] = (float)((i + n) % 2 == 0 ? i + n : -i - n);
        CHECK_OK(write_td_errors(replay, n, ids, 1, td_errors, NULL));
        for (int64_t i = 0; i < n; ++i) CHECK(priority_of(replay, ids[i]) == (float)(i + n) + 0.25f);
    }
    per_replay_free(replay);
}

static void mean_over_critics(void) {
    per_replay* replay = create(1, PER_INVALID_ERROR);
    const int64_t ids[] = {2, 0};
    const float td_errors[3][2] = {{1, -4}, {-2, 4}, {6, -7}};
    CHECK_OK(write_td_errors(replay, 2, ids, 3, td_errors[0], NULL));
    CHECK(priority_of(replay, 2) == 3 + 1 && priority_of(replay, 0) == 5 + 1 && priority_of(replay, 1) == 1);
    per_replay_free(replay);
}

static void maximum_over_critics(void) {
    per_replay* replay = create_for(PER_CRITICS_MAX, 1, PER_INVALID_ERROR);
    const int64_t ids[] = {2, 0, 3};
    const float td_errors[3][3] = {{1, -4, 0}, {-2, 4, -0.0f}, {6, -7, 0}};
    CHECK_OK(write_td_errors(replay, 3, ids, 3, td_errors[0], NULL));
    CHECK(priority_of(replay, 2) == 6 + 1 && priority_of(replay, 0) == 7 + 1 && priority_of(replay, 3) == 0 + 1);
    CHECK(priority_of(replay, 1) == 1);
    per_replay_free(replay);
}

/* The largest of the finite errors must not hide one that is not finite. */
static void one_critic_that_is_not_finite(void) {
    static const float td_errors[][3] = {
        {NAN, 2, 3}, {2, NAN, 3}, {2, 3, NAN}, {-INFINITY, 2, 3}, {INFINITY, -INFINITY, 0}};
    const int64_t id = 1;
    for (int i = 0; i < 5; ++i) {
        per_replay* replay = create_for(PER_CRITICS_MAX, 0, PER_INVALID_ERROR);
        CHECK_BAD_PRIORITY(write_td_errors(replay, 1, &id, 3, td_errors[i], NULL), "td_errors[0]");
        CHECK(priority_of(replay, 1) == 1 && stats_of(replay).max_priority == 1);
        per_replay_free(replay);
    }
}

/* The sum over critics may overflow float32, the mean does not. */
static void the_mean_does_not_overflow(void) {
    per_replay* replay = create(0, PER_INVALID_ERROR);
    const int64_t id = 1;
    const float td_errors[] = {FLT_MAX, -FLT_MAX};
    CHECK_OK(write_td_errors(replay, 1, &id, 2, td_errors, NULL));
    CHECK(priority_of(replay, 1) == FLT_MAX);
    per_replay_free(replay);
}

static void check_invalid(const float* bad, int64_t n_critics, double epsilon) {
    per_replay *strict = create(epsilon, PER_INVALID_ERROR), *skipping = create(epsilon, PER_INVALID_SKIP);
    const int64_t ids[] = {0, 1, 2};
    float td_errors[3 * 3];
    per_replay_statistics before = stats_of(strict), after;
    /* Entry 1 is bad, its neighbours are good. */
    for (int64_t c = 0; c < n_critics; ++c) {
        td_errors[3 * c] = 2;
        td_errors[3 * c + 1] = bad[c];
        td_errors[3 * c + 2] = -3;
    }
    CHECK_BAD_PRIORITY(write_td_errors(strict, 3, ids, n_critics, td_errors, NULL), "td_errors");
    if (!on_cuda()) {
        CHECK(strstr(per_last_error(), "1]") != NULL);
        check_same_statistics(strict, &before);
        CHECK(priority_of(strict, 0) == 1 && priority_of(strict, 1) == 1 && priority_of(strict, 2) == 1);
    }

    CHECK_OK(write_td_errors(skipping, 3, ids, n_critics, td_errors, NULL));
    CHECK(priority_of(skipping, 0) == (float)(2 + epsilon) && priority_of(skipping, 2) == (float)(3 + epsilon));
    CHECK(priority_of(skipping, 1) == 1);
    after = stats_of(skipping);
    CHECK(after.rejected_updates == 1 && after.stale_updates == 0 && after.max_priority == (float)(3 + epsilon));
    free_both(strict, skipping);
}

static void errors_that_are_not_finite(void) {
    const float nan[] = {NAN}, infinite[] = {INFINITY}, negative[] = {-INFINITY};
    const float of_critics[] = {1, NAN, 1}, of_others[] = {INFINITY, -INFINITY, 0};
    check_invalid(nan, 1, 0);
    check_invalid(infinite, 1, 0);
    check_invalid(negative, 1, 0);
    check_invalid(of_critics, 3, 1e-6);
    check_invalid(of_others, 3, 1e-6);
}

static void a_priority_that_overflows(void) {
    const float largest[] = {FLT_MAX};
    check_invalid(largest, 1, 1e32); /* half a unit in the last place of FLT_MAX is 1.01e31 */
}

static void priorities_that_are_not_allowed(void) {
    static const float bad[] = {NAN, INFINITY, -INFINITY, -1, -FLT_MIN, -1e-45f};
    for (int i = 0; i < 6; ++i) {
        per_replay *strict = create(0, PER_INVALID_ERROR), *skipping = create(0, PER_INVALID_SKIP);
        const int64_t ids[] = {0, 1};
        const float priorities[] = {7, bad[i]};
        CHECK_BAD_PRIORITY(write_priorities(strict, 2, ids, priorities, NULL), "priorities[1]");
        CHECK(priority_of(strict, 1) == 1 && priority_of(strict, 0) == (on_cuda() ? 7 : 1));
        CHECK(stats_of(strict).max_priority == (on_cuda() ? 7 : 1));
        CHECK_OK(write_priorities(skipping, 2, ids, priorities, NULL));
        CHECK(priority_of(skipping, 0) == 7 && priority_of(skipping, 1) == 1);
        CHECK(stats_of(skipping).rejected_updates == 1);
        free_both(strict, skipping);
    }
}

/* epsilon is not added to given priorities, and -0 counts as 0. */
static void given_priorities_are_kept_as_they_are(void) {
    per_replay* replay = create(0.5, PER_INVALID_ERROR);
    const int64_t ids[] = {0, 1, 2};
    const float priorities[] = {0, -0.0f, FLT_MAX};
    CHECK_OK(write_priorities(replay, 3, ids, priorities, NULL));
    CHECK(priority_of(replay, 0) == 0 && priority_of(replay, 1) == 0 && priority_of(replay, 2) == FLT_MAX);
    CHECK(live_of(replay) == 4);
    per_replay_free(replay);
}

/* per_replay_add() treats bad values in the same way. */
static void values_given_with_a_step(void) {
    static const float bad[] = {NAN, INFINITY, -1};
    const float observation = 5, reward = 0;
    for (int i = 0; i < 3; ++i) {
        per_replay *strict = create(0.5, PER_INVALID_ERROR), *skipping = create(0.5, PER_INVALID_SKIP);
        call given;
        fill_call(&given, 1, &observation, &observation, &reward, NULL, NULL);
        given.steps.priorities = array_of(&bad[i], PER_FLOAT32);
        /* On CUDA the priority is skipped, not the step. */
        CHECK_BAD_PRIORITY(per_replay_add(strict, &given.steps, NULL, NULL),
                           "priorities of step 0 of environment 0 gives the priority ");
        CHECK(stats_of(strict).added == 5 + on_cuda() && stats_of(strict).cuts == 0);
        CHECK(live_of(strict) == (on_cuda() ? 6 : 4));
        CHECK_OK(per_replay_add(skipping, &given.steps, NULL, NULL));
        CHECK(stats_of(skipping).added == 6 && stats_of(skipping).rejected_updates == 1);
        CHECK(priority_of(skipping, 5) == 1); /* as if no priority had been given */
        given.steps.priorities = array_of(NULL, 0);
        given.steps.td_errors = array_of(&bad[i], PER_FLOAT32);
        if (bad[i] < 0) {
            CHECK_OK(per_replay_add(strict, &given.steps, NULL, NULL));
            CHECK(priority_of(strict, 5 + on_cuda()) == 1.5f);
        } else {
            CHECK_BAD_PRIORITY(per_replay_add(strict, &given.steps, NULL, NULL),
                               "td_errors of step 0 of environment 0 gives the priority ");
        }
        free_both(strict, skipping);
    }
}

int main(void) {
    magnitude_plus_epsilon();
    magnitudes_of_many();
    mean_over_critics();
    maximum_over_critics();
    one_critic_that_is_not_finite();
    the_mean_does_not_overflow();
    errors_that_are_not_finite();
    a_priority_that_overflows();
    priorities_that_are_not_allowed();
    given_priorities_are_kept_as_they_are();
    values_given_with_a_step();
    return 0;
}

/* A transition gets the largest priority when it becomes live: the largest ever seen, or the largest that is live
   now. */
#include "replay_check.h"

static per_replay* create(int64_t rows, int64_t n_envs, int32_t max_priority) {
    per_replay_options options = replay_options(rows, n_envs);
    options.alpha = 1;
    options.epsilon = 0;
    options.max_priority = max_priority;
    return create_replay(&options);
}

static int64_t add_with_priority(per_replay* replay, float observation, float next, float priority) {
    const float reward = 0;
    int64_t id = -7;
    call given;
    fill_call(&given, 1, &observation, &next, &reward, NULL, NULL);
    given.steps.priorities = array_of(&priority, PER_FLOAT32);
    CHECK_OK(per_replay_add(replay, &given.steps, &id, NULL));
    return id;
}

static void largest_ever(void) {
    per_replay* replay = create(8, 1, PER_MAX_EVER);
    CHECK(stats_of(replay).max_priority == 1);
    add_step(replay, 0, 0, 0);
    add_step(replay, 0, 1, 0);
    CHECK(priority_of(replay, 0) == 1);
    set_priority(replay, 0, 0.25f); /* smaller ones do not lower it */
    add_step(replay, 0, 2, 0);
    CHECK(priority_of(replay, 1) == 1);
    set_priority(replay, 1, 5);
    set_priority(replay, 1, 0.5f);
    CHECK(stats_of(replay).max_priority == 5);
    add_step(replay, 0, 3, 0); /* row 2 becomes live now, row 3 after the next step */
    CHECK(priority_of(replay, 2) == 5);
    set_priority(replay, 2, 9);
    add_step(replay, 0, 4, 0);
    CHECK(priority_of(replay, 3) == 9);
    per_replay_free(replay);
}

static void largest_now(void) {
    per_replay* replay = create(8, 1, PER_MAX_NOW);
    CHECK(stats_of(replay).max_priority == 1); /* nothing is live */
    add_step(replay, 0, 0, 0);
    add_step(replay, 0, 1, 0);
    CHECK(priority_of(replay, 0) == 1);
    set_priority(replay, 0, 50);
    CHECK(stats_of(replay).max_priority == 50);
    add_step(replay, 0, 2, 0);
    CHECK(priority_of(replay, 1) == 50);
    set_priority(replay, 1, 0.25f);
    set_priority(replay, 0, 0.5f);
    CHECK(stats_of(replay).max_priority == 0.5);
    add_step(replay, 0, 3, 0);
    CHECK(priority_of(replay, 2) == 0.5f);
    set_priority(replay, 0, 40);
    for (int t = 4; t < 8; ++t) { /* rows 0 .. 7 exist */
        add_step(replay, 0, (float)t, 0);
        set_priority(replay, t - 1, 2);
    }
    CHECK(stats_of(replay).max_priority == 40);
    add_step(replay, 0, 8, 0);                  /* overwrites row 0 and its priority */
    CHECK(stats_of(replay).max_priority == 40); /* row 7 got it in the same step, before row 0 was overwritten: */
    CHECK(priority_of(replay, 7) == 40);
    set_priority(replay, 7, 2);
    CHECK(stats_of(replay).max_priority == 2);
    add_step(replay, 0, 9, 0);
    CHECK(priority_of(replay, 8) == 2);
    CHECK_OK(per_replay_clear(replay, NULL));
    CHECK(stats_of(replay).max_priority == 1);
    per_replay_free(replay);
}

/* All priorities are 0: the largest live one counts, even 0. */
static void largest_now_of_zeros(void) {
    per_replay* replay = create(8, 1, PER_MAX_NOW);
    add_step(replay, 0, 0, 0);
    add_step(replay, 0, 1, 0);
    set_priority(replay, 0, 0);
    CHECK(stats_of(replay).max_priority == 0 && live_of(replay) == 1);
    add_step(replay, 0, 2, 0);
    CHECK(priority_of(replay, 1) == 0);
    per_replay_free(replay);
}

/* A given priority belongs to its transition. It raises the maximum at once, but only for later calls. */
static void given_priorities(void) {
    per_replay* replay = create(40, 2, PER_MAX_EVER);
    const float observations[] = {0, 100}, next[] = {1, 101}, more[] = {2, 102}, rewards[] = {0, 0};
    const float priorities[] = {7, 0.5f};
    call given;
    int64_t ids[2];
    add_full(replay, 1, 99, 0, GOES_ON, 100); /* id 1 */
    fill_call(&given, 1, observations, NULL, rewards, NULL, NULL);
    given.steps.priorities = array_of(priorities, PER_FLOAT32);
    CHECK_OK(per_replay_add(replay, &given.steps, ids, NULL));
    CHECK(ids[0] == 0 && ids[1] == 3);
    CHECK(stats_of(replay).max_priority == 7 && live_of(replay) == 1);
    CHECK(priority_of(replay, 0) == 0); /* stored until the transition is live */
    add_given(replay, 1, next, more, rewards, NULL, NULL, ids);
    CHECK(ids[0] == 2 && ids[1] == 5);
    CHECK(priority_of(replay, 0) == 7 && priority_of(replay, 3) == 0.5f);
    CHECK(priority_of(replay, 2) == 7 && priority_of(replay, 5) == 7); /* no priority was given for these */
    per_replay_free(replay);
}

/* A call gives its steps priorities 7 and 2. Transitions that become live in it get 1, the largest before the call. */
static void a_priority_counts_for_later_calls(void) {
    per_replay* replay = create(40, 2, PER_MAX_EVER);
    const float observations[] = {0, 100}, next[] = {1, 101}, rewards[] = {0, 0}, priorities[] = {7, 2};
    call given;
    add_step(replay, 0, 50, 0); /* id 0 becomes live below */
    add_step(replay, 1, 60, 0); /* id 1 becomes live below */
    fill_call(&given, 1, observations, next, rewards, NULL, NULL);
    given.steps.priorities = array_of(priorities, PER_FLOAT32);
    CHECK_OK(per_replay_add(replay, &given.steps, NULL, NULL));
    CHECK(priority_of(replay, 0) == 1 && priority_of(replay, 1) == 1);
    CHECK(priority_of(replay, 2) == 7 && priority_of(replay, 3) == 2);
    CHECK(stats_of(replay).max_priority == 7);
    per_replay_free(replay);
}

/* Two environments with lanes of 4 rows. The oldest row of the first has priority 40, all other live rows 2. */
static per_replay* nearly_full(void) {
    per_replay* replay = create(8, 2, PER_MAX_NOW);
    for (int t = 0; t < 4; ++t) add_step(replay, 0, (float)t, 0);       /* ids 0, 2, 4 and 6; 6 is not live yet */
    for (int t = 0; t < 3; ++t) add_step(replay, 1, 100 + (float)t, 0); /* ids 1, 3 and 5; 5 is not live yet */
    for (int64_t id = 1; id < 5; ++id) set_priority(replay, id, 2);
    set_priority(replay, 0, 40);
    CHECK(live_of(replay) == 5);
    return replay;
}

/* The largest live priority is determined before each step, also in a call of several steps. */
static void the_largest_now_is_taken_once_for_each_step(void) {
    const float observations[4] = {4, 103, 5, 104}, rewards[4] = {0, 0, 0, 0};
    per_replay* replay = nearly_full();
    add_given(replay, 1, observations, NULL, rewards, NULL, NULL, NULL); /* overwrites id 0 */
    CHECK(priority_of(replay, 0) == 0 && priority_of(replay, 6) == 40 && priority_of(replay, 5) == 40);
    per_replay_free(replay);

    replay = nearly_full();
    set_priority(replay, 6, 3); /* so that the 40 is not passed on to them */
    set_priority(replay, 5, 3);
    add_given(replay, 2, observations, NULL, rewards, NULL, NULL, NULL);
    CHECK(priority_of(replay, 6) == 3 && priority_of(replay, 5) == 3);
    CHECK(priority_of(replay, 8) == 3 && priority_of(replay, 7) == 3); /* live after the second step */
    per_replay_free(replay);
}

/* With two-step returns, the priority given with a step counts for a row that the next step of the call makes live. */
static void a_given_priority_counts_from_the_next_step_on(void) {
    const float observations[2] = {2, 3}, rewards[2] = {0, 0}, priorities[2] = {7, 2};
    per_replay_options options = replay_options(8, 1);
    call given;
    options.n_step = 2;
    options.max_priority = PER_MAX_EVER;
    per_replay* replay = create_replay(&options);
    add_step(replay, 0, 0, 0);
    add_step(replay, 0, 1, 0);
    fill_call(&given, 2, observations, NULL, rewards, NULL, NULL);
    given.steps.priorities = array_of(priorities, PER_FLOAT32);
    CHECK_OK(per_replay_add(replay, &given.steps, NULL, NULL));
    CHECK(priority_of(replay, 0) == 1 && priority_of(replay, 1) == 7);
    per_replay_free(replay);
}

static void td_errors_given_with_a_step(void) {
    per_replay_options options = replay_options(8, 1);
    const float observation = 0, next = 1, reward = 0;
    const double td_error = -2.5;
    const float priority = 1;
    call given;
    options.epsilon = 0.5;
    per_replay* replay = create_replay(&options);
    fill_call(&given, 1, &observation, &next, &reward, NULL, NULL);
    given.steps.td_errors = array_of(&td_error, PER_FLOAT64);
    CHECK_OK(per_replay_add(replay, &given.steps, NULL, NULL));
    CHECK(priority_of(replay, 0) == 3 && stats_of(replay).max_priority == 3);
    given.steps.priorities = array_of(&priority, PER_FLOAT32);
    CHECK_REFUSED(per_replay_add(replay, &given.steps, NULL, NULL), "td_errors");
    CHECK(stats_of(replay).added == 1);
    per_replay_free(replay);
}

static void given_zero_is_a_priority(void) {
    per_replay* replay = create(8, 1, PER_MAX_EVER);
    add_with_priority(replay, 0, 1, 0);
    add_with_priority(replay, 1, 2, 3);
    CHECK(live_of(replay) == 2 && priority_of(replay, 0) == 0 && stats_of(replay).total == 3);
    per_replay_free(replay);
}

int main(void) {
    largest_ever();
    largest_now();
    largest_now_of_zeros();
    given_priorities();
    a_priority_counts_for_later_calls();
    the_largest_now_is_taken_once_for_each_step();
    a_given_priority_counts_from_the_next_step_on();
    td_errors_given_with_a_step();
    given_zero_is_a_priority();
    return 0;
}

/* Environments that reset themselves after an end (Gymnasium's autoreset modes): no step joins two episodes. */
#include "replay_check.h"

static per_replay* create(int32_t autoreset) {
    per_replay_options options = replay_options(20, 1);
    options.gamma = 0.5;
    options.autoreset = autoreset;
    return create_replay(&options);
}

/* next_step: after an end the environment ignores one action, and that step's observation is still the final one. */
static void next_step_drops_the_step_in_which_the_environment_resets(void) {
    per_replay* replay = create(PER_AUTORESET_NEXT_STEP);
    CHECK(add_full(replay, 0, 0, 1, GOES_ON, 1) == 0);
    CHECK(add_full(replay, 0, 1, 2, TERMINATED, 2) == 1);
    CHECK(add_full(replay, 0, 2, 0, GOES_ON, 10) == -1); /* 2 was final; 10 is the first one after the reset */
    CHECK(stats_of(replay).dropped == 1 && stats_of(replay).added == 2);
    CHECK(add_full(replay, 0, 10, 3, GOES_ON, 11) == 3);
    CHECK(add_full(replay, 0, 11, 4, TRUNCATED, 12) == 4);
    CHECK(add_full(replay, 0, 12, 0, GOES_ON, 20) == -1);
    CHECK(add_full(replay, 0, 20, 5, GOES_ON, 21) == 6);
    CHECK(stats_of(replay).dropped == 2 && stats_of(replay).added == 5 && stats_of(replay).cuts == 0);
    CHECK(stats_of(replay).episodes == 2);
    CHECK_LIVE(replay, 0, 1, 3, 4, 6);
    CHECK_WINDOW(replay, 1, 1, 2, 0, 2, 1, 1, 0);
    CHECK_WINDOW(replay, 3, 10, 3, 0.5f, 11, 1, 0, 0);
    CHECK_WINDOW(replay, 4, 11, 4, 0.5f, 12, 1, 0, 1);
    per_replay_free(replay);
}

/* Only one step is dropped, and only if it brings the final observation. */
static void next_step_drops_nothing_else(void) {
    per_replay* replay = create(PER_AUTORESET_NEXT_STEP);
    add_full(replay, 0, 0, 1, TERMINATED, 1);
    CHECK(add_full(replay, 0, 10, 1, GOES_ON, 11) == 2); /* reset by hand */
    CHECK(add_full(replay, 0, 11, 1, TERMINATED, 12) == 3);
    CHECK(add_full(replay, 0, 12, 1, GOES_ON, 12) == -1);
    CHECK(add_full(replay, 0, 12, 1, GOES_ON, 13) == 5); /* the reset observation may equal the final one */
    CHECK(stats_of(replay).dropped == 1);
    /* After an end at an unknown observation there is nothing to compare. */
    CHECK(add_unknown_end(replay, 0, 13, 1, TRUNCATED) == 6);
    CHECK(add_full(replay, 0, 13, 1, GOES_ON, 14) == 7);
    CHECK(stats_of(replay).dropped == 1);
    per_replay_free(replay);
}

/* Observations are compared as numbers, also with next observations stored separately. */
static void next_step_knows_the_final_observation_by_its_numbers(void) {
    for (int apart = 0; apart < 2; ++apart) {
        per_replay_options options = replay_options(20, 1);
        options.autoreset = PER_AUTORESET_NEXT_STEP;
        options.store_next_observation = apart;
        per_replay* replay = create_replay(&options);
        add_full(replay, 0, 1, 1, TERMINATED, 0);
        CHECK(add_full(replay, 0, -0.0f, 0, GOES_ON, 2) == -1);
        add_full(replay, 0, 2, 1, TERMINATED, NAN);
        CHECK(add_full(replay, 0, -NAN, 0, GOES_ON, 3) == -1);
        CHECK(stats_of(replay).dropped == 2 && stats_of(replay).suspected_resets == 0);
        per_replay_free(replay);
    }
}

/* clear() between an end and the reset step: that step is still dropped. */
static void next_step_is_remembered_over_clear(void) {
    per_replay* replay = create(PER_AUTORESET_NEXT_STEP);
    add_full(replay, 0, 0, 1, TERMINATED, 1);
    CHECK_OK(per_replay_clear(replay, NULL));
    CHECK(add_full(replay, 0, 1, 0, GOES_ON, 10) == -1);
    CHECK(add_full(replay, 0, 10, 1, GOES_ON, 11) == 2);
    CHECK_LIVE(replay, 2);
    per_replay_free(replay);
}

/* One call of several steps behaves like calls of one step. */
static void next_step_in_one_call(void) {
    const float observations[] = {0, 1, 2, 10, 11}, next[] = {1, 2, 10, 11, 12}, rewards[] = {1, 2, 0, 3, 4};
    const uint8_t terminated[] = {0, 1, 0, 0, 0};
    int64_t ids[5];
    per_replay* replay = create(PER_AUTORESET_NEXT_STEP);
    add_given(replay, 5, observations, next, rewards, terminated, NULL, ids);
    CHECK(ids[0] == 0 && ids[1] == 1 && ids[2] == -1 && ids[3] == 3 && ids[4] == 4);
    CHECK_LIVE(replay, 0, 1, 3, 4);
    per_replay_free(replay);
}

/* same_step: at an end next_fields may already be the next episode's first observation; next_mask must say. */
static void same_step_needs_next_mask_at_ends(void) {
    per_replay* replay = create(PER_AUTORESET_SAME_STEP);
    const float observation = 1, next = 10, reward = 2;
    const uint8_t end = 1;
    int64_t id = -7;
    call given;
    CHECK(add_full(replay, 0, 0, 1, GOES_ON, 1) == 0);
    fill_call(&given, 1, &observation, &next, &reward, &end, NULL);
    CHECK_BAD_STEP(per_replay_add(replay, &given.steps, &id, NULL), "next_mask");
    CHECK(id == id_of_bad_step() && stats_of(replay).added == 1);
    CHECK(add_unknown_end(replay, 0, 1, 2, TRUNCATED) == 1);
    CHECK(add_full(replay, 0, 10, 3, GOES_ON, 11) == 2);
    CHECK(add_full(replay, 0, 11, 4, TRUNCATED, 12) == 3); /* with next_mask 1: the final one */
    CHECK(add_full(replay, 0, 12, 5, GOES_ON, 13) == 5);   /* and nothing is dropped */
    CHECK_LIVE(replay, 0, 2, 3, 5);
    CHECK_WINDOW(replay, 3, 11, 4, 0.5f, 12, 1, 0, 1);
    CHECK(stats_of(replay).dropped == 0 && stats_of(replay).cuts == 0);
    per_replay_free(replay);
}

/* Only ends need next_mask: it may be omitted in a call in which no episode ends. */
static void same_step_without_end(void) {
    per_replay* replay = create(PER_AUTORESET_SAME_STEP);
    const float observation = 0, next = 1, reward = 2;
    add_given(replay, 1, &observation, &next, &reward, NULL, NULL, NULL);
    CHECK_LIVE(replay, 0);
    per_replay_free(replay);
}

/* Without autoreset next_step, the final observation is added twice, unchanged. */
static void resets_that_nobody_told_of_are_counted(void) {
    const int32_t modes[] = {PER_AUTORESET_DISABLED, PER_AUTORESET_SAME_STEP};
    for (int i = 0; i < 2; ++i) {
        per_replay* replay = create(modes[i]);
        CHECK(add_full(replay, 0, 0, 1, TERMINATED, 1) == 0);
        CHECK(stats_of(replay).suspected_resets == 0);
        CHECK(add_full(replay, 0, 1, 0, GOES_ON, 10) == 2);
        CHECK(stats_of(replay).suspected_resets == 1);
        CHECK(add_full(replay, 0, 10, 1, TRUNCATED, 11) == 3);
        CHECK(add_full(replay, 0, 11, 1, TERMINATED, 12) == 5); /* an episode of one step */
        CHECK(add_full(replay, 0, 12, 0, GOES_ON, 20) == 7);
        CHECK(stats_of(replay).suspected_resets == 3 && stats_of(replay).added == 5);
        CHECK(stats_of(replay).dropped == 0 && stats_of(replay).cuts == 0);
        CHECK_LIVE(replay, 0, 2, 3, 5, 7);
        per_replay_free(replay);
    }
}

/* With next_step, a reset step has no reward and no end. A step with either belongs to an environment that was reset
   earlier. */
static void reset_steps_are_counted_only_if_they_cannot_be_some(void) {
    per_replay* replay = create(PER_AUTORESET_NEXT_STEP);
    add_full(replay, 0, 0, 1, TERMINATED, 1);
    CHECK(add_full(replay, 0, 1, 0, GOES_ON, 10) == -1);
    CHECK(stats_of(replay).suspected_resets == 0);
    add_full(replay, 0, 10, 1, TERMINATED, 11);
    CHECK(add_full(replay, 0, 11, 0.5f, GOES_ON, 20) == -1);
    CHECK(stats_of(replay).suspected_resets == 1);
    add_full(replay, 0, 20, 1, TERMINATED, 21);
    CHECK(add_full(replay, 0, 21, 0, TRUNCATED, 22) == -1);
    add_full(replay, 0, 30, 1, TERMINATED, 31);
    CHECK(add_full(replay, 0, 31, -1, GOES_ON, 40) == -1);
    add_full(replay, 0, 40, 1, TRUNCATED, 41);
    CHECK(add_full(replay, 0, 41, 0, TERMINATED, 42) == -1);
    CHECK(stats_of(replay).suspected_resets == 4 && stats_of(replay).dropped == 5);
    per_replay_free(replay);
}

/* A start after another observation, after a manual cut, after an unknown end, or within an episode is not a reset. */
static void episodes_that_begin_elsewhere_are_not_counted(void) {
    per_replay* replay = create(PER_AUTORESET_DISABLED);
    const float observations[] = {0, 1, 2, 2, 9, 3}, next[] = {1, 2, 2, 9, 3, 4}, rewards[6] = {0};
    const uint8_t terminated[] = {0, 0, 0, 1, 0, 0}, truncated[] = {0, 0, 0, 0, 1, 0};
    add_full(replay, 0, 0, 0, TERMINATED, 1);
    add_full(replay, 0, 10, 0, GOES_ON, 1);
    CHECK_OK(per_replay_cut(replay, 0, NULL, NULL));
    add_full(replay, 0, 1, 0, GOES_ON, 2);
    add_unknown_end(replay, 0, 2, 0, TRUNCATED);
    add_full(replay, 0, 2, 0, TERMINATED, -1);
    add_full(replay, 0, 0, 0, GOES_ON, 0);
    CHECK(stats_of(replay).suspected_resets == 0);
    /* In one call, the steps that end with observations 2 and 9 are followed by the announced observations. */
    add_given(replay, 6, observations, next, rewards, terminated, truncated, NULL);
    CHECK(stats_of(replay).suspected_resets == 2);
    per_replay_free(replay);
}

static void disabled_drops_nothing(void) {
    per_replay* replay = create(PER_AUTORESET_DISABLED);
    CHECK(add_full(replay, 0, 0, 1, TERMINATED, 1) == 0);
    CHECK(add_full(replay, 0, 1, 2, GOES_ON, 2) == 2);
    CHECK_LIVE(replay, 0, 2);
    CHECK(stats_of(replay).dropped == 0);
    per_replay_free(replay);
}

int main(void) {
    next_step_drops_the_step_in_which_the_environment_resets();
    next_step_drops_nothing_else();
    next_step_knows_the_final_observation_by_its_numbers();
    next_step_is_remembered_over_clear();
    next_step_in_one_call();
    same_step_needs_next_mask_at_ends();
    same_step_without_end();
    resets_that_nobody_told_of_are_counted();
    reset_steps_are_counted_only_if_they_cannot_be_some();
    episodes_that_begin_elsewhere_are_not_counted();
    disabled_drops_nothing();
    return 0;
}

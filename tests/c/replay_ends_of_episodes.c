/*
 * How episodes start and end (n_step 1): a truncated one keeps its true final observation, and an unknown one is never
 * invented. A row's next observation is the one after it, whether it was given or came with the next step.
 */
#include "replay_check.h"

static per_replay* create(void) {
    per_replay_options options = replay_options(20, 1);
    options.gamma = 0.5;
    return create_replay(&options);
}

static void final_observation_of_a_truncated_episode_is_true(void) {
    per_replay* replay = create();
    CHECK(add_step(replay, 0, 0, 1) == 0);
    CHECK_NONE_LIVE(replay); /* until the next step brings the observation after it */
    CHECK(add_step(replay, 0, 1, 2) == 1);
    CHECK_LIVE(replay, 0);
    CHECK(add_full(replay, 0, 2, 3, TRUNCATED, 99) == 2);
    CHECK_LIVE(replay, 0, 1, 2);
    CHECK_WINDOW(replay, 0, 0, 1, 0.5f, 1, 1, 0, 0);
    CHECK_WINDOW(replay, 1, 1, 2, 0.5f, 2, 1, 0, 0);
    CHECK_WINDOW(replay, 2, 2, 3, 0.5f, 99, 1, 0, 1);
    /* Row 3 is the final observation. The first step of the next episode changes none of the above. */
    CHECK(add_step(replay, 0, 10, 11) == 4);
    CHECK_LIVE(replay, 0, 1, 2);
    CHECK_WINDOW(replay, 2, 2, 3, 0.5f, 99, 1, 0, 1);
    CHECK(add_full(replay, 0, 11, 12, TERMINATED, 98) == 5);
    CHECK_LIVE(replay, 0, 1, 2, 4, 5);
    CHECK_WINDOW(replay, 4, 10, 11, 0.5f, 11, 1, 0, 0);
    CHECK_WINDOW(replay, 5, 11, 12, 0, 98, 1, 1, 0);
    CHECK(stats_of(replay).episodes == 2 && stats_of(replay).cuts == 0 && stats_of(replay).added == 5);
    per_replay_free(replay);
}

static void given_next_observations_make_a_step_live_at_once(void) {
    per_replay* replay = create();
    add_full(replay, 0, 0, 1, GOES_ON, 1);
    CHECK_LIVE(replay, 0);
    CHECK_WINDOW(replay, 0, 0, 1, 0.5f, 1, 1, 0, 0);
    CHECK(add_full(replay, 0, 1, 2, GOES_ON, 2) == 1); /* takes the row that held observation 1 */
    CHECK_LIVE(replay, 0, 1);
    CHECK_WINDOW(replay, 0, 0, 1, 0.5f, 1, 1, 0, 0);
    CHECK(add_step(replay, 0, 2, 3) == 2); /* given on some steps and not on others */
    CHECK_LIVE(replay, 0, 1);
    CHECK(add_full(replay, 0, 3, 4, GOES_ON, 4) == 3);
    CHECK_LIVE(replay, 0, 1, 2, 3);
    CHECK_WINDOW(replay, 2, 2, 3, 0.5f, 3, 1, 0, 0);
    CHECK(stats_of(replay).cuts == 0 && stats_of(replay).episodes == 0);
    per_replay_free(replay);
}

static void an_end_needs_its_final_observation(void) {
    per_replay* replay = create();
    int64_t id = -7;
    add_step(replay, 0, 0, 1);
    for (end how = TERMINATED; how <= TRUNCATED; ++how) {
        CHECK_BAD_STEP(try_step(replay, 0, 1, 2, how, NEXT_LEFT_OUT, 0, &id), "next_");
        CHECK(id == id_of_bad_step() && stats_of(replay).added == 1 && live_of(replay) == 0);
    }
    CHECK(add_step(replay, 0, 1, 2) == 1);
    per_replay_free(replay);
}

static void unknown_final_observations(void) {
    per_replay* replay = create();
    add_step(replay, 0, 0, 1);
    CHECK(add_unknown_end(replay, 0, 1, 2, TRUNCATED) == 1);
    CHECK_LIVE(replay, 0); /* row 1 is only the observation after row 0 */
    CHECK_WINDOW(replay, 0, 0, 1, 0.5f, 1, 1, 0, 0);
    CHECK(priority_of(replay, 1) == 0);
    CHECK(add_step(replay, 0, 10, 11) == 2);
    CHECK(add_unknown_end(replay, 0, 11, 12, TERMINATED) == 3);
    CHECK_LIVE(replay, 0, 2, 3);
    CHECK_WINDOW(replay, 3, 11, 12, 0, 11, 1, 1, 0);
    CHECK(add_step(replay, 0, 20, 21) == 4);
    CHECK_WINDOW(replay, 3, 11, 12, 0, 11, 1, 1, 0);
    CHECK_LIVE(replay, 0, 2, 3);
    CHECK(stats_of(replay).episodes == 2 && stats_of(replay).cuts == 0);
    per_replay_free(replay);
}

/* next_mask 0 in the middle of an episode only omits the next observation. */
static void next_mask_in_the_middle_of_an_episode(void) {
    per_replay* replay = create();
    const float observation = 0, next = NAN, reward = 1;
    const uint8_t unknown = 0;
    call given;
    fill_call(&given, 1, &observation, &next, &reward, NULL, NULL);
    given.steps.next_mask = array_of(&unknown, PER_BOOL);
    CHECK_OK(per_replay_add(replay, &given.steps, NULL, NULL));
    CHECK_NONE_LIVE(replay);
    add_step(replay, 0, 5, 1);
    CHECK_WINDOW(replay, 0, 0, 1, 0.5f, 5, 1, 0, 0);
    CHECK(stats_of(replay).cuts == 0);
    per_replay_free(replay);
}

/* The ends of two environments do not affect each other. Ids are k * n_envs + environment. */
static void lanes_are_apart(void) {
    per_replay_options options = replay_options(40, 2);
    const float observations[3][2] = {{0, 100}, {1, 101}, {2, 102}}, next[3][2] = {{1, 101}, {9, 102}, {3, 103}};
    const float rewards[3][2] = {{1, 2}, {3, 4}, {5, 6}};
    const uint8_t terminated[3][2] = {{0, 0}, {1, 0}, {0, 0}}, none[3][2] = {{0, 0}, {0, 0}, {0, 0}};
    int64_t ids[3][2];
    options.gamma = 0.5;
    per_replay* replay = create_replay(&options);
    add_given(replay, 3, observations[0], next[0], rewards[0], terminated[0], none[0], ids[0]);
    CHECK(ids[0][0] == 0 && ids[0][1] == 1 && ids[1][0] == 2 && ids[1][1] == 3);
    CHECK(ids[2][0] == 6 && ids[2][1] == 5); /* environment 0 used row 2 for its final observation */
    CHECK_LIVE(replay, 0, 1, 2, 3, 5, 6);
    CHECK_WINDOW(replay, 2, 1, 3, 0, 9, 1, 1, 0);
    CHECK_WINDOW(replay, 6, 2, 5, 0.5f, 3, 1, 0, 0);
    CHECK_WINDOW(replay, 3, 101, 4, 0.5f, 102, 1, 0, 0);
    CHECK_WINDOW(replay, 5, 102, 6, 0.5f, 103, 1, 0, 0);
    per_replay_free(replay);
}

int main(void) {
    final_observation_of_a_truncated_episode_is_true();
    given_next_observations_make_a_step_live_at_once();
    an_end_needs_its_final_observation();
    unknown_final_observations();
    next_mask_in_the_middle_of_an_episode();
    lanes_are_apart();
    return 0;
}

/*
 * overwrite 0: a full lane refuses steps, and a call with one step that does not fit adds nothing. CUDA skips the steps
 * that do not fit, as if their mask were 0, and reports their number. */
#include "replay_check.h"

/* A call in which no step fits. */
static void check_refused(per_replay* replay, const call* given) {
    int64_t ids[2] = {-7, -7};
    per_replay_statistics before = stats_of(replay), after;
    CHECK_FAILS(per_replay_add(replay, &given->steps, ids, NULL), PER_ERROR_FULL,
                on_cuda() ? "1 steps found a full lane, and overwrite is off" : "overwrite");
    after = stats_of(replay);
    before.rejected_updates += on_cuda();
    CHECK(ids[0] == id_of_bad_step() && ids[1] == -7 && memcmp(&before, &after, sizeof before) == 0);
    CHECK_OK(per_replay_synchronize(replay, NULL)); /* it is reported only once */
}

/* There is room for the first of two steps: observation 4, reward 4, id 4. */
static void first_of_two_fits(per_replay* replay) {
    const float observations[] = {4, 6}, rewards[] = {4, 0};
    const per_replay_statistics before = stats_of(replay);
    int64_t ids[2] = {-7, -7};
    call given;
    fill_call(&given, 2, observations, NULL, rewards, NULL, NULL);
    CHECK_FAILS(per_replay_add(replay, &given.steps, ids, NULL), PER_ERROR_FULL,
                on_cuda() ? "1 steps found a full lane, and overwrite is off" : "overwrite");
    if (on_cuda()) {
        CHECK(ids[0] == 4 && ids[1] == -1);
        return;
    }
    per_replay_statistics after = stats_of(replay);
    CHECK(ids[0] == -7 && ids[1] == -7 && memcmp(&before, &after, sizeof before) == 0);
    CHECK_LIVE(replay, 0, 1, 2);
    CHECK(add_step(replay, 0, 4, 4) == 4);
}

static void the_last_row_is_used_and_no_more(void) {
    per_replay_options options = replay_options(5, 1);
    const float observations[] = {5}, nexts[] = {6}, rewards[] = {0};
    call given;
    options.overwrite = 0;
    options.gamma = 0.5;
    per_replay* replay = create_replay(&options);
    for (int t = 0; t < 4; ++t) add_step(replay, 0, (float)t, (float)t);
    fill_call(&given, 1, observations, nexts, rewards, NULL, NULL);
    given.observation.data = nexts;
    check_refused(replay, &given); /* there is room for the step in row 4, but not for the observation after it */
    CHECK_LIVE(replay, 0, 1, 2);
    first_of_two_fits(replay);
    CHECK_LIVE(replay, 0, 1, 2, 3);
    CHECK_WINDOW(replay, 0, 0, 0, 0.5f, 1, 1, 0, 0);
    fill_call(&given, 1, observations, NULL, rewards, NULL, NULL);
    check_refused(replay, &given);
    /* Drawing, updates and cuts still work; clear() makes room. */
    CHECK_OK(per_replay_cut(replay, 0, NULL, NULL));
    check_refused(replay, &given);
    CHECK_OK(per_replay_clear(replay, NULL));
    CHECK(add_step(replay, 0, 10, 1) == 5);
    for (int t = 0; t < 4; ++t) add_step(replay, 0, (float)t + 11, (float)t);
    check_refused(replay, &given);
    CHECK_LIVE(replay, 5, 6, 7, 8);
    per_replay_free(replay);
}

static void a_row_is_announced_before_it_is_taken(void) {
    per_replay_options options = replay_options(4, 1);
    const float observation = 3, next = 4, reward = 0;
    call given;
    options.overwrite = 0;
    per_replay* replay = create_replay(&options);
    add_run(replay, 0, 3);
    fill_call(&given, 1, &observation, &next, &reward, NULL, NULL);
    check_refused(replay, &given);
    add_given(replay, 1, &observation, NULL, &reward, NULL, NULL, NULL); /* it takes the pending row */
    CHECK_LIVE(replay, 0, 1, 2);
    per_replay_free(replay);
}

/* One of three lanes is full: the call is refused, unless the mask leaves that environment out. */
static void one_full_lane_refuses_the_call(void) {
    per_replay_options options = replay_options(3 * 4, 3);
    const float observations[3] = {7, 7, 7}, rewards[3] = {0, 0, 0};
    const uint8_t mask[3] = {1, 0, 1};
    int64_t ids[3] = {-7, -7, -7};
    call given;
    options.overwrite = 0;
    per_replay* replay = create_replay(&options);
    for (int t = 0; t < 4; ++t) add_step(replay, 1, (float)t, 0);
    fill_call(&given, 1, observations, NULL, rewards, NULL, NULL);
    CHECK_FAILS(per_replay_add(replay, &given.steps, ids, NULL), PER_ERROR_FULL,
                on_cuda() ? "1 steps found a full lane, and overwrite is off" : "overwrite");
    if (on_cuda()) {
        CHECK(ids[0] == 0 && ids[1] == -1 && ids[2] == 2 && stats_of(replay).added == 6);
        per_replay_free(replay);
        return;
    }
    CHECK(ids[0] == -7 && ids[1] == -7 && ids[2] == -7 && stats_of(replay).added == 4);
    given.steps.mask = array_of(mask, PER_BOOL);
    CHECK_OK(per_replay_add(replay, &given.steps, ids, NULL));
    CHECK(ids[0] == 0 && ids[1] == -1 && ids[2] == 2);
    per_replay_free(replay);
}

/* Separately stored next observations need no rows: the capacity is exact. */
static void capacity_is_exact_with_stored_next_observations(void) {
    per_replay_options options = replay_options(4, 1);
    const float observation = 9, next = 10, reward = 0;
    call given;
    options.overwrite = 0;
    options.store_next_observation = 1;
    per_replay* replay = create_replay(&options);
    for (int t = 0; t < 4; ++t) add_full(replay, 0, (float)t, 0, t == 1 ? TERMINATED : GOES_ON, (float)t + 1);
    CHECK_LIVE(replay, 0, 1, 2, 3);
    fill_call(&given, 1, &observation, &next, &reward, NULL, NULL);
    check_refused(replay, &given);
    per_replay_free(replay);
}

int main(void) {
    the_last_row_is_used_and_no_more();
    a_row_is_announced_before_it_is_taken();
    one_full_lane_refuses_the_call();
    capacity_is_exact_with_stored_next_observations();
    return 0;
}

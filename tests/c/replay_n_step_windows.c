/*
 * n-step returns, by hand: reward is the sum over k < m of gamma^k r_(i+k), the bootstrap factor gamma^m, and m the
 * smaller of n_step and the remaining steps of the episode. Observation t has reward t + 1; gamma is 1/2, so all sums
 * are exact.
 */
#include "replay_check.h"

static per_replay* create(int64_t rows, int64_t n_step, double gamma) {
    per_replay_options options = replay_options(rows, 1);
    options.n_step = n_step;
    options.gamma = gamma;
    return create_replay(&options);
}

/* Steps first .. last of one episode without next observations; the last one ends in observation last + 1. */
static void add_episode(per_replay* replay, int first, int last, end how) {
    for (int t = first; t < last; ++t) add_step(replay, 0, (float)t, (float)t + 1);
    add_full(replay, 0, (float)last, (float)last + 1, how, (float)last + 1);
}

static void windows_wait_until_they_are_complete(void) {
    per_replay* replay = create(20, 3, 0.5);
    add_step(replay, 0, 0, 1);
    add_step(replay, 0, 1, 2);
    add_step(replay, 0, 2, 3);
    CHECK_NONE_LIVE(replay);
    add_step(replay, 0, 3, 4);
    CHECK_LIVE(replay, 0);
    add_full(replay, 0, 4, 5, GOES_ON, 5); /* with the observation after it, another row is complete */
    CHECK_LIVE(replay, 0, 1, 2);
    CHECK_WINDOW(replay, 2, 2, 3 + 2 + 1.25f, 0.125f, 5, 3, 0, 0);
    add_step(replay, 0, 5, 6);
    CHECK_LIVE(replay, 0, 1, 2);
    per_replay_free(replay);
}

static void terminated_windows(void) {
    per_replay* replay = create(20, 3, 0.5);
    add_episode(replay, 0, 4, TERMINATED);
    CHECK_LIVE(replay, 0, 1, 2, 3, 4);
    CHECK_WINDOW(replay, 0, 0, 1 + 1 + 0.75f, 0.125f, 3, 3, 0, 0);
    CHECK_WINDOW(replay, 1, 1, 2 + 1.5f + 1, 0.125f, 4, 3, 0, 0);
    CHECK_WINDOW(replay, 2, 2, 3 + 2 + 1.25f, 0, 5, 3, 1, 0);
    CHECK_WINDOW(replay, 3, 3, 4 + 2.5f, 0, 5, 2, 1, 0);
    CHECK_WINDOW(replay, 4, 4, 5, 0, 5, 1, 1, 0);
    /* The final observation is in row 5. Windows do not cross the border of the episodes. */
    add_episode(replay, 10, 10, TERMINATED);
    CHECK_WINDOW(replay, 6, 10, 11, 0, 11, 1, 1, 0);
    CHECK_WINDOW(replay, 4, 4, 5, 0, 5, 1, 1, 0);
    CHECK_LIVE(replay, 0, 1, 2, 3, 4, 6);
    per_replay_free(replay);
}

static void truncated_windows_keep_their_bootstrap(void) {
    per_replay* replay = create(20, 3, 0.5);
    add_episode(replay, 10, 14, TRUNCATED);
    CHECK_LIVE(replay, 0, 1, 2, 3, 4);
    CHECK_WINDOW(replay, 1, 11, 12 + 6.5f + 3.5f, 0.125f, 14, 3, 0, 0);
    CHECK_WINDOW(replay, 2, 12, 13 + 7 + 3.75f, 0.125f, 15, 3, 0, 1);
    CHECK_WINDOW(replay, 3, 13, 14 + 7.5f, 0.25f, 15, 2, 0, 1);
    CHECK_WINDOW(replay, 4, 14, 15, 0.5f, 15, 1, 0, 1);
    per_replay_free(replay);
}

/* The last step's own observation is a placeholder, without bootstrapping. */
static void terminated_at_an_unknown_observation(void) {
    per_replay* replay = create(20, 3, 0.5);
    add_step(replay, 0, 20, 21);
    add_step(replay, 0, 21, 22);
    add_step(replay, 0, 22, 23);
    add_unknown_end(replay, 0, 23, 24, TERMINATED);
    CHECK_LIVE(replay, 0, 1, 2, 3);
    CHECK_WINDOW(replay, 0, 20, 21 + 11 + 5.75f, 0.125f, 23, 3, 0, 0);
    CHECK_WINDOW(replay, 1, 21, 22 + 11.5f + 6, 0, 23, 3, 1, 0);
    CHECK_WINDOW(replay, 3, 23, 24, 0, 23, 1, 1, 0);
    CHECK(add_step(replay, 0, 30, 31) == 4); /* no row was used for the final observation */
    per_replay_free(replay);
}

/* Rows before the last one bootstrap from the observation of the last one, which is not live itself. */
static void truncated_at_an_unknown_observation(void) {
    per_replay* replay = create(20, 3, 0.5);
    add_step(replay, 0, 30, 31);
    add_step(replay, 0, 31, 32);
    add_step(replay, 0, 32, 33);
    add_unknown_end(replay, 0, 33, 34, TRUNCATED);
    CHECK_LIVE(replay, 0, 1, 2);
    CHECK_WINDOW(replay, 0, 30, 31 + 16 + 8.25f, 0.125f, 33, 3, 0, 0);
    CHECK_WINDOW(replay, 1, 31, 32 + 16.5f, 0.25f, 33, 2, 0, 0);
    CHECK_WINDOW(replay, 2, 32, 33, 0.5f, 33, 1, 0, 0);
    CHECK(add_step(replay, 0, 40, 41) == 4);
    per_replay_free(replay);
    replay = create(20, 3, 0.5); /* an episode of only that step has no transition */
    add_unknown_end(replay, 0, 33, 34, TRUNCATED);
    CHECK_NONE_LIVE(replay);
    CHECK(stats_of(replay).episodes == 1 && stats_of(replay).added == 1);
    per_replay_free(replay);
}

static void a_step_flagged_both_ways_is_terminated(void) {
    const float observation = 1, next = 2, reward = 3;
    const uint8_t set = 1;
    per_replay* replay = create(20, 1, 0.5);
    add_given(replay, 1, &observation, &next, &reward, &set, &set, NULL);
    CHECK_WINDOW(replay, 0, 1, 3, 0, 2, 1, 1, 0);
    per_replay_free(replay);
}

static void check_drawn_with_n_step(per_replay* replay, int64_t n_step, float reward, float discount, float next) {
    static rows drawn;
    per_sample_options options = default_sample_options();
    options.n_step = n_step;
    draw_with(replay, &options, MANY, &drawn);
    int64_t i = place_of(&drawn, MANY, 0);
    CHECK(i >= 0 && drawn.reward[i] == reward && drawn.discount[i] == discount && drawn.next[i] == next);
    CHECK(drawn.n_steps[i] == n_step);
}

static void a_call_may_ask_for_fewer_steps(void) {
    per_replay* replay = create(20, 3, 0.5);
    static rows drawn;
    add_episode(replay, 0, 4, TERMINATED);
    check_drawn_with_n_step(replay, 1, 1, 0.5f, 1);
    check_drawn_with_n_step(replay, 2, 1 + 1, 0.25f, 2);
    check_drawn_with_n_step(replay, 3, 1 + 1 + 0.75f, 0.125f, 3);
    per_sample_options options = default_sample_options();
    fill_rows(&drawn);
    options.n_step = 4;
    CHECK_REFUSED(per_replay_sample(replay, &options, 1, &drawn.batch, NULL), "n_step");
    options.n_step = -1;
    CHECK_REFUSED(per_replay_sample(replay, &options, 1, &drawn.batch, NULL), "n_step");
    per_replay_free(replay);
}

/* Sums begin with 0, whatever n_step is: 0 + -0 is 0. */
static void returns_of_minus_zero_are_zero(void) {
    static rows drawn;
    for (int64_t n_step = 1; n_step <= 2; ++n_step) {
        per_replay* replay = create(20, n_step, 0.5);
        for (int t = 0; t < 4; ++t) add_step(replay, 0, (float)t, -0.0f);
        draw(replay, MANY, &drawn);
        for (int64_t i = 0; i < MANY; ++i) CHECK(drawn.reward[i] == 0 && !signbit(drawn.reward[i]));
        per_replay_free(replay);
    }
}

static void gamma_is_raised_to_the_number_of_steps(void) {
    per_replay* replay = create(20, 3, 0.99);
    static rows drawn;
    const float factors[] = {(float)(0.99 * 0.99 * 0.99), (float)(0.99 * 0.99), (float)0.99};
    add_episode(replay, 0, 2, TRUNCATED);
    draw(replay, MANY, &drawn);
    for (int64_t id = 0; id < 3; ++id) CHECK(drawn.discount[place_of(&drawn, MANY, id)] == factors[id]);
    /* gamma is set in a running buffer; 0 and 1 are its limits. */
    CHECK_OK(change_gamma(replay, 0, NULL));
    CHECK_WINDOW(replay, 0, 0, 1, 0, 3, 3, 0, 1);
    CHECK_OK(change_gamma(replay, 1, NULL));
    CHECK_WINDOW(replay, 0, 0, 6, 1, 3, 3, 0, 1);
    CHECK(stats_of(replay).gamma == 1);
    per_replay_free(replay);
}

static void sixty_four_steps_in_the_smallest_lane(void) {
    per_replay_options options = replay_options(65, 1);
    per_replay* replay = (per_replay*)&options;
    options.n_step = 64;
    options.gamma = 1;
    CHECK_REFUSED(per_replay_create(&options, &replay), "66");
    CHECK(strstr(per_last_error(), "65") != NULL && replay == NULL);
    replay = create(66, 64, 1);
    for (int t = 0; t < 64; ++t) add_step(replay, 0, (float)t, 1);
    CHECK_NONE_LIVE(replay);
    for (int t = 64; t < 64 + rounds(236); ++t) {
        add_step(replay, 0, (float)t, 1);
        if (t < 65) {
            CHECK_LIVE(replay, 0);
        } else {
            CHECK_LIVE(replay, t - 65, t - 64);
        }
        CHECK_WINDOW(replay, t - 64, (float)t - 64, 64, 1, (float)t, 64, 0, 0);
    }
    per_replay_free(replay);
}

static void n_step_may_change_in_a_running_buffer(void) {
    per_replay* replay = create(20, 3, 0.5);
    for (int t = 0; t < 6; ++t) add_step(replay, 0, (float)t, (float)t + 1);
    CHECK_LIVE(replay, 0, 1, 2);
    CHECK_OK(change_n_step(replay, 1, NULL));
    CHECK_LIVE(replay, 0, 1, 2, 3, 4);
    CHECK_WINDOW(replay, 4, 4, 5, 0.5f, 5, 1, 0, 0);
    set_priority(replay, 4, 2);
    CHECK_OK(change_n_step(replay, 5, NULL));
    CHECK_LIVE(replay, 0);
    CHECK(priority_of(replay, 4) == 0);
    CHECK_WINDOW(replay, 0, 0, 1 + 1 + 0.75f + 0.5f + 0.3125f, 0.03125f, 5, 5, 0, 0);
    CHECK_OK(change_n_step(replay, 1, NULL));
    CHECK_LIVE(replay, 0, 1, 2, 3, 4);
    CHECK(priority_of(replay, 4) == 2);
    /* The lane has 20 rows and needs n_step + frame_stack + 1. */
    CHECK_OK(change_n_step(replay, 18, NULL));
    CHECK_REFUSED(change_n_step(replay, 19, NULL), "21");
    CHECK_REFUSED(change_n_step(replay, -1, NULL), "n_step");
    CHECK_REFUSED(change_n_step(replay, 65, NULL), "n_step");
    per_replay_free(replay);
}

int main(void) {
    windows_wait_until_they_are_complete();
    terminated_windows();
    truncated_windows_keep_their_bootstrap();
    terminated_at_an_unknown_observation();
    truncated_at_an_unknown_observation();
    a_step_flagged_both_ways_is_terminated();
    a_call_may_ask_for_fewer_steps();
    returns_of_minus_zero_are_zero();
    gamma_is_raised_to_the_number_of_steps();
    sixty_four_steps_in_the_smallest_lane();
    n_step_may_change_in_a_running_buffer();
    return 0;
}

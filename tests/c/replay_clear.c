/* clear() empties the lanes; ids, random state, largest priority, schedule and counters are kept. */
#include "replay_check.h"

/* Ranks 1 to 3 have P = 6/11, 3/11, 2/11: cleared transitions have no rank. */
static void ranks_are_those_of_what_follows(void) {
    static rows drawn;
    per_replay_options options = replay_options(64, 1);
    options.prioritization = PER_RANK;
    options.alpha = 1;
    per_replay* replay = create_replay(&options);
    for (int round = 0; round < 3; ++round) {
        const int64_t first = 24 * round;
        for (int t = 0; t < 20; ++t) {
            add_full(replay, 0, (float)t, 0, GOES_ON, (float)t + 1);
            set_priority(replay, first + t, (float)ldexp(1, t - 10));
        }
        draw(replay, 16, &drawn);
        CHECK_OK(per_replay_clear(replay, NULL));
        for (int t = 0; t < 3; ++t) {
            CHECK(add_full(replay, 0, (float)t, 0, t == 2 ? TERMINATED : GOES_ON, (float)t + 1) == first + 20 + t);
            set_priority(replay, first + 20 + t, (float)ldexp(1, 2 * t));
        }
        draw(replay, 110, &drawn);
        for (int t = 0; t < 110; ++t) {
            const double rank = (double)(first + 23 - drawn.ids[t]);
            CHECK(rank >= 1 && rank <= 3 && fabs(drawn.probabilities[t] - 6 / (11 * rank)) <= 1e-6);
        }
        CHECK_OK(per_replay_clear(replay, NULL));
    }
    per_replay_free(replay);
}

/* Ranks are recomputed after more than a 32nd of the live transitions has changed. If 31 are live, one change suffices,
   however many were live before clear(). */
static void ranks_are_due_for_what_is_live(void) {
    enum { BEFORE = 1500, AFTER = 31 };
    static rows drawn;
    per_replay_options options = replay_options(4000, 1);
    double sum = 0;
    options.prioritization = PER_RANK;
    options.alpha = 1;
    per_replay* replay = create_replay(&options);
    add_run(replay, 0, BEFORE);
    draw(replay, 16, &drawn);
    CHECK_OK(per_replay_clear(replay, NULL));
    for (int t = 0; t < AFTER; ++t) {
        add_full(replay, 0, (float)t, 0, t == AFTER - 1 ? TERMINATED : GOES_ON, (float)t + 1);
        set_priority(replay, BEFORE + t, (float)ldexp(1, t));
    }
    draw(replay, 16, &drawn);
    set_priority(replay, BEFORE, (float)ldexp(1, AFTER)); /* the last rank becomes the first */
    draw(replay, many(), &drawn);
    for (int t = 1; t <= AFTER; ++t) sum += 1.0 / t;
    for (int t = 0; t < many(); ++t) {
        const double i = (double)(drawn.ids[t] - BEFORE), rank = i == 0 ? 1 : AFTER + 1 - i;
        CHECK(fabs(drawn.probabilities[t] - 1 / (rank * sum)) <= 1e-6);
    }
    per_replay_free(replay);
}

int main(void) {
    per_replay_options options = replay_options(16, 2);
    static rows drawn, of_twin;
    int64_t id;
    options.beta_steps = 10;
    options.seed = 8;
    options.gamma = 0.5;
    per_replay *replay = create_replay(&options), *twin = create_replay(&options);
    for (int t = 0; t < 3; ++t) {
        add_full(replay, 0, (float)t, 0, GOES_ON, (float)t + 1);
        add_full(replay, 1, (float)t, 0, GOES_ON, (float)t + 1);
    }
    set_priority(replay, 2, 6);
    draw(replay, 16, &drawn);
    const per_replay_statistics before = stats_of(replay);
    CHECK(before.live == 6 && before.max_priority == 6 && before.samples == 1);

    CHECK_OK(per_replay_clear(replay, NULL));
    per_replay_statistics after = stats_of(replay);
    CHECK(after.live == 0 && after.total == 0);
    after.live = before.live;
    after.total = before.total;
    CHECK(memcmp(&before, &after, sizeof after) == 0); /* everything else is unchanged: no episode was cut */
    CHECK_NONE_LIVE(replay);
    for (id = 0; id < 6; ++id) CHECK(priority_of(replay, id) == 0);

    /* The pending observation 3 of each lane is gone: this step starts an episode, and no cut is counted. */
    id = add_full(replay, 0, 77, 0, GOES_ON, 78);
    CHECK(id == 6 && stats_of(replay).cuts == 0 && live_of(replay) == 1);
    CHECK(priority_of(replay, id) == 6);
    CHECK_WINDOW(replay, id, 77, 0, 0.5f, 78, 1, 0, 0);
    /* Draws continue the sequence: a buffer that was never cleared, and made as many draws, draws the same rows. */
    for (int t = 0; t < 40; ++t) add_full(replay, t % 2, (float)t, 0, TERMINATED, -1);
    CHECK(stats_of(replay).beta_step == stats_of(replay).samples);
    CHECK_OK(per_replay_clear(replay, NULL));
    CHECK_OK(per_replay_clear(replay, NULL));
    add_run(replay, 0, 3);
    add_run(twin, 0, 3);
    for (int t = 0; t < stats_of(replay).samples; ++t) draw(twin, 16, &of_twin);
    draw(replay, 16, &drawn);
    draw(twin, 16, &of_twin);
    CHECK(memcmp(drawn.observation, of_twin.observation, sizeof drawn.observation) == 0);

    CHECK(live_of(replay) == 3);
    free_both(replay, twin);
    ranks_are_those_of_what_follows();
    ranks_are_due_for_what_is_live();
    return 0;
}

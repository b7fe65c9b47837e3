/*
 * The buffer stores p, not p^alpha: alpha may change in a running buffer, to 0 and back, and draws are as if it had
 * always had that value. p^0 = 1 for every live transition, including p = 0.
 */
#include "replay_check.h"

enum { LIVE = 6 };

static const float given[LIVE] = {0, 0.25f, 1, 4, 9, 1e-6f};

static per_replay* create(double alpha) {
    per_replay_options options = replay_options(20, 1);
    options.alpha = alpha;
    options.seed = 3;
    per_replay* replay = create_replay(&options);
    for (int64_t id = 0; id <= LIVE; ++id) add_step(replay, 0, (float)id, 0);
    for (int64_t id = 0; id < LIVE; ++id) set_priority(replay, id, given[id]);
    return replay;
}

static void check_total(per_replay* replay, double alpha) {
    double expected = 0;
    for (int i = 0; i < LIVE; ++i) expected += alpha == 0 ? 1 : given[i] == 0 ? 0 : pow(given[i], alpha);
    CHECK(fabs(stats_of(replay).total - expected) <= 2e-7 * expected); /* leaves are float32 */
    CHECK(stats_of(replay).alpha == alpha && live_of(replay) == LIVE);
    for (int i = 0; i < LIVE; ++i) CHECK(priority_of(replay, i) == given[i]);
}

/* Expects the draws, weights and probabilities of a buffer that had this alpha from the start. */
static void check_same_draws(per_replay* replay, double alpha) {
    per_replay* twin = create(alpha);
    static rows drawn, of_twin;
    const int64_t samples = stats_of(replay).samples;
    for (int64_t i = 0; i < samples; ++i) draw(twin, 8, &of_twin);
    draw(replay, 512, &drawn);
    draw(twin, 512, &of_twin);
    CHECK(memcmp(drawn.ids, of_twin.ids, sizeof drawn.ids) == 0);
    CHECK(memcmp(drawn.weights, of_twin.weights, sizeof drawn.weights) == 0);
    CHECK(memcmp(drawn.probabilities, of_twin.probabilities, sizeof drawn.probabilities) == 0);
    for (int64_t i = 0; i < 512; ++i) {
        const double mass = alpha == 0 ? 1 : pow(drawn.priorities[i], alpha);
        CHECK(alpha == 0 || drawn.ids[i] != 0);
        CHECK(fabs(drawn.probabilities[i] - mass / stats_of(replay).total) <= 1e-6);
    }
    per_replay_free(twin);
}

static per_shard_summary summary_of(per_replay* replay) {
    per_shard_summary summary;
    CHECK_OK(per_replay_summarize(replay, PER_SCALE_AUTOMATIC, 0, &summary, sizeof summary));
    return summary;
}

/*
 * Several settings in one call have the effect of one call each, alpha first. The scale of masses reveals the order: a
 * new alpha chooses a new scale, and the largest priority is no longer live once n_step is 2.
 */
static void settings_of_one_call_are_set_in_their_order(void) {
    per_replay *at_once = create(0.5), *one_by_one = create(0.5), *the_other_way = create(0.5);
    per_replay_settings settings = unchanged_settings();
    set_priority(at_once, LIVE - 1, 4096);
    set_priority(one_by_one, LIVE - 1, 4096);
    set_priority(the_other_way, LIVE - 1, 4096);
    settings.alpha = 1;
    settings.beta = 0.75;
    settings.gamma = 0.5;
    settings.n_step = 2;
    CHECK_OK(per_replay_change_settings(at_once, &settings, NULL));
    CHECK_OK(change_alpha(one_by_one, 1, NULL));
    CHECK_OK(change_beta(one_by_one, 0.75, NULL));
    CHECK_OK(change_gamma(one_by_one, 0.5, NULL));
    CHECK_OK(change_n_step(one_by_one, 2, NULL));
    CHECK_OK(change_n_step(the_other_way, 2, NULL));
    CHECK_OK(change_alpha(the_other_way, 1, NULL));
    per_shard_summary summary = summary_of(at_once);
    per_shard_summary of_single_calls = summary_of(one_by_one);
    CHECK(summary.scale == of_single_calls.scale && summary.total_mass == of_single_calls.total_mass);
    CHECK(summary.live == LIVE - 1 && summary.scale != summary_of(the_other_way).scale);
    CHECK(stats_of(at_once).beta == 0.75 && stats_of(at_once).gamma == 0.5);
    per_replay_free(at_once);
    free_both(one_by_one, the_other_way);
}

int main(void) {
    static const double alphas[] = {0.6, 0, 1, 0, 0.6, 2, 0.3, 0};
    static const double bad[] = {-0.1, INFINITY, -INFINITY};
    per_replay* replay = create(1);
    static rows drawn;
    int i;
    for (i = 0; i < 8; ++i) {
        CHECK_OK(change_alpha(replay, alphas[i], NULL));
        check_total(replay, alphas[i]);
        check_same_draws(replay, alphas[i]);
    }
    /* With alpha 0 the transition of priority 0 is drawn like the others, and updates change nothing. */
    draw(replay, 600, &drawn);
    for (int64_t id = 0; id < LIVE; ++id) CHECK(place_of(&drawn, 600, id) >= 0);
    for (i = 0; i < 600; ++i) CHECK(drawn.weights[i] == 1);
    set_priority(replay, 2, 100);
    CHECK(stats_of(replay).total == LIVE);
    /* Priorities set meanwhile count when alpha is positive again. */
    CHECK_OK(change_alpha(replay, 1, NULL));
    CHECK(fabs(stats_of(replay).total - (0.25 + 100 + 4 + 9 + 1e-6)) <= 1e-5);
    for (i = 0; i < 3; ++i) {
        CHECK_REFUSED(change_alpha(replay, bad[i], NULL), "alpha");
        CHECK(stats_of(replay).alpha == 1);
    }
    CHECK_NO_STREAM(change_alpha(replay, 1, &i));
    CHECK_REFUSED(change_alpha(NULL, 1, NULL), "replay");
    per_replay_free(replay);
    settings_of_one_call_are_set_in_their_order();
    return 0;
}

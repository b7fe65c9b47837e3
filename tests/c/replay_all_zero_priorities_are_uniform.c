/* If all priorities are 0, the draw is uniform over the live transitions, and all weights are 1. */
#include "replay_check.h"

/* Rows 0 to 3 and 5 to 9 are live: row 4 is a final observation, and row 10 is pending. */
static per_replay* create(double alpha, int32_t scheme) {
    per_replay_options options = replay_options(20, 1);
    options.alpha = alpha;
    options.scheme = scheme;
    options.beta = 0.7;
    options.seed = 12;
    per_replay* replay = create_replay(&options);
    for (int t = 0; t < 3; ++t) add_step(replay, 0, (float)t, 0);
    add_full(replay, 0, 3, 0, TERMINATED, 4);
    for (int t = 5; t < 11; ++t) add_step(replay, 0, (float)t, 0);
    for (int64_t id = 0; id < 10; ++id)
        if (id != 4) set_priority(replay, id, 0);
    CHECK(live_of(replay) == 9 && stats_of(replay).total == (alpha == 0 ? 9 : 0));
    return replay;
}

static void check_uniform(double alpha, int32_t scheme) {
    enum { B = 1800 };
    per_replay* replay = create(alpha, scheme);
    static rows drawn;
    int64_t counts[11] = {0};
    double chi_square = 0;
    draw(replay, B, &drawn);
    for (int i = 0; i < B; ++i) {
        CHECK(drawn.ids[i] >= 0 && drawn.ids[i] <= 9 && drawn.ids[i] != 4);
        CHECK(drawn.weights[i] == 1 && drawn.priorities[i] == 0 && drawn.probabilities[i] == (float)(1.0 / 9));
        ++counts[drawn.ids[i]];
    }
    for (int i = 0; i < 10; ++i) {
        if (i == 4) continue;
        /* A stratum is 1/200 of a transition, so counts differ by at most the two strata at its borders. */
        if (scheme == PER_STRATIFIED || scheme == PER_SYSTEMATIC) CHECK(counts[i] >= 198 && counts[i] <= 202);
        chi_square += (double)((counts[i] - 200) * (counts[i] - 200)) / 200;
    }
    CHECK(chi_square < 26.1); /* 8 degrees of freedom: false alarm 1 in 1000, seed 12 */
    if (scheme == PER_INDEPENDENT) CHECK(chi_square > 0);
    per_replay_free(replay);
}

/* A single positive priority, however small, ends this. */
static void one_positive_priority_takes_all(void) {
    per_replay* replay = create(0.6, PER_STRATIFIED);
    static rows drawn;
    set_priority(replay, 6, 1e-30f);
    draw(replay, 100, &drawn);
    for (int i = 0; i < 100; ++i) CHECK(drawn.ids[i] == 6 && drawn.weights[i] == 1 && drawn.probabilities[i] == 1);
    set_priority(replay, 6, 0);
    draw(replay, 100, &drawn);
    CHECK(place_of(&drawn, 100, 0) >= 0);
    per_replay_free(replay);
}

/* Draws by rank are uniform too: zeros share all ranks, also if weights are divided by the buffer's largest. */
static void by_rank(int32_t normalization) {
    per_replay* replay = create(0.6, PER_INDEPENDENT);
    static rows drawn;
    per_sample_options options = default_sample_options();
    options.prioritization = PER_RANK;
    options.normalize_weights = normalization;
    draw_with(replay, &options, 100, &drawn);
    for (int i = 0; i < 100; ++i)
        CHECK(fabs(drawn.weights[i] - 1) <= 1e-6 && fabs(drawn.probabilities[i] * 9 - 1) <= 1e-6);
    per_replay_free(replay);
}

int main(void) {
    check_uniform(0.6, PER_STRATIFIED);
    check_uniform(0.6, PER_INDEPENDENT);
    check_uniform(0.6, PER_SYSTEMATIC);
    check_uniform(0, PER_STRATIFIED); /* p^0 = 1 for p = 0 too */
    one_positive_priority_takes_all();
    by_rank(PER_BATCH_MAX);
    by_rank(PER_BUFFER_MAX);
    return 0;
}

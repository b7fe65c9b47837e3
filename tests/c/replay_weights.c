/*
 * P(i) = p_i^alpha / sum_k p_k^alpha and w_i = (N P(i))^-beta / max_j (N P(j))^-beta, j over the batch, by hand: with
 * priorities 1, 4, 16 and alpha 1/2 the probabilities are 1/7, 2/7, 4/7.
 */
#include <float.h>

#include "replay_check.h"

static per_replay* create(double beta, int32_t scheme) {
    per_replay_options options = replay_options(20, 1);
    options.alpha = 0.5;
    options.beta = beta;
    options.scheme = scheme;
    options.seed = 99;
    per_replay* replay = create_replay(&options);
    for (int t = 0; t < 4; ++t) add_step(replay, 0, (float)t, 0);
    set_priority(replay, 1, 4);
    set_priority(replay, 2, 16);
    CHECK(stats_of(replay).total == 7);
    return replay;
}

static void check_batch(double beta, int32_t scheme) {
    enum { B = 1400 };
    per_replay* replay = create(beta, scheme);
    static rows drawn;
    int counts[3] = {0}, i;
    double chi_square = 0;
    draw(replay, B, &drawn);
    for (i = 0; i < B; ++i) {
        const int64_t id = drawn.ids[i];
        const double relative = pow(2, (double)id); /* P(i) / P(0) */
        CHECK(id >= 0 && id < 3);
        ++counts[id];
        CHECK(drawn.priorities[i] == (float)(relative * relative));
        CHECK(fabs(drawn.probabilities[i] - relative / 7) <= 1e-7);
        CHECK(fabs(drawn.weights[i] - pow(relative, -beta)) <= 2e-7);
        if (id == 0) CHECK(drawn.weights[i] == 1);
    }
    for (i = 0; i < 3; ++i) chi_square += pow(counts[i] - 200 * pow(2, i), 2) / (200 * pow(2, i));
    CHECK(chi_square < 13.8); /* 2 degrees of freedom: false alarm 1 in 1000, seed 99 */
    /* Each of 1400 strata is 1/200 of the smallest transition: only the strata at borders have two transitions. */
    if (scheme != PER_INDEPENDENT) CHECK(abs(counts[0] - 200) <= 2 && abs(counts[2] - 800) <= 2);
    per_replay_free(replay);
}

/* The batch's largest weight is used, not the buffer's: without transition 0 in the batch, transition 1 has weight
   1. */
static void largest_of_the_batch(void) {
    per_replay* replay = create(1, PER_INDEPENDENT);
    static rows drawn;
    int seen_without = 0;
    for (int round = 0; round < 200; ++round) {
        float largest = 0;
        int64_t least = 3;
        draw(replay, 3, &drawn);
        for (int i = 0; i < 3; ++i) {
            if (drawn.weights[i] > largest) largest = drawn.weights[i];
            if (drawn.ids[i] < least) least = drawn.ids[i];
        }
        CHECK(largest == 1);
        seen_without += least > 0;
        for (int i = 0; i < 3; ++i) CHECK(drawn.weights[i] == (float)pow(2, (double)(least - drawn.ids[i])));
    }
    CHECK(seen_without > 50 && seen_without < 200); /* expected 200 (6/7)^3 = 126 */
    per_replay_free(replay);
}

/* beta and scheme of the call, if given. */
static void options_of_a_call(void) {
    per_replay* replay = create(1, PER_STRATIFIED);
    static rows drawn;
    per_sample_options options = default_sample_options();
    options.beta = 0;
    draw_with(replay, &options, 64, &drawn);
    for (int i = 0; i < 64; ++i) CHECK(drawn.weights[i] == 1);
    options.beta = 2;
    CHECK_OK(per_replay_sample(replay, &options, 64, &drawn.batch, NULL));
    for (int i = 0; i < 64; ++i) CHECK(drawn.weights[i] == (float)pow(4, (double)-drawn.ids[i]));
    options.scheme = PER_SYSTEMATIC;
    options.beta = NAN;
    CHECK_OK(per_replay_sample(replay, &options, 7, &drawn.batch, NULL));
    for (int i = 0; i < 7; ++i)
        CHECK(drawn.ids[i] == (i < 1 ? 0 : i < 3 ? 1 : 2)); /* their shares are 1, 2 and 4 of 7 */
    CHECK(drawn.weights[0] == 1 && drawn.weights[1] == 0.5f && drawn.weights[6] == 0.25f);
    per_replay_free(replay);
}

/* Any array may be omitted; the others are unaffected. */
static void arrays_may_be_left_out(void) {
    per_replay *replay = create(1, PER_STRATIFIED), *twin = create(1, PER_STRATIFIED);
    static rows drawn, of_twin;
    for (int left_out = 0; left_out < 11; ++left_out) {
        fill_rows(&drawn);
        if (left_out == 0) drawn.batch.fields = NULL;
        if (left_out == 1) drawn.batch.next_fields = NULL;
        if (left_out == 2) drawn.batch.reward = NULL;
        if (left_out == 3) drawn.batch.discount = NULL;
        if (left_out == 4) drawn.batch.n_steps = NULL;
        if (left_out == 5) drawn.batch.terminated = drawn.batch.truncated = NULL;
        if (left_out == 6) drawn.batch.weights = NULL;
        if (left_out == 7) drawn.batch.priorities = NULL;
        if (left_out == 8) drawn.batch.probabilities = NULL;
        if (left_out == 9) drawn.fields[0] = NULL;
        if (left_out == 10) drawn.next_fields[0] = NULL;
        CHECK_OK(per_replay_sample(replay, NULL, 32, &drawn.batch, NULL));
        draw(twin, 32, &of_twin);
        CHECK(memcmp(drawn.ids, of_twin.ids, sizeof drawn.ids) == 0);
        CHECK((left_out == 6) == (drawn.weights[0] == 0));
        CHECK((left_out == 3) == (drawn.discount[0] == 0));
        CHECK((left_out == 1 || left_out == 10) == (drawn.next[0] == 0));
    }
    CHECK_OK(per_batch_init(&drawn.batch, sizeof drawn.batch));
    CHECK_OK(per_replay_sample(replay, NULL, 32, &drawn.batch, NULL)); /* even all of them */
    CHECK(stats_of(replay).samples == 12);
    free_both(replay, twin);
}

/* Ranks are recomputed after more than a 32nd of the transitions has changed. Until then, a changed transition shares
   the rank of its new priority with the transition that already has it. */
static void ranks_between_two_takings(void) {
    enum { N = 100 };
    static rows drawn;
    per_replay_options options = replay_options(N + 8, 1);
    double sum = 0;
    options.prioritization = PER_RANK;
    options.alpha = 1;
    per_replay* replay = create_replay(&options);
    for (int t = 0; t < N; ++t) {
        add_full(replay, 0, (float)t, 0, GOES_ON, (float)t + 1);
        set_priority(replay, t, (float)ldexp(1, t - 50)); /* its rank is N - t */
        sum += 1.0 / (t + 1);
    }
    draw(replay, 16, &drawn);
    set_priority(replay, 0, (float)ldexp(1, N - 1 - 50));
    sum += 1 - 1.0 / N;
    draw(replay, many(), &drawn);
    for (int t = 0; t < many(); ++t) {
        const double rank = drawn.ids[t] == 0 ? 1 : (double)(N - drawn.ids[t]);
        CHECK(fabs(drawn.probabilities[t] * rank * sum - 1) <= 1e-5);
    }
    CHECK(place_of(&drawn, many(), 0) >= 0);
    per_replay_free(replay);
}

/* Weights (N P)^-30 with N = 32 that are too large for float32 become its largest number, in batches of any size. */
static void weights_beyond_float32(void) {
    enum { N = 32 };
    static rows drawn;
    per_replay_options options = replay_options(N + 8, 1);
    int64_t ids[N];
    options.alpha = 1;
    options.normalize_weights = PER_NONE;
    options.beta = 30;
    per_replay* replay = create_replay(&options);
    for (int t = 0; t < N; ++t) {
        add_full(replay, 0, (float)t, 0, GOES_ON, (float)t + 1);
        set_priority(replay, t, t == 0 ? 65536 : t % 2 == 0 ? 1 : (float)ldexp(1, -20));
    }
    per_sample_options sample = default_sample_options();
    sample.beta = 30;
    for (int64_t n = 1; n <= N; ++n) { /* covers every remainder of vectorized loops */
        for (int t = 0; t < n; ++t) ids[t] = t;
        fill_rows(&drawn);
        CHECK_OK(per_replay_get_windows(replay, &sample, PER_INVALID_ERROR, n, ids, &drawn.batch, NULL));
        for (int t = 1; t < n; ++t) CHECK(drawn.weights[t] == FLT_MAX);
        /* Transition 0 has nearly all of the mass: (32 P)^-30 is about 2^-150, half of the smallest float32. */
        CHECK(drawn.weights[0] >= 0 && drawn.weights[0] <= 1.5e-45f);
    }
    sample.beta = 8;
    fill_rows(&drawn);
    CHECK_OK(per_replay_get_windows(replay, &sample, PER_INVALID_ERROR, N, ids, &drawn.batch, NULL));
    for (int t = 0; t < N; ++t) {
        const double mass = 65536 + 15 + 16 * ldexp(1, -20);
        const double p = t == 0 ? 65536 : t % 2 == 0 ? 1 : ldexp(1, -20), exact = pow(N * p / mass, -8);
        CHECK(exact > FLT_MAX ? drawn.weights[t] == FLT_MAX : fabs(drawn.weights[t] / exact - 1) <= 1e-6);
    }
    per_replay_free(replay);
}

int main(void) {
    check_batch(0.4, PER_STRATIFIED);
    check_batch(1, PER_STRATIFIED);
    check_batch(0, PER_INDEPENDENT);
    check_batch(0.7, PER_INDEPENDENT);
    check_batch(1, PER_SYSTEMATIC);
    largest_of_the_batch();
    options_of_a_call();
    arrays_may_be_left_out();
    ranks_between_two_takings();
    weights_beyond_float32();
    return 0;
}

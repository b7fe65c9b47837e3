/*
 * A draw with a key {seed, k} equals draw number k (from 0) of a buffer with that seed, whatever the seed and the
 * earlier draws of this buffer. It counts as a draw. Calls that do not draw refuse a key.
 */
#include "replay_check.h"

enum { B = 24, ROWS = 60, LONGEST = 3 };

typedef struct batch {
    int64_t ids[B];
    float weights[B], probabilities[B];
    int32_t n_steps[B];
} batch;

/* Two environments without ends, with n-step transitions of different priorities. */
static per_replay* filled(uint64_t seed, int64_t sequence_length) {
    per_replay_options options = replay_options(2 * ROWS, 2);
    float observations[2 * ROWS], priorities[2 * ROWS];
    const float rewards[2 * ROWS] = {0};
    const uint8_t flags[2 * ROWS] = {0};
    per_array observation = array_of(observations, PER_FLOAT32);
    options.seed = seed;
    options.n_step = LONGEST;
    options.sequence_length = sequence_length;
    per_replay* replay = create_replay(&options);
    for (int i = 0; i < 2 * ROWS; ++i) {
        observations[i] = (float)i;
        priorities[i] = (float)(1 + i % 7);
    }
    per_steps steps = steps_of(ROWS, &observation, NULL, rewards, flags, flags);
    steps.priorities = array_of(priorities, PER_FLOAT32);
    CHECK_OK(per_replay_add(replay, &steps, NULL, NULL));
    return replay;
}

static per_sample_options options_of(int32_t scheme, int32_t prioritization, double uniform_fraction) {
    per_sample_options options = default_sample_options();
    CHECK(options.key == NULL);
    options.scheme = scheme;
    options.prioritization = prioritization;
    options.uniform_fraction = uniform_fraction;
    options.n_step_min = 1;
    return options;
}

static batch drawn(per_replay* replay, const per_sample_options* options, int64_t sequence_length) {
    int32_t n_steps[B * 4];
    batch out;
    memset(&out, 0, sizeof out);
    per_batch arrays = default_batch();
    arrays.ids = out.ids;
    arrays.weights = out.weights;
    arrays.probabilities = out.probabilities;
    arrays.n_steps = n_steps;
    CHECK_OK(per_replay_sample(replay, options, B, &arrays, NULL));
    for (int i = 0; i < B; ++i) out.n_steps[i] = n_steps[i * (sequence_length > 0 ? sequence_length : 1)];
    return out;
}

static int same(const batch* one, const batch* other) {
    return memcmp(one, other, sizeof *one) == 0;
}

static void draws_of_each_kind_follow_from_their_key(int64_t sequence_length) {
    const uint64_t seed = 0x123456789abcdef0u, keys[3][2] = {{seed, 0}, {seed, 1}, {seed, 2}};
    const double fractions[] = {0.0, 0.25, 1.0};
    for (int32_t scheme = PER_STRATIFIED; scheme <= PER_WITHOUT_REPLACEMENT; ++scheme)
        for (int32_t prioritization = PER_PROPORTIONAL; prioritization <= PER_UNIFORM; ++prioritization)
            for (int i = 0; i < 3; ++i) {
                per_sample_options options = options_of(scheme, prioritization, fractions[i]);
                per_replay *plain = filled(seed, sequence_length), *keyed = filled(5, sequence_length);
                batch expected[3];
                for (int k = 0; k < 3; ++k) expected[k] = drawn(plain, &options, sequence_length);
                CHECK(!same(&expected[0], &expected[1]));
                batch first = drawn(keyed, &options, sequence_length);
                CHECK(!same(&first, &expected[0]) && !same(&first, &expected[1]));
                for (int k = 5; k >= 0; --k) { /* backwards, and each twice */
                    options.key = keys[k % 3];
                    first = drawn(keyed, &options, sequence_length);
                    CHECK(same(&first, &expected[k % 3]));
                }
                free_both(plain, keyed);
            }
}

static void a_draw_with_a_key_counts_as_a_draw(void) {
    const uint64_t key[2] = {9, 9};
    per_sample_options options = options_of(PER_STRATIFIED, PER_PROPORTIONAL, 0.0);
    per_replay *one = filled(5, 0), *other = filled(5, 0);
    drawn(one, &options, 0);
    options.key = key;
    batch with_key = drawn(other, &options, 0);
    CHECK(stats_of(one).samples == 1 && stats_of(other).samples == 1);
    CHECK(stats_of(other).last_batch_size == B && stats_of(other).beta_step == 1);
    options.key = NULL;
    batch without = drawn(one, &options, 0);
    with_key = drawn(other, &options, 0);
    CHECK(same(&with_key, &without));
    free_both(one, other);
}

static int32_t reward(void* context, int64_t count, const void* achieved, const void* goals, float* rewards_out,
                      uint8_t* terminated_out) {
    (void)context, (void)count, (void)achieved, (void)goals, (void)rewards_out, (void)terminated_out;
    return 0;
}

static void what_makes_no_draw_refuses_a_key(void) {
    static const char* const said = "key is not NULL: per_replay_sample() alone takes one";
    const uint64_t key[3] = {9, 9, 9};
    const int64_t ids[1] = {0};
    per_sample_options options = options_of(PER_STRATIFIED, PER_PROPORTIONAL, 0.0);
    per_loader* loader;
    per_replay* replay = filled(5, 0);
    options.key = key;
    per_batch arrays = default_batch();
    per_hindsight_options hindsight = default_hindsight_options();
    hindsight.achieved_field = 0;
    hindsight.reward = reward;
    CHECK_REFUSED(per_replay_get_windows(replay, &options, PER_INVALID_ERROR, 1, ids, &arrays, NULL), said);
    CHECK_REFUSED(sample_with_hindsight(replay, &options, &hindsight, B, &arrays, NULL),
                  "key is not NULL: must be NULL where hindsight is given");
    CHECK_REFUSED(get_windows_with_hindsight(replay, &options, &hindsight, PER_INVALID_ERROR, 1, ids, &arrays, NULL),
                  said);
    per_loader_options loader_options = default_loader_options();
    loader_options.batch_size = B;
    loader_options.sample = &options;
    loader_options.device = test_device();
    CHECK_REFUSED(per_loader_create(replay, &loader_options, &loader), said);
    options.key = MISALIGNED(key);
    CHECK_MISALIGNED(per_replay_sample(replay, &options, B, &arrays, NULL), "key");
    CHECK(stats_of(replay).samples == 0);
    per_replay_free(replay);
}

int main(void) {
    draws_of_each_kind_follow_from_their_key(0);
    draws_of_each_kind_follow_from_their_key(3);
    a_draw_with_a_key_counts_as_a_draw();
    what_makes_no_draw_refuses_a_key();
    return 0;
}

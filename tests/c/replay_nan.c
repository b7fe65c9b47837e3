/*
 * on_nan: with PER_NAN_ERROR, a NaN in an observation, a next observation or a reward is an error that names the entry
 * and changes nothing; on CUDA its step is skipped and counted. By default NaN is an ordinary value.
 */
#include "replay_check.h"

static per_replay* create(int32_t on_nan) {
    per_replay_options options = replay_options(20, 1);
    options.on_nan = on_nan;
    return create_replay(&options);
}

static void allowed_by_default(void) {
    static rows out;
    const int64_t ids[] = {0, 1};
    per_replay_options options = replay_options(20, 1);
    per_replay* replay = create_replay(&options);
    CHECK(options.on_nan == PER_NAN_ALLOW);
    CHECK(add_full(replay, 0, NAN, NAN, GOES_ON, NAN) == 0);
    CHECK(add_full(replay, 0, NAN, 1, GOES_ON, 2) == 1);
    fill_rows(&out);
    out.batch.weights = out.batch.probabilities = NULL;
    CHECK_OK(per_replay_get(replay, 2, ids, &out.batch, NULL));
    CHECK(isnan(out.observation[0]) && isnan(out.next[0]) && isnan(out.reward[0]));
    CHECK(isnan(out.observation[1]) && out.next[1] == 2 && out.reward[1] == 1);
    per_replay_free(replay);
}

static void each_argument_is_named_and_nothing_is_changed(void) {
    per_replay* replay = create(PER_NAN_ERROR);
    int64_t id = -7;
    CHECK(add_full(replay, 0, 0, 1, GOES_ON, 1) == 0);
    CHECK_BAD_STEP(try_step(replay, 0, NAN, 1, GOES_ON, NEXT_GIVEN, 2, &id), "observation[0] is nan: must be a number");
    CHECK(id == id_of_bad_step());
    CHECK_BAD_STEP(try_step(replay, 0, 1, 1, GOES_ON, NEXT_GIVEN, NAN, &id), "next_observation[0] is nan");
    CHECK_BAD_STEP(try_step(replay, 0, 1, 1, TERMINATED, NEXT_GIVEN, -NAN, &id), "next_observation[0] is nan");
    CHECK_BAD_STEP(try_step(replay, 0, 1, NAN, GOES_ON, NEXT_GIVEN, 2, &id), "reward[0] is nan");
    CHECK(stats_of(replay).added == 1 && stats_of(replay).cuts == 0 && stats_of(replay).episodes == 0);
    CHECK_LIVE(replay, 0);
    CHECK(add_full(replay, 0, 1, 1, GOES_ON, 2) == 1); /* the trajectory continues as if they had not been given */
    CHECK(stats_of(replay).cuts == 0);
    per_replay_free(replay);
}

static void infinities_are_numbers(void) {
    per_replay* replay = create(PER_NAN_ERROR);
    CHECK(add_full(replay, 0, INFINITY, -INFINITY, GOES_ON, -INFINITY) == 0);
    CHECK(add_full(replay, 0, -INFINITY, INFINITY, TERMINATED, INFINITY) == 1);
    per_replay_free(replay);
}

/* Masked steps and unknown next observations are not checked. */
static void what_is_masked_is_not_looked_at(void) {
    const float observations[] = {0, NAN, 1}, next[] = {1, NAN, NAN}, rewards[] = {0, NAN, 0};
    const uint8_t mask[] = {1, 0, 1}, next_mask[] = {1, 1, 0};
    int64_t ids[3];
    per_replay* replay = create(PER_NAN_ERROR);
    call given;
    fill_call(&given, 3, observations, next, rewards, NULL, NULL);
    given.steps.mask = array_of(mask, PER_BOOL);
    given.steps.next_mask = array_of(next_mask, PER_BOOL);
    CHECK_OK(per_replay_add(replay, &given.steps, ids, NULL));
    CHECK(ids[0] == 0 && ids[1] == -1 && ids[2] == 1);
    per_replay_free(replay);
}

/* The CPU adds no step of the call; CUDA adds all but the bad one. */
static void one_of_many_steps(void) {
    enum { STEPS = 70, BAD = 33 };
    float observations[STEPS], rewards[STEPS];
    int64_t ids[STEPS];
    per_replay_options options = replay_options(100, 1);
    call given;
    options.on_nan = PER_NAN_ERROR;
    per_replay* replay = create_replay(&options);
    for (int64_t t = 0; t < STEPS; ++t) {
        observations[t] = (float)t;
        rewards[t] = t == BAD ? NAN : (float)t;
        ids[t] = -7;
    }
    fill_call(&given, STEPS, observations, NULL, rewards, NULL, NULL);
    CHECK_BAD_STEP(per_replay_add(replay, &given.steps, ids, NULL), "reward[33] is nan");
    CHECK(stats_of(replay).added == (on_cuda() ? STEPS - 1 : 0));
    for (int64_t t = 0; t < STEPS; ++t) CHECK(ids[t] == (!on_cuda() ? -7 : t < BAD ? t : t == BAD ? -1 : t - 1));
    per_replay_free(replay);
}

/* A buffer with an observation [2] of a dtype, stacked, and unstacked floats. */
static per_replay* create_of(int32_t dtype) {
    static const int64_t two[] = {2};
    static per_field fields[2];
    per_replay_options options = replay_options(20, 1);
    fields[0] = field_of("observation", dtype, 1, two);
    fields[0].stack = 3;
    fields[1] = field_of("advantage", PER_FLOAT32, 0, NULL);
    set_fields(&options, fields, 2);
    options.on_nan = PER_NAN_ERROR;
    return create_replay(&options);
}

/* One step with an observation given as bytes of a dtype. */
static per_status add_bytes(per_replay* replay, const void* frames, int32_t dtype, int stacked, float advantage) {
    static const int64_t one_frame[] = {1, 1, 2}, three_frames[] = {1, 1, 3, 2};
    const float reward = 0;
    const uint8_t no = 0;
    per_array fields[2] = {array_of(frames, dtype)};
    fields[0].shape = stacked ? three_frames : one_frame;
    fields[0].ndim = stacked ? 4 : 3;
    fields[1] = array_of(&advantage, PER_FLOAT32);
    const per_steps steps = steps_of(1, fields, NULL, &reward, &no, &no);
    return per_replay_add(replay, &steps, NULL, NULL);
}

/* The first NaN and the last infinity of each format, also negative; given in the field's dtype and cast. */
static void every_dtype_of_floats(void) {
    static const uint16_t half_nan[] = {0, 0x7c01}, half_inf[] = {0xfc00, 0x7c00}, half_minus[] = {0xfe00, 0};
    static const uint16_t brain_nan[] = {0, 0x7f81}, brain_inf[] = {0xff80, 0x7f80}, brain_minus[] = {0xffff, 0};
    static const float float_inf[] = {-INFINITY, INFINITY};
    static const double double_inf[] = {-INFINITY, INFINITY}, double_nan[] = {0, NAN}, double_minus[] = {-NAN, 0};
    static const float float_nan[] = {0, NAN}, float_minus[] = {-NAN, 0};
    static const struct {
        int32_t dtype;
        const void *nan, *infinities, *minus_nan;
    } formats[] = {{PER_FLOAT16, half_nan, half_inf, half_minus},
                   {PER_BFLOAT16, brain_nan, brain_inf, brain_minus},
                   {PER_FLOAT32, float_nan, float_inf, float_minus},
                   {PER_FLOAT64, double_nan, double_inf, double_minus}};
    for (size_t to = 0; to < 4; ++to) {
        for (size_t from = 0; from < 4; ++from) {
            per_replay* replay = create_of(formats[to].dtype);
            const int32_t dtype = formats[from].dtype;
            CHECK_BAD_STEP(add_bytes(replay, formats[from].nan, dtype, 0, 0), "observation[0, 0, 1] is nan");
            CHECK_BAD_STEP(add_bytes(replay, formats[from].minus_nan, dtype, 0, 0), "observation[0, 0, 0] is nan");
            CHECK_OK(add_bytes(replay, formats[from].infinities, dtype, 0, 0));
            CHECK(stats_of(replay).added == 1);
            per_replay_free(replay);
        }
    }
}

/* Integers are never NaN, and frames of a stack that are not stored are not checked. */
static void nothing_else_is_a_nan(void) {
    static const int32_t bits[] = {0x7fc00000, -1};
    static const float oldest[] = {NAN, NAN, NAN, NAN, 1, 2}, newest[] = {1, 2, 3, 4, 5, NAN};
    per_replay* replay = create_of(PER_INT32);
    CHECK_OK(add_bytes(replay, bits, PER_INT32, 0, 0));
    per_replay_free(replay);
    replay = create_of(PER_FLOAT32);
    CHECK_OK(add_bytes(replay, bits, PER_INT32, 0, 0));
    CHECK_OK(add_bytes(replay, oldest, PER_FLOAT32, 1, 0));
    CHECK_BAD_STEP(add_bytes(replay, newest, PER_FLOAT32, 1, 0), "observation[0, 0, 2, 1] is nan");
    CHECK_OK(add_bytes(replay, oldest + 4, PER_FLOAT32, 0, NAN)); /* not an observation field */
    CHECK(stats_of(replay).added == 3);
    per_replay_free(replay);
}

/* Frames that a warp on CUDA checks together: the NaN may be at any position. */
static void large_frames(void) {
    enum { N = 101 };
    static const int64_t shape[] = {N};
    per_field field = field_of("observation", PER_FLOAT64, 1, shape);
    per_replay_options options = replay_options(20, 1);
    double frame[N];
    const float reward = 0;
    const uint8_t no = 0;
    const int places[] = {0, 31, 32, 64, 100};
    options.fields = &field;
    options.on_nan = PER_NAN_ERROR;
    per_replay* replay = create_replay(&options);
    memset(frame, 0, sizeof frame);
    per_array given = array_of(frame, PER_FLOAT64);
    const per_steps steps = steps_of(1, &given, NULL, &reward, &no, &no);
    for (int i = 0; i < 5; ++i) {
        char expected[40];
        frame[places[i]] = NAN;
        sprintf(expected, "observation[%d] is nan", places[i]);
        CHECK_BAD_STEP(per_replay_add(replay, &steps, NULL, NULL), expected);
        frame[places[i]] = 0;
    }
    CHECK_OK(per_replay_add(replay, &steps, NULL, NULL));
    CHECK(stats_of(replay).added == 1);
    per_replay_free(replay);
}

int main(void) {
    allowed_by_default();
    each_argument_is_named_and_nothing_is_changed();
    infinities_are_numbers();
    what_is_masked_is_not_looked_at();
    one_of_many_steps();
    every_dtype_of_floats();
    nothing_else_is_a_nan();
    large_frames();
    return 0;
}

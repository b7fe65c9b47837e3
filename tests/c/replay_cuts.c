/*
 * A step whose observation differs from the announced one cuts the trajectory: the step before counts as truncated,
 * with the announced observation as its final one.
 */
#include "replay_check.h"

static per_replay_options cut_options(void) {
    per_replay_options options = replay_options(20, 1);
    options.gamma = 0.5;
    return options;
}

static per_replay* create(void) {
    const per_replay_options options = cut_options();
    return create_replay(&options);
}

static void another_observation_cuts(void) {
    per_replay* replay = create();
    add_full(replay, 0, 0, 1, GOES_ON, 1);
    add_full(replay, 0, 1, 2, GOES_ON, 2);
    CHECK(add_full(replay, 0, 50, 3, GOES_ON, 51) == 3); /* row 2 stays the final observation */
    CHECK(stats_of(replay).cuts == 1 && stats_of(replay).episodes == 1 && stats_of(replay).added == 3);
    CHECK_LIVE(replay, 0, 1, 3);
    CHECK_WINDOW(replay, 0, 0, 1, 0.5f, 1, 1, 0, 0);
    CHECK_WINDOW(replay, 1, 1, 2, 0.5f, 2, 1, 0, 1);
    CHECK_WINDOW(replay, 3, 50, 3, 0.5f, 51, 1, 0, 0);
    per_replay_free(replay);
}

/* The elements of a field in which numbers are compared, and bit patterns of some of them for each dtype. */
enum { ELEMENTS = 6 };
typedef struct numbers {
    int32_t dtype, bytes;
    uint64_t zero_of_sign, nan, other_nan, infinity, least;
} numbers;

static const numbers all_numbers[] = {
    {PER_FLOAT16, 2, 0x8000, 0x7e00, 0xfc01, 0x7c00, 1},
    {PER_BFLOAT16, 2, 0x8000, 0x7fc0, 0xff81, 0x7f80, 1},
    {PER_FLOAT32, 4, 0x80000000, 0x7fc00000, 0xff800001, 0x7f800000, 1},
    {PER_FLOAT64, 8, 0x8000000000000000, 0x7ff8000000000000, 0xfff0000000000001, 0x7ff0000000000000, 1},
    /* Integers with the bits of -0 and of NaNs: each of them is another number. */
    {PER_UINT16, 2, 0x8000, 0x7e00, 0xfc01, 0x7c00, 1},
    {PER_INT64, 8, 0x8000000000000000, 0x7ff8000000000000, 0xfff0000000000001, 0x7ff0000000000000, 1},
};

static uint64_t element_at(const void* frame, const numbers* of, int i) {
    uint64_t bits = 0;
    memcpy(&bits, (const char*)frame + i * of->bytes, (size_t)of->bytes); /* little endian */
    return bits;
}

static void set_element(void* frame, const numbers* of, int i, uint64_t bits) {
    memcpy((char*)frame + i * of->bytes, &bits, (size_t)of->bytes);
}

/*
 * Adds a step that announces `announced` in one element of its next observation, and a second step whose observation
 * has `given` there, in one call or in two. Returns the number of cuts. Without a cut the row of the second step keeps
 * the announced value.
 */
static int64_t cuts_between(const numbers* of, uint64_t announced, uint64_t given, int place, int in_one_call) {
    static const int64_t shape[] = {ELEMENTS};
    const per_field field = field_of("observation", of->dtype, 1, shape);
    per_replay_options options = cut_options();
    uint64_t observations[2 * ELEMENTS] = {0}, next[2 * ELEMENTS] = {0}, stored[ELEMENTS];
    const float rewards[2] = {0};
    void* const fields[1] = {stored};
    const int64_t frame = ELEMENTS * of->bytes, id = 1;
    call adds;
    options.fields = &field;
    per_replay* replay = create_replay(&options);
    set_element((char*)next, of, place, announced);
    set_element((char*)observations + frame, of, place, given);
    fill_call(&adds, in_one_call ? 2 : 1, NULL, NULL, rewards, NULL, NULL);
    adds.steps.next_fields = &adds.next;
    for (int k = 0; k < (in_one_call ? 1 : 2); ++k) {
        adds.observation = array_of((char*)observations + k * frame, of->dtype);
        adds.next = array_of((char*)next + k * frame, of->dtype);
        CHECK_OK(per_replay_add(replay, &adds.steps, NULL, NULL));
    }
    int64_t cuts = stats_of(replay).cuts;
    per_batch batch = default_batch();
    batch.fields = fields;
    if (cuts == 0) {
        CHECK_OK(per_replay_get(replay, 1, &id, &batch, NULL));
        CHECK(element_at(stored, of, place) == announced);
    }
    per_replay_free(replay);
    return cuts;
}

/* 0 equals -0 and any NaN any other, at any position of a frame; all other values differ. */
static void numbers_are_compared(void) {
    for (size_t i = 0; i < sizeof all_numbers / sizeof *all_numbers; ++i) {
        const numbers* of = &all_numbers[i];
        const int are_floats = of->dtype >= PER_FLOAT16;
        for (int in_one_call = 0; in_one_call < 2; ++in_one_call) {
            for (int place = 0; place < ELEMENTS; ++place) {
                CHECK(cuts_between(of, 0, of->zero_of_sign, place, in_one_call) == !are_floats);
                CHECK(cuts_between(of, of->zero_of_sign, 0, place, in_one_call) == !are_floats);
                CHECK(cuts_between(of, of->nan, of->other_nan, place, in_one_call) == !are_floats);
                CHECK(cuts_between(of, of->nan, of->nan, place, in_one_call) == 0);
                CHECK(cuts_between(of, of->nan, of->infinity, place, in_one_call) == 1);
                CHECK(cuts_between(of, of->infinity, of->infinity | of->zero_of_sign, place, in_one_call) == 1);
                CHECK(cuts_between(of, 0, of->least, place, in_one_call) == 1);
                CHECK(cuts_between(of, of->least, of->least | of->zero_of_sign, place, in_one_call) == 1);
            }
        }
    }
}

/* Compared as stored: float64 in, float32 kept. */
static void comparison_is_after_casting(void) {
    const double observations[] = {0.1, 1.1}, next[] = {1.1, 2.1}, zeros[2] = {0}, minus_zeros[] = {-0.0, -0.0};
    const float again = 2.1f, rewards[] = {0, 0};
    per_replay* replay = create();
    call given;
    fill_call(&given, 2, NULL, &again, rewards, NULL, NULL);
    given.observation = array_of(observations, PER_FLOAT64);
    given.next = array_of(next, PER_FLOAT64);
    CHECK_OK(per_replay_add(replay, &given.steps, NULL, NULL));
    add_full(replay, 0, again, 0, GOES_ON, 0);
    CHECK(stats_of(replay).cuts == 0 && stats_of(replay).added == 3);
    given.observation = array_of(minus_zeros, PER_FLOAT64);
    given.next = array_of(zeros, PER_FLOAT64);
    CHECK_OK(per_replay_add(replay, &given.steps, NULL, NULL));
    CHECK(stats_of(replay).cuts == 0 && stats_of(replay).added == 5);
    per_replay_free(replay);
}

/* With several observation fields, every one must be as announced. */
static void every_observation_is_compared(void) {
    per_replay_options options = cut_options();
    float a = 0, b = 0, action = 0, next_a = 1, next_b = 1, reward = 0;
    const uint8_t no = 0;
    per_field fields[3] = {field_of("observation.a", PER_FLOAT32, 0, NULL),
                           field_of("observation.b", PER_FLOAT32, 0, NULL), field_of("action", PER_FLOAT32, 0, NULL)};
    set_fields(&options, fields, 3);
    per_replay* replay = create_replay(&options);
    per_array given[3] = {array_of(&a, PER_FLOAT32), array_of(&b, PER_FLOAT32), array_of(&action, PER_FLOAT32)};
    per_array next[3] = {array_of(&next_a, PER_FLOAT32), array_of(&next_b, PER_FLOAT32)};
    const per_steps steps = steps_of(1, given, next, &reward, &no, &no);
    CHECK_OK(per_replay_add(replay, &steps, NULL, NULL));
    a = b = 1;
    action = 5; /* an action announces nothing */
    CHECK_OK(per_replay_add(replay, &steps, NULL, NULL));
    CHECK(stats_of(replay).cuts == 0);
    b = 2;
    CHECK_OK(per_replay_add(replay, &steps, NULL, NULL));
    CHECK(stats_of(replay).cuts == 1);
    b = 1, a = 2;
    CHECK_OK(per_replay_add(replay, &steps, NULL, NULL));
    CHECK(stats_of(replay).cuts == 2);
    per_replay_free(replay);
}

/* Without an announced next observation there is nothing to compare. */
static void nothing_announced_nothing_cut(void) {
    per_replay* replay = create();
    add_step(replay, 0, 0, 1);
    add_step(replay, 0, 77, 1);
    CHECK(stats_of(replay).cuts == 0);
    CHECK_WINDOW(replay, 0, 0, 1, 0.5f, 77, 1, 0, 0);
    add_full(replay, 0, 78, 1, TERMINATED, 79); /* nor after an end */
    add_full(replay, 0, 5, 1, GOES_ON, 6);
    CHECK(stats_of(replay).cuts == 0 && stats_of(replay).episodes == 1);
    per_replay_free(replay);
}

static void on_gap_error_changes_nothing(void) {
    per_replay_options options = cut_options();
    int64_t id = -7;
    options.on_gap = PER_GAP_ERROR;
    per_replay* replay = create_replay(&options);
    add_full(replay, 0, 0, 1, GOES_ON, 1);
    CHECK_BAD_STEP(try_step(replay, 0, 50, 2, GOES_ON, NEXT_GIVEN, 51, &id), "observation");
    CHECK(id == id_of_bad_step() && stats_of(replay).added == 1 && stats_of(replay).cuts == 0);
    CHECK_WINDOW(replay, 0, 0, 1, 0.5f, 1, 1, 0, 0);
    CHECK(add_full(replay, 0, 1, 2, GOES_ON, 2) == 1);
    /* A requested cut is not a gap. */
    CHECK_OK(per_replay_cut(replay, 0, NULL, NULL));
    CHECK(add_full(replay, 0, 50, 2, GOES_ON, 51) == 3);
    CHECK(stats_of(replay).cuts == 1);
    per_replay_free(replay);
}

static void cut_by_hand_with_the_observation_known(void) {
    per_replay* replay = create();
    const int64_t env = 0;
    add_full(replay, 0, 0, 1, GOES_ON, 1);
    add_full(replay, 0, 1, 2, GOES_ON, 2);
    CHECK_OK(per_replay_cut(replay, 1, &env, NULL));
    CHECK(stats_of(replay).cuts == 1 && stats_of(replay).episodes == 1);
    CHECK_WINDOW(replay, 1, 1, 2, 0.5f, 2, 1, 0, 1);
    CHECK(add_full(replay, 0, 2, 3, GOES_ON, 3) == 3); /* even with the same observation a new episode begins */
    CHECK_LIVE(replay, 0, 1, 3);
    /* An environment without a running episode is unaffected. */
    CHECK_OK(per_replay_cut(replay, 0, NULL, NULL));
    CHECK_OK(per_replay_cut(replay, 0, NULL, NULL));
    CHECK(stats_of(replay).cuts == 2);
    per_replay_free(replay);
}

static void cut_by_hand_with_the_observation_unknown(void) {
    per_replay* replay = create();
    add_step(replay, 0, 0, 1);
    add_step(replay, 0, 1, 2);
    CHECK_OK(per_replay_cut(replay, 0, NULL, NULL));
    CHECK(stats_of(replay).cuts == 1 && stats_of(replay).episodes == 1);
    CHECK_LIVE(replay, 0);
    CHECK_WINDOW(replay, 0, 0, 1, 0.5f, 1, 1, 0, 0);
    CHECK(add_step(replay, 0, 10, 11) == 2);
    CHECK_LIVE(replay, 0);
    per_replay_free(replay);
}

/* A cut completes pending windows (n_step 3), as an end does. */
static void a_cut_completes_windows(void) {
    per_replay_options options = cut_options();
    options.n_step = 3;
    per_replay* replay = create_replay(&options);
    for (int t = 0; t < 3; ++t) add_full(replay, 0, (float)t, (float)t + 1, GOES_ON, (float)t + 1);
    CHECK_LIVE(replay, 0);
    add_full(replay, 0, 50, 1, GOES_ON, 51);
    CHECK_LIVE(replay, 0, 1, 2);
    CHECK_WINDOW(replay, 1, 1, 2 + 1.5f, 0.25f, 3, 2, 0, 1);
    CHECK_WINDOW(replay, 2, 2, 3, 0.5f, 3, 1, 0, 1);
    CHECK_OK(per_replay_cut(replay, 0, NULL, NULL));
    CHECK_LIVE(replay, 0, 1, 2, 4);
    CHECK_WINDOW(replay, 4, 50, 1, 0.5f, 51, 1, 0, 1);
    per_replay_free(replay);
}

/* Only the listed environments are cut. */
static void cuts_of_some_environments(void) {
    per_replay* replay = create_plain(30, 3);
    const int64_t ends[] = {2, 0, 2, 2, 0}, beyond[] = {0, 3}, below[] = {-1};
    for (int env = 0; env < 3; ++env) add_full(replay, env, (float)env, 0, GOES_ON, (float)env + 10);
    CHECK_OK(per_replay_cut(replay, 0, ends, NULL));
    CHECK(stats_of(replay).cuts == 0);
    CHECK_REFUSED(per_replay_cut(replay, 2, beyond, NULL), "env_ids[1]");
    CHECK_REFUSED(per_replay_cut(replay, 1, below, NULL), "env_ids[0]");
    CHECK(stats_of(replay).cuts == 0);
    CHECK_OK(per_replay_cut(replay, 5, ends, NULL)); /* once each, even if listed twice */
    CHECK(stats_of(replay).cuts == 2);
    for (int env = 0; env < 3; ++env) add_full(replay, env, (float)env + 10, 0, GOES_ON, (float)env + 20);
    CHECK_LIVE(replay, 0, 1, 2, 6, 4, 8); /* environment 1 went on: its second row is k = 1 */
    per_replay_free(replay);
}

int main(void) {
    another_observation_cuts();
    numbers_are_compared();
    comparison_is_after_casting();
    every_observation_is_compared();
    nothing_announced_nothing_cut();
    on_gap_error_changes_nothing();
    cut_by_hand_with_the_observation_known();
    cut_by_hand_with_the_observation_unknown();
    a_cut_completes_windows();
    cuts_of_some_environments();
    return 0;
}

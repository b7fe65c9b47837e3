/*
 * Arrays as users have them: every dtype is stored and returned byte by byte, others are cast, and flags may be numbers.
 */
#include "replay_check.h"

static const int64_t sizes[] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8};

/* One field of each dtype, [3], and one observation. */
static void every_dtype_keeps_its_bytes(void) {
    enum { DTYPES = 13, STEPS = 5 };
    static const int64_t three[] = {3};
    static char names[DTYPES + 1][16];
    static uint8_t given_bytes[DTYPES + 1][STEPS * 24], out_bytes[DTYPES + 1][STEPS * 24];
    per_field fields[DTYPES + 1];
    per_array given[DTYPES + 1];
    void* out[DTYPES + 1];
    per_replay_options options = replay_options(20, 1);
    const int64_t ids[STEPS] = {4, 3, 2, 1, 0};
    const float rewards[STEPS] = {0};
    const uint8_t flags[STEPS] = {0};
    uint64_t state = 1;
    int64_t size;
    for (int64_t i = 0; i <= DTYPES; ++i) {
        const int32_t dtype = i < DTYPES ? (int32_t)i : PER_UINT8;
        sprintf(names[i], i < DTYPES ? "field%d" : "observation", (int)i);
        fields[i] = field_of(names[i], dtype, 1, three);
        size = 3 * sizes[dtype];
        for (int64_t t = 0; t < STEPS * size; ++t) given_bytes[i][t] = (uint8_t)(next_random(&state) >> 56);
        given[i] = array_of(given_bytes[i], dtype);
        out[i] = out_bytes[i];
    }
    set_fields(&options, fields, DTYPES + 1);
    per_replay* replay = create_replay(&options);
    const per_steps steps = steps_of(STEPS, given, NULL, rewards, flags, flags);
    CHECK_OK(per_replay_add(replay, &steps, NULL, NULL));
    per_batch batch = default_batch();
    batch.fields = out;
    CHECK_OK(per_replay_get(replay, STEPS, ids, &batch, NULL));
    for (int64_t i = 0; i <= DTYPES; ++i) {
        size = 3 * sizes[i < DTYPES ? i : PER_UINT8];
        for (int64_t t = 0; t < STEPS; ++t)
            CHECK(memcmp(out_bytes[i] + t * size, given_bytes[i] + (STEPS - 1 - t) * size, (size_t)size) == 0);
    }
    per_replay_free(replay);
}

/* Gymnasium's float64 rewards, int64 observations in range, flags that are numbers. */
static void other_dtypes_are_cast(void) {
    per_replay_options options = replay_options(20, 1);
    const int64_t observations[] = {0, 255, 7}, beyond[] = {0, 256, 7};
    const double rewards[] = {0.1, -1e38, 1e-50};
    const int32_t terminated[] = {0, 0, 1};
    const float truncated[] = {0, -0.0f, 1};
    const uint8_t next[] = {255, 7, 9};
    static rows out;
    uint8_t stored[3];
    const int64_t ids[] = {0, 1, 2};
    per_field fields[1] = {field_of("observation", PER_UINT8, 0, NULL)};
    options.fields = fields;
    per_replay* replay = create_replay(&options);
    per_steps steps = default_steps();
    per_array given[1] = {array_of(beyond, PER_UINT64)};
    per_array next_given[1] = {array_of(next, PER_UINT8)};
    steps.length = 3;
    steps.fields = given;
    steps.next_fields = next_given;
    steps.reward = array_of(rewards, PER_FLOAT64);
    steps.terminated = array_of(terminated, PER_INT32);
    steps.truncated = array_of(truncated, PER_FLOAT32);
    if (!on_cuda()) /* the other step of the call is added there */
        CHECK_REFUSED(per_replay_add(replay, &steps, NULL, NULL),
                      "observation[1] is 256: allowed are 0 .. 255 (uint8)");
    given[0] = array_of(observations, PER_INT64);
    CHECK_REFUSED(per_replay_add(replay, &steps, NULL, NULL), "observation has dtype int64");
    given[0].dtype = PER_UINT64;
    CHECK_OK(per_replay_add(replay, &steps, NULL, NULL));
    fill_rows(&out);
    out.batch.weights = out.batch.probabilities = NULL;
    out.batch.next_fields = NULL;
    void* fields_out[1] = {stored};
    out.batch.fields = fields_out;
    CHECK_OK(per_replay_get(replay, 3, ids, &out.batch, NULL));
    CHECK(stored[0] == 0 && stored[1] == 255 && stored[2] == 7);
    CHECK(out.reward[0] == 0.1f && out.reward[1] == -1e38f && out.reward[2] == 0);
    CHECK(out.terminated[0] == 0 && out.terminated[1] == 0 && out.terminated[2] == 1);
    CHECK(out.truncated[0] == 0 && out.truncated[1] == 0 && out.truncated[2] == 0); /* flagged both ways: terminated */
    per_replay_free(replay);
}

/*
 * Flags other than 0 and 1 are refused, which catches swapped reward and terminated. Masked entries are not checked.
 */
static void flags_are_booleans_zeros_and_ones(void) {
    static const char* const names[] = {"terminated", "truncated", "mask", "next_mask"};
    static const double bad[] = {-1.5, 0.3, NAN, 2};
    const float observations[] = {0, 1}, rewards[2] = {0};
    const uint8_t two = 2, zero = 0;
    per_replay* replay;
    for (int which = 0; which < 4; ++which) {
        for (int i = 0; i < 5; ++i) {
            const double given[] = {which < 2 ? 0 : 1, i < 4 ? bad[i] : 2};
            const uint8_t bytes[] = {which < 2 ? 0 : 1, 2};
            const per_replay_options options = replay_options(20, 1);
            char text[64];
            int64_t ids[] = {-7, -7};
            call adds;
            replay = create_replay(&options);
            fill_call(&adds, 2, observations, observations, rewards, NULL, NULL);
            per_array* flags = which == 0   ? &adds.steps.terminated
                               : which == 1 ? &adds.steps.truncated
                               : which == 2 ? &adds.steps.mask
                                            : &adds.steps.next_mask;
            *flags = i < 4 ? array_of(given, PER_FLOAT64) : array_of(bytes, PER_BOOL);
            sprintf(text, "%s[1] is %s: it is a flag", names[which],
                    i == 2   ? "nan"
                    : i == 0 ? "-1.5"
                    : i == 1 ? "0.3"
                             : "2");
            CHECK_BAD_STEP(per_replay_add(replay, &adds.steps, ids, NULL), text);
            /* On CUDA the other step of the call is added. */
            CHECK(ids[0] == (on_cuda() ? 0 : -7) && ids[1] == id_of_bad_step());
            CHECK(stats_of(replay).added == on_cuda());
            per_replay_free(replay);
        }
    }
    {
        const per_replay_options options = replay_options(20, 1);
        call adds;
        replay = create_replay(&options);
        fill_call(&adds, 1, observations, NULL, rewards, &two, &two);
        adds.steps.mask = array_of(&zero, PER_BOOL);
        CHECK_OK(per_replay_add(replay, &adds.steps, NULL, NULL));
        CHECK(stats_of(replay).added == 0);
        per_replay_free(replay);
    }
}

int main(void) {
    every_dtype_keeps_its_bytes();
    other_dtypes_are_cast();
    flags_are_booleans_zeros_and_ones();
    return 0;
}

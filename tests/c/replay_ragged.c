/*
 * Fields with max_length: rows of any length. What step t of environment e is given follows from both numbers alone, so
 * every row of a batch can be recomputed from its id.
 */
#include "saved_bytes.h"

enum { CAPACITY = 60, MAX_POINTS = 5, MAX_TOKENS = 300, B = 32, MOST_ROWS = 20000, N_FIELDS = 3 };

/* ---------------------------------------------------------------------------------------------------------- contents */

static const int64_t point_shape[1] = {2};
static const per_field fields[N_FIELDS] = {
    {.name = "observation", .shape = point_shape, .ndim = 1, .dtype = PER_FLOAT32, .max_length = MAX_POINTS},
    {.name = "tokens", .dtype = PER_INT16, .max_length = MAX_TOKENS},
    {.name = "action", .dtype = PER_INT32},
};

static uint64_t mix(uint64_t a, uint64_t b, uint64_t c) {
    uint64_t x = a * 0x9E3779B97F4A7C15u + b * 0xC2B2AE3D27D4EB4Fu + c * 0x165667B19E3779F9u;
    x ^= x >> 29;
    x *= 0xBF58476D1CE4E5B9u;
    return x ^ x >> 32;
}

/* All lengths from 0 to the largest come up; that of tokens is 0 for a tenth of the steps. */
static int64_t n_points(int64_t env, int64_t t) {
    return (int64_t)(mix(1, (uint64_t)env, (uint64_t)t) % (MAX_POINTS + 1));
}
static int64_t n_tokens(int64_t env, int64_t t) {
    const uint64_t x = mix(2, (uint64_t)env, (uint64_t)t);
    return x % 10 == 0 ? 0 : (int64_t)(x / 10 % (MAX_TOKENS + 1));
}
static float point(int64_t env, int64_t t, int64_t k) {
    return (float)(mix(3 + (uint64_t)k, (uint64_t)env, (uint64_t)t) % 1000);
}
static int16_t token(int64_t env, int64_t t, int64_t k) {
    return (int16_t)(mix(20 + (uint64_t)k, (uint64_t)env, (uint64_t)t) % 30000);
}

static per_replay_options options_of(int64_t n_envs) {
    per_replay_options options = replay_options(CAPACITY, n_envs);
    set_fields(&options, fields, N_FIELDS);
    options.seed = 5;
    options.alpha = 1;
    return options;
}

/* A call that adds steps first .. first + length - 1 of all environments. Episodes have `episode` steps, and end by a
 * limit. */
typedef struct {
    float points[64 * 4 * MAX_POINTS * 2], next_points[64 * 4 * MAX_POINTS * 2];
    int16_t tokens[64 * 4 * MAX_TOKENS];
    int32_t actions[64 * 4];
    float rewards[64 * 4];
    uint8_t terminated[64 * 4], truncated[64 * 4];
    int64_t offsets[3][64 * 4 + 1];
    per_array arrays[N_FIELDS], next_arrays[N_FIELDS];
    per_steps steps;
} ragged_call;

static void fill_ragged_call(ragged_call* add, int64_t n_envs, int64_t first, int64_t length, int64_t episode) {
    int64_t ends[3] = {0, 0, 0};
    for (int64_t i = 0; i < length * n_envs; ++i) {
        const int64_t env = i % n_envs, t = first + i / n_envs;
        for (int64_t k = 0; k < 2 * n_points(env, t); ++k) add->points[2 * ends[0] + k] = point(env, t, k);
        for (int64_t k = 0; k < 2 * n_points(env, t + 1); ++k) add->next_points[2 * ends[1] + k] = point(env, t + 1, k);
        for (int64_t k = 0; k < n_tokens(env, t); ++k) add->tokens[ends[2] + k] = token(env, t, k);
        for (int a = 0; a < 3; ++a) add->offsets[a][i] = ends[a];
        ends[0] += n_points(env, t);
        ends[1] += n_points(env, t + 1);
        ends[2] += n_tokens(env, t);
        for (int a = 0; a < 3; ++a) add->offsets[a][i + 1] = ends[a];
        add->actions[i] = (int32_t)t;
        add->rewards[i] = 1;
        add->terminated[i] = 0;
        add->truncated[i] = (t + 1) % episode == 0;
    }
    add->arrays[0] = array_of(add->points, PER_FLOAT32);
    add->arrays[0].offsets = add->offsets[0];
    add->arrays[1] = array_of(add->tokens, PER_INT16);
    add->arrays[1].offsets = add->offsets[2];
    add->arrays[2] = array_of(add->actions, PER_INT32);
    memset(add->next_arrays, 0, sizeof add->next_arrays);
    add->next_arrays[0] = array_of(add->next_points, PER_FLOAT32);
    add->next_arrays[0].offsets = add->offsets[1];
    add->steps = steps_of(length, add->arrays, add->next_arrays, add->rewards, add->terminated, add->truncated);
}

static void add_steps(per_replay* replay, int64_t n_envs, int64_t first, int64_t length, int64_t episode) {
    static ragged_call add;
    fill_ragged_call(&add, n_envs, first, length, episode);
    CHECK_OK(per_replay_add(replay, &add.steps, NULL, NULL));
}

/* ----------------------------------------------------------------------------------------------------------- batches */

typedef struct {
    float points[MOST_ROWS * MAX_POINTS * 2], next_points[MOST_ROWS * MAX_POINTS * 2];
    int16_t tokens[MOST_ROWS * MAX_TOKENS];
    int32_t actions[MOST_ROWS], n_steps[MOST_ROWS];
    uint8_t mask[MOST_ROWS];
    int64_t ids[MOST_ROWS], offsets[3][MOST_ROWS + 1];
    per_ragged ragged[3]; /* observation, next observation, tokens */
    void *fields[N_FIELDS], *next_fields[N_FIELDS];
    per_batch batch;
} ragged_rows;

static void fill_batch(ragged_rows* rows, int64_t padded_points, int64_t padded_tokens) {
    memset(rows, 0x5A, sizeof *rows);
    void* const values[3] = {rows->points, rows->next_points, rows->tokens};
    for (int a = 0; a < 3; ++a) {
        rows->ragged[a].values = values[a];
        rows->ragged[a].offsets = rows->offsets[a];
        rows->ragged[a].capacity = MOST_ROWS * (a == 2 ? MAX_TOKENS : MAX_POINTS);
        rows->ragged[a].padded_length = a == 2 ? padded_tokens : padded_points;
    }
    rows->fields[0] = &rows->ragged[0];
    rows->fields[1] = &rows->ragged[2];
    rows->fields[2] = rows->actions;
    rows->next_fields[0] = &rows->ragged[1];
    rows->next_fields[1] = rows->next_fields[2] = NULL;
    rows->batch = default_batch();
    rows->batch.fields = rows->fields;
    rows->batch.next_fields = rows->next_fields;
    rows->batch.ids = rows->ids;
    rows->batch.n_steps = rows->n_steps;
}

static void check_points(const per_ragged* out, int64_t i, int64_t env, int64_t t) {
    const int64_t n = t < 0 ? 0 : n_points(env, t), padded = out->padded_length;
    const float* const values = (const float*)out->values + 2 * (padded > 0 ? i * padded : out->offsets[i]);
    CHECK(out->offsets[i + 1] - out->offsets[i] == n);
    for (int64_t k = 0; k < 2 * n; ++k) CHECK(values[k] == point(env, t, k));
    for (int64_t k = 2 * n; k < 2 * padded; ++k) CHECK(values[k] == 0);
}

static void check_tokens(const per_ragged* out, int64_t i, int64_t env, int64_t t) {
    const int64_t n = t < 0 ? 0 : n_tokens(env, t), padded = out->padded_length;
    const int16_t* const values = (const int16_t*)out->values + (padded > 0 ? i * padded : out->offsets[i]);
    CHECK(out->offsets[i + 1] - out->offsets[i] == n);
    for (int64_t k = 0; k < n; ++k) CHECK(values[k] == token(env, t, k));
    for (int64_t k = n; k < padded; ++k) CHECK(values[k] == 0);
}

static void check_total(const per_ragged* out, int64_t n) {
    int64_t longest = 0;
    for (int64_t i = 0; i < n; ++i)
        if (out->offsets[i + 1] - out->offsets[i] > longest) longest = out->offsets[i + 1] - out->offsets[i];
    CHECK(out->offsets[0] == 0 && out->total == (out->padded_length > 0 ? longest : out->offsets[n]));
}

/* Rows by id; action is the step. A negative id has empty rows. */
static void check_batch(const ragged_rows* rows, int64_t n, int64_t n_envs) {
    for (int64_t i = 0; i < n; ++i) {
        const int64_t env = rows->ids[i] < 0 ? 0 : rows->ids[i] % n_envs;
        const int64_t t = rows->ids[i] < 0 ? -1 : rows->actions[i];
        check_points(&rows->ragged[0], i, env, t);
        check_points(&rows->ragged[1], i, env, t < 0 ? -1 : t + rows->n_steps[i]);
        check_tokens(&rows->ragged[2], i, env, t);
    }
    for (int a = 0; a < 3; ++a) check_total(&rows->ragged[a], n);
}

/* ------------------------------------------------------------------------------------------------------------- tests */

static void rows_of_every_length_come_back(int64_t n_envs, int64_t n_step, int32_t stores_next, int64_t episode) {
    static ragged_rows rows;
    per_replay_options options = options_of(n_envs);
    options.n_step = n_step;
    options.store_next_observation = stores_next;
    options.gather_threads = 2;
    per_replay* replay = create_replay(&options);
    int64_t t = 0;
    for (int round = 0; round < 120; ++round) {
        const int64_t length = (int64_t)(mix(9, (uint64_t)round, 0) % 12);
        add_steps(replay, n_envs, t, length, episode);
        t += length;
        if (live_of(replay) == 0) continue;
        fill_batch(&rows, round % 3 == 1 ? MAX_POINTS : 0, round % 3 == 2 ? MAX_TOKENS : 0);
        CHECK_OK(per_replay_sample(replay, NULL, B, &rows.batch, NULL));
        check_batch(&rows, B, n_envs);
    }
    CHECK(stats_of(replay).cuts == 0); /* observations were recognised as those announced */
    per_replay_free(replay);
}

/* A batch that does not fit changes nothing: neither the arrays, nor the draws, nor the buffer. */
static void a_batch_that_does_not_fit_is_drawn_again(void) {
    static ragged_rows rows, untouched, expected;
    per_replay_options options = options_of(2);
    options.keep_times_sampled = 1;
    options.beta_steps = 100;
    per_replay *replay = create_replay(&options), *twin = create_replay(&options);
    add_steps(replay, 2, 0, 25, 7);
    add_steps(twin, 2, 0, 25, 7);
    fill_batch(&expected, 0, 0);
    CHECK_OK(per_replay_sample(twin, NULL, B, &expected.batch, NULL));
    fill_batch(&rows, 0, 0);
    const per_replay_statistics before = stats_of(replay);
    for (int a = 0; a < 3; ++a) {
        rows.ragged[a].capacity = expected.ragged[a].total - 1;
        memcpy(&untouched, &rows, sizeof rows);
        const char* const names[3] = {"observation.capacity is ", "next_observation.capacity is ",
                                      "tokens.capacity is "};
        CHECK_FAILS(per_replay_sample(replay, NULL, B, &rows.batch, NULL), PER_ERROR_FULL, names[a]);
        for (int other = 0; other < 3; ++other) {
            CHECK(rows.ragged[other].total == expected.ragged[other].total);
            untouched.ragged[other].total = expected.ragged[other].total;
        }
        CHECK(memcmp(&untouched, &rows, sizeof rows) == 0);
        rows.ragged[a].capacity = expected.ragged[a].total;
    }
    rows.ragged[2].padded_length = MAX_TOKENS / 8;
    CHECK_FAILS(per_replay_sample(replay, NULL, B, &rows.batch, NULL), PER_ERROR_FULL, "tokens.padded_length is 37: ");
    CHECK(rows.ragged[2].total > MAX_TOKENS / 8 && rows.ragged[2].total <= MAX_TOKENS);
    rows.ragged[2].padded_length = MAX_TOKENS + 1;
    CHECK_REFUSED(per_replay_sample(replay, NULL, B, &rows.batch, NULL),
                  "tokens.padded_length is 301: allowed are 0 .. 300");
    rows.ragged[2].padded_length = 0;
    rows.ragged[0].capacity = -1;
    CHECK_REFUSED(per_replay_sample(replay, NULL, B, &rows.batch, NULL),
                  "observation.capacity is -1: allowed are 0 ..");
    rows.ragged[0].capacity = expected.ragged[0].total;
    check_same_statistics(replay, &before);
    CHECK_OK(per_replay_sample(replay, NULL, B, &rows.batch, NULL));
    CHECK(memcmp(rows.ids, expected.ids, sizeof rows.ids) == 0);
    CHECK(memcmp(rows.tokens, expected.tokens, sizeof rows.tokens) == 0);
    check_batch(&rows, B, 2);
    /* Only lengths, and nothing at all. */
    fill_batch(&rows, 0, 0);
    fill_batch(&expected, 0, 0);
    for (int a = 0; a < 3; ++a) rows.ragged[a].values = NULL;
    rows.ragged[1].offsets = NULL;
    rows.fields[1] = NULL;
    CHECK_OK(per_replay_sample(replay, NULL, B, &rows.batch, NULL));
    CHECK_OK(per_replay_sample(twin, NULL, B, &expected.batch, NULL));
    CHECK(memcmp(rows.offsets[0], expected.offsets[0], (B + 1) * sizeof(int64_t)) == 0);
    CHECK(rows.ragged[1].total == expected.ragged[1].total);
    /* Neither do units. */
    const int64_t units[2] = {-1, -2};
    uint64_t masses[2] = {77, 77}, first_units[2] = {77, 77};
    rows.ragged[0].capacity = 0;
    rows.fields[1] = &rows.ragged[2];
    rows.ragged[0].values = rows.points;
    CHECK_FAILS(per_replay_get_units(replay, NULL, 2, units, &rows.batch, masses, first_units, NULL), PER_ERROR_FULL,
                "observation.capacity is 0: ");
    CHECK(masses[0] == 77 && masses[1] == 77 && first_units[0] == 77 && first_units[1] == 77);
    free_both(replay, twin);
}

static void rows_are_read_and_set_by_id(void) {
    static ragged_rows rows;
    static const int64_t ids[4] = {8, 3, 9, 3};
    per_replay_options options = options_of(1);
    options.n_step = 3;
    per_replay* replay = create_replay(&options);
    add_steps(replay, 1, 0, 20, 1000);
    fill_batch(&rows, 0, 0);
    CHECK_OK(per_replay_get(replay, 4, ids, &rows.batch, NULL));
    for (int i = 0; i < 4; ++i) CHECK(rows.ids[i] == ids[i] && rows.n_steps[i] == 1);
    check_batch(&rows, 4, 1);
    /* The windows of ids that are not live are empty. */
    const int64_t some[3] = {19, 4, -1};
    fill_batch(&rows, 0, MAX_TOKENS);
    CHECK_OK(per_replay_get_windows(replay, NULL, PER_INVALID_SKIP, 3, some, &rows.batch, NULL));
    CHECK(rows.ids[0] == -1 && rows.ids[1] == 4 && rows.ids[2] == -1 && rows.n_steps[1] == 3);
    check_batch(&rows, 3, 1);
    const int64_t none[2] = {19, -1};
    fill_batch(&rows, 0, 0);
    CHECK_OK(per_replay_get_windows(replay, NULL, PER_INVALID_SKIP, 2, none, &rows.batch, NULL));
    check_batch(&rows, 2, 1);
    fill_batch(&rows, 0, 0);
    CHECK_OK(per_replay_get_windows(replay, NULL, PER_INVALID_SKIP, 0, NULL, &rows.batch, NULL));
    /* New tokens for row 8, of another length and another dtype; for row 3 twice, of which the last counts. */
    static const int8_t tokens[7] = {7, -7, 1, 2, 3, 4, 5};
    static const int64_t offsets[5] = {0, 2, 5, 5, 7}; /* 8: 7 -7; 3: 1 2 3; 9: none; 3: 4 5 */
    per_array given[N_FIELDS];
    memset(given, 0, sizeof given);
    given[1] = array_of(tokens, PER_INT8);
    given[1].offsets = offsets;
    CHECK_OK(per_replay_set(replay, 4, ids, given, NULL));
    fill_batch(&rows, 0, 0);
    CHECK_OK(per_replay_get(replay, 4, ids, &rows.batch, NULL));
    static const int16_t expected[6] = {7, -7, 4, 5, 4, 5};
    CHECK(memcmp(rows.tokens, expected, sizeof expected) == 0 && rows.ragged[2].total == 6);
    CHECK(rows.offsets[2][1] == 2 && rows.offsets[2][2] == 4 && rows.offsets[2][3] == 4 && rows.offsets[2][4] == 6);
    /* One row needs no offsets: its shape tells the length. */
    const int64_t length = 3;
    given[1].offsets = NULL;
    given[1].shape = &length;
    given[1].ndim = 1;
    CHECK_OK(per_replay_set(replay, 1, ids, given, NULL));
    fill_batch(&rows, 0, 0);
    CHECK_OK(per_replay_get(replay, 1, ids, &rows.batch, NULL));
    CHECK(rows.tokens[0] == 7 && rows.tokens[1] == -7 && rows.tokens[2] == 1 && rows.ragged[2].total == 3);
    per_replay_free(replay);
}

/* Entry t of a sequence's observations is that of step t; after the end of an episode rows are empty. */
static void sequences(int64_t episode) {
    static ragged_rows rows;
    enum { T = 4, N = 2, N_SEQUENCES = 16 };
    per_replay_options options = options_of(2);
    options.n_step = N;
    options.sequence_length = 3;
    options.burn_in = 1;
    options.sequence_stride = 1;
    per_replay* replay = create_replay(&options);
    for (int64_t t = 0; t < 80; ++t) add_steps(replay, 2, t, 1, episode);
    fill_batch(&rows, 0, 0);
    rows.batch.next_fields = NULL;
    rows.batch.mask = rows.mask;
    CHECK_OK(per_replay_sample(replay, NULL, N_SEQUENCES, &rows.batch, NULL));
    for (int64_t i = 0; i < N_SEQUENCES; ++i) {
        const int64_t env = rows.ids[i] % 2, first = rows.actions[i * T];
        int64_t n = 0;
        while (n < T && rows.mask[i * T + n]) ++n;
        CHECK(n > 1 && (n == T || (first + n) % episode == 0));
        const int64_t left = episode - first % episode; /* transitions of the episode */
        for (int64_t t = 0; t < T + N; ++t) {
            const int64_t last = left < T + N - 1 ? left : T + N - 1;
            check_points(&rows.ragged[0], i * (T + N) + t, env, t <= last ? first + t : -1);
        }
        for (int64_t t = 0; t < T; ++t) check_tokens(&rows.ragged[2], i * T + t, env, t < n ? first + t : -1);
    }
    check_total(&rows.ragged[0], N_SEQUENCES * (T + N));
    check_total(&rows.ragged[2], N_SEQUENCES * T);
    per_replay_free(replay);
}

/* An observation that differs from the one announced, in a value or only in its length, cuts the trajectory. -0 is 0. */
static void gaps_are_seen(void) {
    per_replay_options options = options_of(1);
    per_replay* replay = create_replay(&options);
    static const float announced[6] = {1, 0, 3, 4, 5, 6}, same[6] = {1, -0.0f, 3, 4, 5, 6},
                       other[6] = {1, 0, 3, 4, 5, 7};
    static const float* const given[4] = {same, other, announced, announced};
    static const int64_t lengths[4] = {3, 3, 2, 0};
    for (int i = 0; i < 4; ++i) {
        static ragged_call add;
        fill_ragged_call(&add, 1, 0, 1, 1000);
        const int64_t three[2] = {0, 3};
        add.next_arrays[0] = array_of(announced, PER_FLOAT32);
        add.next_arrays[0].offsets = three;
        CHECK_OK(per_replay_add(replay, &add.steps, NULL, NULL));
        fill_ragged_call(&add, 1, 1, 1, 1000);
        const int64_t ends[2] = {0, lengths[i]};
        add.arrays[0] = array_of(given[i], PER_FLOAT32);
        add.arrays[0].offsets = ends;
        const int64_t cuts = stats_of(replay).cuts;
        CHECK_OK(per_replay_add(replay, &add.steps, NULL, NULL));
        CHECK(stats_of(replay).cuts == cuts + (i > 0));
        CHECK_OK(per_replay_cut(replay, 0, NULL, NULL));
    }
    per_replay_free(replay);
}

/* Rows that the mask leaves out are not read, whatever they hold. Floats are cast, and NaN is refused by name. */
static void masks_and_casts(void) {
    static ragged_call add;
    static ragged_rows rows;
    static const double points[10] = {1, 2, NAN, NAN, 3, 4, 5, 6, 7, 8};
    static const int64_t offsets[4] = {0, 1, 2, 5};
    static const uint8_t mask[3] = {1, 0, 1};
    per_replay_options options = options_of(3);
    options.on_nan = PER_NAN_ERROR;
    per_replay* replay = create_replay(&options);
    fill_ragged_call(&add, 3, 0, 1, 1000);
    add.arrays[0] = array_of(points, PER_FLOAT64);
    add.arrays[0].offsets = offsets;
    add.steps.mask = array_of(mask, PER_BOOL);
    const int64_t shape[2] = {5, 2};
    add.arrays[0].shape = shape;
    add.arrays[0].ndim = 2;
    CHECK_OK(per_replay_add(replay, &add.steps, NULL, NULL));
    const int64_t ids[2] = {0, 2};
    fill_batch(&rows, 0, 0);
    rows.batch.next_fields = NULL;
    CHECK_OK(per_replay_get(replay, 2, ids, &rows.batch, NULL));
    static const float expected[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    CHECK(memcmp(rows.points, expected, sizeof expected) == 0 && rows.offsets[0][1] == 1 && rows.offsets[0][2] == 4);
    /* A row that is left out may even be longer than max_length; and the rows may begin far behind the array. */
    const int64_t far = INT64_C(1) << 39, far_offsets[4] = {far, far + 1, far + 10, far + 11};
    static const double three[22] = {1, 2, [20] = 3, 4};
    add.arrays[0].data = (const void*)((uintptr_t)three - (uintptr_t)far * 2 * sizeof(double));
    add.arrays[0].offsets = far_offsets;
    add.arrays[0].shape = NULL;
    CHECK_OK(per_replay_cut(replay, 0, NULL, NULL));
    CHECK_OK(per_replay_add(replay, &add.steps, NULL, NULL));
    add.arrays[0].data = points;
    add.arrays[0].offsets = offsets;
    add.arrays[0].shape = shape;
    add.steps.mask = array_of(NULL, PER_BOOL);
    CHECK_REFUSED(per_replay_add(replay, &add.steps, NULL, NULL), "observation[1, 0] is nan");
    per_replay_free(replay);
}

static void bad_arrays_change_nothing(void) {
    static ragged_call add;
    static const int64_t falling[3] = {0, 2, 1}, negative[3] = {-1, 2, 3}, long_row[3] = {0, 6, 7},
                         beyond[3] = {0, 2, 4};
    static const int64_t wrong_axis[2] = {3, 3}, no_axis[1] = {3}, right[2] = {3, 2};
    per_replay_options options = options_of(2);
    per_replay* replay = create_replay(&options);
    const per_replay_statistics before = stats_of(replay);
    fill_ragged_call(&add, 2, 0, 1, 1000);
    const per_array good = add.arrays[0];
    const struct {
        const int64_t *offsets, *shape;
        int32_t ndim;
        const char* text;
    } cases[] = {
        {falling, NULL, 0, "observation.offsets[2] is 1: allowed are 2 .. "},
        {negative, NULL, 0, "observation.offsets[0] is -1: allowed are 0 .. "},
        {long_row, NULL, 0, "observation: row 0 has 6 values: at most max_length, 5, are allowed"},
        {beyond, right, 2, "observation.offsets[2] is 4: allowed are 2 .. 3"},
        {beyond, wrong_axis, 2, "observation has shape (3, 3): expected is (n, 2), for n values"},
        {beyond, no_axis, 1, "observation has shape (3,): expected is (n, 2), for n values"},
        {NULL, right, 2, "observation.offsets is NULL: must be given for 2 rows"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        add.arrays[0].offsets = cases[i].offsets;
        add.arrays[0].shape = cases[i].shape;
        add.arrays[0].ndim = cases[i].ndim;
        CHECK_REFUSED(per_replay_add(replay, &add.steps, NULL, NULL), cases[i].text);
    }
    add.arrays[0] = good;
    add.arrays[0].offsets = (const int64_t*)MISALIGNED(add.offsets[0]);
    CHECK_MISALIGNED(per_replay_add(replay, &add.steps, NULL, NULL), "observation.offsets");
    add.arrays[0] = good;
    add.arrays[2].offsets = add.offsets[0];
    CHECK_REFUSED(per_replay_add(replay, &add.steps, NULL, NULL), "action.offsets is given: must be NULL");
    check_same_statistics(replay, &before);
    per_replay_free(replay);
}

static void what_does_not_go_with_it_is_named(void) {
    const int64_t number = 0;
    const per_array zero = array_of(&number, PER_INT64);
    per_field field = fields[1];
    field.max_length = -1;
    CHECK_REFUSED(per_field_check(&field, sizeof field), "max_length is -1: allowed are 0 .. 1073741823");
    field.max_length = INT64_C(1) << 30;
    CHECK_REFUSED(per_field_check(&field, sizeof field), "max_length is 1073741824: allowed are 0 .. ");
    field.max_length = 4;
    field.default_value = &zero;
    CHECK_FAILS(per_field_check(&field, sizeof field), PER_ERROR_UNSUPPORTED,
                "default is given: must not be with max_length");
    field.default_value = NULL;
    field.stack = 2;
    CHECK_FAILS(per_field_check(&field, sizeof field), PER_ERROR_UNSUPPORTED, "stack is 2: must be 1 with max_length");
    per_replay* replay = NULL;
    per_replay_options options = options_of(1);
    options.frame_stack = 4;
    CHECK_FAILS(per_replay_create(&options, &replay), PER_ERROR_UNSUPPORTED, "stack of field \"observation\" is 4");
    options = options_of(1);
    options.memory.storage = ".";
    CHECK_FAILS(per_replay_create(&options, &replay), PER_ERROR_UNSUPPORTED,
                "max_length of field \"observation\" is 5");
    options = options_of(1);
    replay = create_replay(&options);
    per_loader* loader = NULL;
    per_loader_options loading = default_loader_options();
    loading.batch_size = 4;
    CHECK_FAILS(per_loader_create(replay, &loading, &loader), PER_ERROR_UNSUPPORTED, "a loader takes no rows");
    per_replay_free(replay);
}

static void check_loaded(per_replay* replay, per_replay* loaded, int64_t n_envs) {
    static ragged_rows rows;
    fill_batch(&rows, 0, 0);
    const int64_t n = live_of(loaded) < MOST_ROWS ? live_of(loaded) : MOST_ROWS;
    int64_t live = 0;
    static int64_t ids[MOST_ROWS];
    CHECK_OK(per_replay_get_live_ids(loaded, MOST_ROWS, ids, &live));
    CHECK_OK(per_replay_get(loaded, n, ids, &rows.batch, NULL));
    check_batch(&rows, n, n_envs);
    CHECK(describe_replay(loaded).fields[0].max_length == MAX_POINTS);
    if (replay != NULL) check_same_saves(replay, loaded);
    per_replay_free(loaded);
}

/* A save holds the rows of its moment, whatever is overwritten or set before it has written them. */
static void files(int64_t n_envs, int32_t stores_next, int32_t compression) {
    per_replay_options options = options_of(n_envs);
    options.store_next_observation = stores_next;
    options.save_compression = compression;
    options.capacity = 3000;
    per_replay* replay = create_replay(&options);
    const int64_t n = 4000 / n_envs;
    for (int64_t t = 0; t < n; ++t) add_steps(replay, n_envs, t, 1, 11);
    check_loaded(replay, reloaded(replay), n_envs);
    per_replay* loaded = NULL;
    CHECK_OK(per_replay_save(replay, "replay_ragged.per", NULL));
    CHECK_OK(load_on("replay_ragged.per", PER_CPU, 0, &loaded));
    check_loaded(replay, loaded, n_envs);
    int64_t written[2];
    for (int round = 0; round < 2; ++round) {
        CHECK_OK(checkpoint_within(replay, "replay_ragged.dir", -1, &written[round]));
        CHECK_OK(load_on("replay_ragged.dir", PER_CPU, 0, &loaded));
        check_loaded(replay, loaded, n_envs);
        add_steps(replay, n_envs, n + round, 1, 11);
    }
    CHECK(written[1] < written[0] / 2); /* what has not changed is not written again */
    const bytes before = saved(replay);
    per_save* save = NULL;
    CHECK_OK(per_replay_save_start(replay, "replay_ragged.per", NULL, &save));
    for (int64_t t = 2; t < n; ++t) add_steps(replay, n_envs, n + t, 1, 11);
    int64_t so_far = 0, total = 0;
    CHECK_OK(per_save_wait(save, -1, &so_far, &total));
    CHECK(so_far == total);
    per_save_free(save);
    CHECK_OK(load_on("replay_ragged.per", PER_CPU, 0, &loaded));
    check_saved_as(&before, loaded);
    check_loaded(NULL, loaded, n_envs);
    free(before.data);
    per_replay_free(replay);
}

/* As per_replay_create() says. */
static void memory_follows_what_is_stored(void) {
    enum { ROWS = 20000, LONGEST = 2000 };
    static const per_field two[2] = {{.name = "observation", .dtype = PER_FLOAT32},
                                     {.name = "tokens", .dtype = PER_INT32, .max_length = LONGEST}};
    static int32_t tokens[LONGEST];
    per_replay_options options = replay_options(ROWS, 1);
    set_fields(&options, two, 2);
    per_replay* replay = create_replay(&options);
    const int64_t before = stats_of(replay).memory_bytes;
    int64_t stored = 0, lengths[ROWS] = {0};
    for (int64_t t = 0; t < 5 * ROWS; ++t) {
        const int64_t n = 100 + (int64_t)(mix(4, 4, (uint64_t)t) % (LONGEST - 100));
        const float observation = (float)t, reward = 0;
        const uint8_t goes_on = 0;
        const int64_t offsets[2] = {0, n};
        per_array arrays[2] = {array_of(&observation, PER_FLOAT32), array_of(tokens, PER_INT32)};
        arrays[1].offsets = offsets;
        const per_steps steps = steps_of(1, arrays, NULL, &reward, &goes_on, &goes_on);
        CHECK_OK(per_replay_add(replay, &steps, NULL, NULL));
        stored += 4 * (n - lengths[t % ROWS]);
        lengths[t % ROWS] = n;
    }
    const int64_t taken = stats_of(replay).memory_bytes - before;
    CHECK(taken >= stored && taken <= stored * 9 / 8 + 32 * ROWS);
    per_replay_free(replay);
}

int main(void) {
    for (int32_t stores_next = 0; stores_next < 2; ++stores_next)
        for (int64_t n_step = 1; n_step < 4; n_step += 2) {
            rows_of_every_length_come_back(1, n_step, stores_next, 9);
            rows_of_every_length_come_back(3, n_step, stores_next, 1000);
        }
    a_batch_that_does_not_fit_is_drawn_again();
    rows_are_read_and_set_by_id();
    sequences(1000);
    sequences(6);
    gaps_are_seen();
    masks_and_casts();
    bad_arrays_change_nothing();
    what_does_not_go_with_it_is_named();
    files(1, 0, 0);
    files(4, 1, 1);
    memory_follows_what_is_stored();
    return 0;
}

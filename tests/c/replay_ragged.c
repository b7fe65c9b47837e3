/*
 * Fields with max_length: rows of any length come back as they were added, in all kinds of batches, by loaders and
 * mixtures, from files, and in the memory that per_replay_create() states.
 */
#define _XOPEN_SOURCE 700
#include "loader_check.h"
#include "ragged_check.h"

/* Places in a folder of this process. */
static char folder[] = "/tmp/per-ragged-XXXXXX", file[64], directory[64];

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
        check_ragged_rows(&rows, B, n_envs);
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
    check_ragged_rows(&rows, B, 2);
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
    check_ragged_rows(&rows, 4, 1);
    /* The windows of ids that are not live are empty. */
    const int64_t some[3] = {19, 4, -1};
    fill_batch(&rows, 0, MAX_TOKENS);
    CHECK_OK(per_replay_get_windows(replay, NULL, PER_INVALID_SKIP, 3, some, &rows.batch, NULL));
    CHECK(rows.ids[0] == -1 && rows.ids[1] == 4 && rows.ids[2] == -1 && rows.n_steps[1] == 3);
    check_ragged_rows(&rows, 3, 1);
    const int64_t none[2] = {19, -1};
    fill_batch(&rows, 0, 0);
    CHECK_OK(per_replay_get_windows(replay, NULL, PER_INVALID_SKIP, 2, none, &rows.batch, NULL));
    check_ragged_rows(&rows, 2, 1);
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
    loading.device = PER_CUDA;
    CHECK_FAILS(per_loader_create(replay, &loading, &loader), PER_ERROR_UNSUPPORTED,
                "field \"observation\" has max_length 5: a loader on PER_CUDA takes no rows of any length");
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
    check_ragged_rows(&rows, n, n_envs);
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
    CHECK_OK(per_replay_save(replay, file, NULL));
    CHECK_OK(load_on(file, PER_CPU, 0, &loaded));
    check_loaded(replay, loaded, n_envs);
    int64_t written[2];
    for (int round = 0; round < 2; ++round) {
        CHECK_OK(checkpoint_within(replay, directory, -1, &written[round]));
        CHECK_OK(load_on(directory, PER_CPU, 0, &loaded));
        check_loaded(replay, loaded, n_envs);
        add_steps(replay, n_envs, n + round, 1, 11);
    }
    CHECK(written[1] < written[0] / 2); /* what has not changed is not written again */
    const bytes before = saved(replay);
    per_save* save = NULL;
    CHECK_OK(per_replay_save_start(replay, file, NULL, &save));
    for (int64_t t = 2; t < n; ++t) add_steps(replay, n_envs, n + t, 1, 11);
    int64_t so_far = 0, total = 0;
    CHECK_OK(per_save_wait(save, -1, &so_far, &total));
    CHECK(so_far == total);
    per_save_free(save);
    CHECK_OK(load_on(file, PER_CPU, 0, &loaded));
    check_saved_as(&before, loaded);
    check_loaded(NULL, loaded, n_envs);
    free(before.data);
    per_replay_free(replay);
}

/*
 * Rows of shortest .. longest values. Once every slot has been overwritten four times, they take at most `percent` of
 * their values and 16 bytes each, beside chunks for each size and an area that are not full.
 */
static void memory_follows_what_is_stored(int32_t dtype, int64_t n_rows, int64_t shortest, int64_t longest,
                                          int64_t percent) {
    enum { MOST_ROWS = 400000, LONGEST = 2000 };
    const per_field two[2] = {{.name = "observation", .dtype = PER_FLOAT32},
                              {.name = "tokens", .dtype = dtype, .max_length = longest}};
    static int32_t tokens[LONGEST];
    static int64_t lengths[MOST_ROWS];
    per_replay_options options = replay_options(n_rows, 1);
    set_fields(&options, two, 2);
    per_replay* replay = create_replay(&options);
    const int64_t before = stats_of(replay).memory_bytes;
    int64_t stored = 0;
    memset(lengths, 0, sizeof lengths);
    for (int64_t t = 0; t < 5 * n_rows; ++t) {
        const int64_t n = shortest + (int64_t)(mix(4, 4, (uint64_t)t) % (uint64_t)(longest - shortest + 1));
        const float observation = (float)t, reward = 0;
        const uint8_t goes_on = 0;
        const int64_t offsets[2] = {0, n};
        per_array arrays[2] = {array_of(&observation, PER_FLOAT32), array_of(tokens, dtype)};
        arrays[1].offsets = offsets;
        const per_steps steps = steps_of(1, arrays, NULL, &reward, &goes_on, &goes_on);
        CHECK_OK(per_replay_add(replay, &steps, NULL, NULL));
        stored += (dtype == PER_UINT8 ? 1 : 4) * (n - lengths[t % n_rows]);
        lengths[t % n_rows] = n;
    }
    const int64_t of_slots = 8 * n_rows; /* allocated at creation */
    const int64_t taken = stats_of(replay).memory_bytes - before + of_slots;
    CHECK(taken >= stored && taken <= stored * percent / 100 + 16 * n_rows + (1 << 19));
    per_replay_free(replay);
}

/* From 2^16 bytes on, a block has a longer header. */
static void long_rows_come_back(void) {
    enum { N = 6, LONGEST = 70000, ROOM = 5 * LONGEST };
    static const int64_t lengths[N] = {65534, 65535, 65536, 65537, LONGEST, 0};
    static const int64_t ids[N] = {0, 1, 2, 3, 4, 5};
    static uint8_t values[ROOM], drawn[ROOM];
    int64_t given[N + 1] = {0}, offsets[N + 1];
    const per_field fields[2] = {{.name = "observation", .dtype = PER_FLOAT32},
                                 {.name = "text", .dtype = PER_UINT8, .max_length = LONGEST}};
    per_replay_options options = replay_options(N, 1);
    options.store_next_observation = 1; /* each step takes one row */
    set_fields(&options, fields, 2);
    per_replay* replay = create_replay(&options);
    for (int64_t i = 0; i < N; ++i) given[i + 1] = given[i] + lengths[i];
    for (int round = 0; round < 3; ++round) { /* later rounds overwrite */
        const float observations[N] = {0}, rewards[N] = {0};
        const uint8_t flags[N] = {1, 1, 1, 1, 1, 1};
        int64_t of_round[N];
        for (int64_t i = 0; i < ROOM; ++i) values[i] = (uint8_t)mix(5, (uint64_t)round, (uint64_t)i);
        per_array arrays[2] = {array_of(observations, PER_FLOAT32), array_of(values, PER_UINT8)};
        arrays[1].offsets = given;
        const per_array next[2] = {array_of(observations, PER_FLOAT32), {.data = NULL}};
        per_steps steps = steps_of(N, arrays, next, rewards, flags, flags);
        CHECK_OK(per_replay_add(replay, &steps, NULL, NULL));
        per_ragged text = {.values = drawn, .offsets = offsets, .capacity = ROOM};
        void* outputs[2] = {NULL, &text};
        per_batch batch;
        CHECK_OK(per_batch_init(&batch, sizeof batch));
        batch.fields = outputs;
        for (int64_t i = 0; i < N; ++i) of_round[i] = ids[i] + N * round;
        CHECK_OK(per_replay_get(replay, N, of_round, &batch, NULL));
        CHECK(memcmp(offsets, given, sizeof given) == 0);
        CHECK(memcmp(drawn, values, (size_t)given[N]) == 0);
    }
    per_replay_free(replay);
}

/* A loader makes room in its slots; a later batch does not change one that is out. */
static void loaders_draw_the_same_rows(int32_t stores_next) {
    enum { SLOTS = 3, ROUNDS = 40 };
    static ragged_rows rows, of_twin;
    per_replay_options options = options_of(2);
    options.store_next_observation = stores_next;
    per_replay* replay = create_replay(&options);
    per_replay* twin = create_replay(&options);
    for (int64_t t = 0; t < 70; ++t) {
        add_steps(replay, 2, t, 1, 9);
        add_steps(twin, 2, t, 1, 9);
    }
    per_loader* loader = create_loader_on(PER_CPU, replay, B, SLOTS, NULL);
    per_batch batches[SLOTS];
    int64_t slots[SLOTS];
    for (int round = 0; round < ROUNDS; ++round) {
        const int n_out = 1 + round % SLOTS;
        for (int i = 0; i < n_out; ++i) slots[i] = take(loader, &batches[i]);
        for (int i = 0; i < n_out; ++i) {
            refer_to(&rows, &batches[i], B);
            fill_batch(&of_twin, 0, 0);
            CHECK_OK(per_replay_sample(twin, NULL, B, &of_twin.batch, NULL));
            check_ragged_rows(&rows, B, 2);
            CHECK(memcmp(rows.ids, of_twin.ids, B * sizeof *rows.ids) == 0);
            for (int a = 0; a < 3; ++a)
                CHECK(rows.ragged[a].padded_length == 0 && rows.ragged[a].capacity >= rows.ragged[a].total);
        }
        for (int i = 0; i < n_out; ++i) CHECK_OK(per_loader_release(loader, slots[i], NULL));
    }
    free_loader(loader, replay, twin);
}

static void loaders_draw_the_same_sequences(void) {
    enum { T = 4, N_SEQUENCES = 16 };
    static ragged_rows of_twin;
    per_replay_options options = options_of(2);
    options.sequence_length = T;
    options.sequence_stride = 1;
    per_replay* replay = create_replay(&options);
    per_replay* twin = create_replay(&options);
    for (int64_t t = 0; t < 70; ++t) {
        add_steps(replay, 2, t, 1, 9);
        add_steps(twin, 2, t, 1, 9);
    }
    per_loader* loader = create_loader_on(PER_CPU, replay, N_SEQUENCES, 2, NULL);
    for (int round = 0; round < 10; ++round) {
        per_batch batch;
        const int64_t slot = take(loader, &batch);
        fill_batch(&of_twin, 0, 0);
        of_twin.batch.next_fields = NULL;
        CHECK_OK(per_replay_sample(twin, NULL, N_SEQUENCES, &of_twin.batch, NULL));
        const size_t sizes[2] = {2 * sizeof(float), sizeof(int16_t)};
        for (int a = 0; a < 2; ++a) {
            const per_ragged* const found = batch.fields[a];
            const per_ragged* const expected = &of_twin.ragged[a == 0 ? 0 : 2];
            const int64_t n_rows = N_SEQUENCES * (a == 0 ? T + 1 : T);
            CHECK(found->total == expected->total);
            CHECK(memcmp(found->offsets, expected->offsets, (size_t)(n_rows + 1) * sizeof(int64_t)) == 0);
            CHECK(memcmp(found->values, expected->values, (size_t)found->total * sizes[a]) == 0);
        }
        CHECK_OK(per_loader_release(loader, slot, NULL));
    }
    free_loader(loader, replay, twin);
}

static char state_of_nothing;

/* The rows of the sources follow one another. A call with too little room reports what the whole batch needs. */
static void mixtures_join_rows(int64_t padded_points, int64_t padded_tokens) {
    static ragged_rows rows, of_twin;
    per_source sources[2] = {{.share = 3}, {.share = 1}};
    per_replay* twins[2];
    for (int k = 0; k < 2; ++k) {
        per_replay_options options = options_of(3);
        options.seed = 20 + (uint64_t)k;
        sources[k].replay = create_replay(&options);
        twins[k] = create_replay(&options);
        for (int64_t t = 0; t < 30; ++t) {
            add_steps(sources[k].replay, 3, 50 * k + t, 1, 9);
            add_steps(twins[k], 3, 50 * k + t, 1, 9);
        }
    }
    for (int round = 0; round < 6; ++round) {
        fill_batch(&rows, padded_points, padded_tokens);
        rows.next_fields[1] = &state_of_nothing; /* ignored, as tokens are no observation */
        int64_t needed[3];
        for (int a = 0; a < 3; ++a) { /* too little room in one of them */
            const per_ragged before = rows.ragged[a];
            rows.ragged[a].capacity = 3;
            rows.ragged[a].padded_length = before.padded_length > 0 ? 1 : 0;
            CHECK_FAILS(per_mixture_sample(sources, 2, NULL, B, &rows.batch, NULL, NULL), PER_ERROR_FULL,
                        before.padded_length > 0 ? ".padded_length is 1: must be at least "
                                                 : ".capacity is 3: must be at least ");
            needed[a] = rows.ragged[a].total;
            rows.ragged[a] = before;
        }
        CHECK(sources[0].carry == 0 && stats_of(sources[0].replay).samples == round);
        void* const values = rows.ragged[2].values;
        if (round % 3 == 1) rows.ragged[2].values = NULL; /* only lengths */
        CHECK_OK(per_mixture_sample(sources, 2, NULL, B, &rows.batch, NULL, NULL));
        for (int a = 0; a < 3; ++a) CHECK(rows.ragged[a].total == needed[a]);
        if (round % 3 == 1) {
            for (int64_t i = 0; i < B; ++i)
                CHECK(rows.offsets[2][i + 1] - rows.offsets[2][i] == n_tokens(rows.ids[i] % 3, rows.actions[i]));
            for (int64_t i = 0; i < MOST_ROWS * MAX_TOKENS; ++i) CHECK(((int16_t*)values)[i] == 0x5A5A);
        } else {
            check_ragged_rows(&rows, B, 3);
        }
        int64_t first = 0;
        for (int k = 0; k < 2; ++k) {
            const int64_t n = k == 0 ? B * 3 / 4 : B / 4;
            fill_batch(&of_twin, 0, 0);
            CHECK_OK(per_replay_sample(twins[k], NULL, n, &of_twin.batch, NULL));
            CHECK(memcmp(rows.ids + first, of_twin.ids, (size_t)n * sizeof *rows.ids) == 0);
            CHECK(memcmp(rows.actions + first, of_twin.actions, (size_t)n * sizeof *rows.actions) == 0);
            first += n;
        }
    }
    for (int round = 0; round < 8; ++round) { /* one of the sources gives no row */
        int64_t drawn = 0;
        fill_batch(&rows, padded_points, padded_tokens);
        fill_batch(&of_twin, 0, 0);
        int32_t source;
        CHECK_OK(per_mixture_sample(sources, 2, NULL, 1, &rows.batch, &source, NULL));
        CHECK_OK(per_replay_sample(twins[source], NULL, 1, &of_twin.batch, NULL));
        CHECK(rows.ids[0] == of_twin.ids[0] && rows.actions[0] == of_twin.actions[0]);
        check_ragged_rows(&rows, 1, 3);
        for (int k = 0; k < 2; ++k) drawn += stats_of(sources[k].replay).samples;
        CHECK(drawn == 12 + round + 1);
    }
    for (int k = 0; k < 2; ++k) free_both(sources[k].replay, twins[k]);
}

/* Rows that would exceed max_heap_bytes are refused, and the memory of cleared rows can be used again. */
static void heaps_have_a_limit(int64_t limit) {
    per_replay_options options = options_of(1);
    options.capacity = 4000;
    options.memory.max_heap_bytes = -1;
    per_replay* replay = NULL;
    CHECK_REFUSED(per_replay_create(&options, &replay), "max_heap_bytes is -1: allowed are 0 .. ");
    options.memory.max_heap_bytes = 0;
    per_replay* unlimited = create_replay(&options);
    options.memory.max_heap_bytes = limit;
    replay = create_replay(&options);
    const int64_t before = stats_of(replay).memory_bytes;
    static ragged_call add;
    int64_t t = 0;
    for (; t < 3900; t += 20) {
        fill_ragged_call(&add, 1, t, 20, 11);
        const bytes unchanged = saved(replay);
        const per_status status = per_replay_add(replay, &add.steps, NULL, NULL);
        if (status != PER_OK) {
            CHECK(status == PER_ERROR_FULL && strstr(per_last_error(), "of max_heap_bytes, ") != NULL);
            check_saved_as(&unchanged, replay);
        }
        free(unchanged.data);
        if (status != PER_OK) break;
        add_steps(unlimited, 1, t, 20, 11);
    }
    CHECK(t > 100 && t < 3900);
    const int64_t taken = stats_of(replay).memory_bytes - before;
    CHECK(taken > limit / 2 && taken <= limit + limit / 8);
    check_same_saves(replay, unlimited);
    /* Whatever is cleared can be used again. */
    CHECK_OK(per_replay_clear(replay, NULL));
    for (int64_t again = 0; again < t; again += 20) add_steps(replay, 1, again, 20, 11);
    CHECK_OK(per_replay_save(unlimited, file, NULL));
    per_load_options loading;
    CHECK_OK(per_load_options_init(&loading, sizeof loading));
    per_replay* loaded = NULL;
    loading.memory.max_heap_bytes = limit / 4;
    CHECK_FAILS(per_replay_load(file, &loading, &loaded), PER_ERROR_FULL, "of max_heap_bytes, ");
    loading.memory.max_heap_bytes = limit + limit / 2; /* pieces are taken in another order */
    CHECK_OK(per_replay_load(file, &loading, &loaded));
    check_same_saves(loaded, unlimited);
    per_replay_free(loaded);
    free_both(replay, unlimited);
}

/* A field whose rows may be long leaves memory for the others. */
static void fields_share_a_limit(void) {
    enum { STEPS = 500, LONGEST = 100000 };
    static const per_field three[3] = {{.name = "observation", .dtype = PER_FLOAT32},
                                       {.name = "tokens", .dtype = PER_INT32, .max_length = LONGEST},
                                       {.name = "labels", .dtype = PER_INT32, .max_length = LONGEST}};
    static const int32_t values[3] = {1, 2, 3};
    static const int64_t offsets[2] = {0, 3};
    per_replay_options options = replay_options(2 * STEPS, 1);
    set_fields(&options, three, 3);
    options.memory.max_heap_bytes = 1000000;
    per_replay* replay = create_replay(&options);
    for (int t = 0; t < STEPS; ++t) {
        const float observation = (float)t, reward = 0;
        const uint8_t goes_on = 0;
        per_array arrays[3] = {array_of(&observation, PER_FLOAT32), array_of(values, PER_INT32),
                               array_of(values, PER_INT32)};
        arrays[1].offsets = arrays[2].offsets = offsets;
        const per_steps steps = steps_of(1, arrays, NULL, &reward, &goes_on, &goes_on);
        CHECK_OK(per_replay_add(replay, &steps, NULL, NULL));
    }
    per_replay_free(replay);
}

/* The next observation is compared with the final one, of another episode, even after a clear. */
static void a_clear_keeps_the_final_observation(int32_t stores_next) {
    per_replay_options options = options_of(1);
    options.store_next_observation = stores_next;
    per_replay* replay = create_replay(&options);
    CHECK(n_points(0, 9) > 0);
    add_steps(replay, 1, 8, 1, 9); /* ends with observation 9 */
    CHECK_OK(per_replay_clear(replay, NULL));
    add_steps(replay, 1, 9, 1, 1000);
    CHECK(stats_of(replay).suspected_resets == 1);
    per_replay_free(replay);
}

int main(void) {
    CHECK(mkdtemp(folder) != NULL);
    snprintf(file, sizeof file, "%s/saved", folder);
    snprintf(directory, sizeof directory, "%s/checkpoint", folder);
    for (int32_t stores_next = 0; stores_next < 2; ++stores_next)
        for (int64_t n_step = 1; n_step < 4; n_step += 2) {
            rows_of_every_length_come_back(1, n_step, stores_next, 9);
            rows_of_every_length_come_back(3, n_step, stores_next, 1000);
        }
    a_batch_that_does_not_fit_is_drawn_again();
    rows_are_read_and_set_by_id();
    long_rows_come_back();
    sequences(1000);
    sequences(6);
    gaps_are_seen();
    masks_and_casts();
    bad_arrays_change_nothing();
    what_does_not_go_with_it_is_named();
    files(1, 0, 0);
    files(4, 1, 1);
    memory_follows_what_is_stored(PER_UINT8, 400000, 0, 20, 110);
    memory_follows_what_is_stored(PER_INT32, 100000, 0, 10, 110);
    memory_follows_what_is_stored(PER_INT32, 100000, 0, 40, 110);
    memory_follows_what_is_stored(PER_INT32, 20000, 100, 2000, 112);
    a_clear_keeps_the_final_observation(0);
    a_clear_keeps_the_final_observation(1);
    loaders_draw_the_same_rows(0);
    loaders_draw_the_same_rows(1);
    loaders_draw_the_same_sequences();
    mixtures_join_rows(0, 0);
    mixtures_join_rows(MAX_POINTS, 0);
    mixtures_join_rows(MAX_POINTS, MAX_TOKENS);
    fields_share_a_limit();
    heaps_have_a_limit(600000);
    heaps_have_a_limit(900000);
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", folder);
    CHECK(system(command) == 0);
    return 0;
}

/*
 * Arguments that are bad in combination, or for this buffer, are refused by name, and the buffer is unchanged: counters
 * and rows are compared after every call, and in the end it behaves like a twin that never saw them.
 * tests/abi/bad_arguments.py covers arguments that are bad by themselves.
 *
 * On CUDA only the device can check steps, ids and priorities. It skips the bad ones, counts them, and applies the
 * others. The result is compared with a twin on the CPU that gets only the good ones.
 */
#include <stddef.h>

#include "replay_check.h"

enum { ENVS = 2, ROWS = 10, BATCH = 8, LAST_ID = 15 };

static per_replay* replay;
static per_replay_statistics stats_before;
static rows rows_before[LAST_ID + 1];
static float priorities_before[LAST_ID + 1];

static int64_t ids_out[64];

static per_replay* create(int32_t device) {
    per_replay_options options = replay_options(ROWS * ENVS, ENVS);
    options.n_step = 2;
    options.beta_steps = 100;
    options.seed = 31;
    options.device = device;
    per_replay* created = create_replay(&options);
    for (int t = 0; t < 6; ++t)
        for (int env = 0; env < ENVS; ++env)
            add_full(created, env, (float)(100 * env + t), (float)t, t == 2 ? TRUNCATED : GOES_ON,
                     (float)(100 * env + t + 1));
    set_priority(created, 4, 3);
    return created;
}

static void look(int64_t id, rows* out) {
    fill_rows(out);
    out->batch.weights = out->batch.probabilities = NULL;
    out->batch.next_fields = NULL;
    /* Ids of final observations have no row: their output is zeros. */
    if (per_replay_get(replay, 1, &id, &out->batch, NULL) != PER_OK) memset(out->ids, 0, sizeof out->ids);
}

static void remember(void) {
    stats_before = stats_of(replay);
    for (int64_t id = 0; id <= LAST_ID; ++id) {
        look(id, &rows_before[id]);
        if (id < 13) priorities_before[id] = priority_of(replay, id);
    }
}

static void check_unchanged(void) {
    static rows now;
    check_same_statistics(replay, &stats_before);
    for (int64_t id = 0; id <= LAST_ID; ++id) {
        look(id, &now);
        CHECK(now.observation[0] == rows_before[id].observation[0] && now.reward[0] == rows_before[id].reward[0]);
        CHECK(now.truncated[0] == rows_before[id].truncated[0] && now.ids[0] == rows_before[id].ids[0]);
        if (id < 13) CHECK(priority_of(replay, id) == priorities_before[id]);
    }
    for (int64_t id = 0; id < 64; ++id) CHECK(ids_out[id] == -7);
}

/* The message contains both texts. */
static void check_refused_with(const per_steps* steps, const char* text, const char* second) {
    CHECK_REFUSED(per_replay_add(replay, steps, ids_out, NULL), text);
    CHECK(strstr(per_last_error(), second) != NULL);
    check_unchanged();
}

static void check_refused(const per_steps* steps, const char* text) {
    check_refused_with(steps, text, "");
}

/* ------------------------------------------------------------------------ add */

static const float observations[3][ENVS] = {{6, 106}, {7, 107}, {8, 108}};
static const float nexts[3][ENVS] = {{7, 107}, {8, 108}, {9, 109}};
static const float rewards[3][ENVS] = {{0, 1}, {2, 3}, {4, 5}};
static const uint8_t flags[3][ENVS] = {{0, 0}, {0, 0}, {0, 0}};

static void fill_good(call* given, int64_t length) {
    fill_call(given, length, observations[0], nexts[0], rewards[0], flags[0], flags[0]);
}

/* The arrays of a call, and their names. */
enum { N_ARRAYS = 9 };
static const char* const array_names[N_ARRAYS] = {"observation", "next_observation", "reward",
                                                  "terminated",  "truncated",        "mask",
                                                  "next_mask",   "priorities",       "td_errors"};

static per_array* array_at(call* given, int i) {
    per_array* const arrays[N_ARRAYS] = {
        &given->observation,     &given->next,       &given->steps.reward,    &given->steps.terminated,
        &given->steps.truncated, &given->steps.mask, &given->steps.next_mask, &given->steps.priorities,
        &given->steps.td_errors};
    return arrays[i];
}

static void add_arguments(void) {
    static const int64_t env_ids[ENVS] = {0, 1}, beyond[1] = {ENVS};
    call given;
    fill_good(&given, 1);
    given.steps.env_ids = env_ids;
    given.steps.n_envs = ENVS + 1;
    check_refused(&given.steps, "env_ids has 3 entries");
    given.steps.env_ids = beyond;
    given.steps.n_envs = 1;
    check_refused(&given.steps, "env_ids[0] is 2: allowed are 0 .. 1");
}

static void add_arrays(void) {
    static const int64_t three[] = {3}, two_two[] = {2, 2}, one_two[] = {1, 2};
    static const double numbers[ENVS] = {0, 0}, beyond[ENVS] = {0, -1e39};
    call given;
    per_array good;
    for (int i = 0; i < N_ARRAYS; ++i) {
        fill_good(&given, 1);
        per_array* const array = array_at(&given, i);
        good = *array = array_of(numbers, PER_FLOAT64);
        array->shape = three;
        array->ndim = 1;
        check_refused_with(&given.steps, array_names[i], " has shape (3,): expected is (2,)");
        array->shape = two_two;
        array->ndim = 2;
        check_refused_with(&given.steps, array_names[i], " has shape (2, 2): expected is (2,)");
        array->ndim = 0;
        check_refused(&given.steps, array_names[i]);
        *array = good;
        array->dtype = 13;
        check_refused(&given.steps, array_names[i]);
        if (on_cuda() || (i >= 3 && i <= 6)) continue; /* flags accept all values of all dtypes */
        *array = array_of(beyond, PER_FLOAT64);
        array->shape = one_two;
        array->ndim = 2;
        check_refused_with(&given.steps, array_names[i], "[0, 1] is -1e+39");
    }
}

static const uint8_t last_ends[3][ENVS] = {{0, 0}, {0, 0}, {0, 1}};
static const double late_poison[3][ENVS] = {{0, 0}, {0, 0}, {0, 1e39}};
static const float late_nan[3][ENVS] = {{1, 1}, {1, 1}, {1, NAN}};

static void add_steps(void) {
    call given;
    /* Only the second environment of the third step is bad, but the first two steps are not added either. */
    fill_good(&given, 3);
    given.steps.next_fields = NULL;
    given.steps.truncated = array_of(last_ends, PER_BOOL);
    check_refused(&given.steps, "next_");
    fill_good(&given, 3);
    given.steps.reward = array_of(late_poison, PER_FLOAT64);
    check_refused(&given.steps, "reward[5]");
    fill_good(&given, 3);
    given.steps.priorities = array_of(late_nan, PER_FLOAT32);
    check_refused(&given.steps, "priorities");
    fill_good(&given, 3);
    given.steps.td_errors = array_of(late_nan, PER_FLOAT32);
    check_refused(&given.steps, "td_errors");
}

static void add_both_or_nothing(void) {
    call given;
    fill_good(&given, 3);
    given.steps.priorities = given.steps.td_errors = array_of(late_nan, PER_FLOAT32);
    check_refused(&given.steps, "priorities");
    /* A call without steps does nothing, whatever its arrays. */
    CHECK_OK(per_steps_init(&given.steps, sizeof given.steps));
    given.steps.length = 0;
    CHECK_OK(per_replay_add(replay, &given.steps, ids_out, NULL));
    check_unchanged();
}

/* The next observation is given for all observation fields or for none. */
static void next_observations_of_all_or_none(void) {
    per_replay_options options = replay_options(20, 1);
    const float zero = 0;
    const per_field fields[2] = {field_of("observation", PER_FLOAT32, 0, NULL),
                                 field_of("observation.b", PER_FLOAT32, 0, NULL)};
    per_array now[2], next[2];
    call given;
    set_fields(&options, fields, 2);
    per_replay* two = create_replay(&options);
    for (int i = 0; i < 4; ++i) {
        fill_call(&given, 1, &zero, NULL, &zero, NULL, NULL);
        now[0] = now[1] = array_of(&zero, PER_FLOAT32);
        next[0] = array_of(i & 1 ? &zero : NULL, PER_FLOAT32);
        next[1] = array_of(i & 2 ? &zero : NULL, PER_FLOAT32);
        given.steps.fields = now;
        given.steps.next_fields = next;
        if (i == 0 || i == 3)
            CHECK_OK(per_replay_add(two, &given.steps, NULL, NULL));
        else
            CHECK_REFUSED(per_replay_add(two, &given.steps, NULL, NULL),
                          i == 1
                              ? "next_observation.b is missing: next_observation is given, and all or none are allowed"
                              : "next_observation is missing: next_observation.b is given, and all or none are");
        CHECK(stats_of(two).added == (i < 3 ? 1 : 2));
    }
    per_replay_free(two);
}

static void cut_arguments(void) {
    static const int64_t env_ids[] = {0, ENVS};
    CHECK_REFUSED(per_replay_cut(replay, 2, env_ids, NULL), "env_ids[1] is 2: allowed are 0 .. 1");
    check_unchanged();
}

/* --------------------------------------------------------------------- sample */

static void sample_arguments(void) {
    static const int64_t bad_sizes[] = {0, (1 << 24) + 1};
    static rows out, untouched;
    per_sample_options options;
    uint8_t mask[BATCH];
    fill_rows(&out);
    memset(&out, 0x5A, offsetof(rows, fields));
    untouched = out;
    per_sample_options good = default_sample_options();
    for (int i = 0; i < 2; ++i)
        CHECK_REFUSED(per_replay_sample(replay, NULL, bad_sizes[i], &out.batch, NULL), "batch_size");
    out.batch.mask = mask;
    CHECK_REFUSED(per_replay_sample(replay, NULL, BATCH, &out.batch, NULL), "mask");
    out.batch.mask = NULL;
#define REFUSED(member, value)                  \
    (options = good, options.member = (value)); \
    CHECK_REFUSED(per_replay_sample(replay, &options, BATCH, &out.batch, NULL), #member)
    REFUSED(uniform_fraction, 1.5);
    REFUSED(n_step, 3);
    REFUSED(scheme, -2);
    REFUSED(scheme, 4);
    REFUSED(prioritization, -2);
    REFUSED(prioritization, 3);
    REFUSED(normalize_weights, -2);
    REFUSED(normalize_weights, 3);
#undef REFUSED
    CHECK(memcmp(&out, &untouched, offsetof(rows, fields)) == 0);
    check_unchanged();
}

/* ----------------------------------------------------------------- priorities */

static const char too_many_for_cuda[] = "count is 4294967295: allowed on PER_CUDA are 0 .. 4294967294";
static const int64_t bad_ids[] = {-2, LAST_ID, INT64_MAX, INT64_MIN};

static void priority_entries(void) {
    int64_t ids[] = {0, 4, 2};
    float values[] = {9, 9, 9, 9, 9, 9}, out[] = {-7, -7, -7};
    /* The bad entry is at any position, with good entries around it. */
    for (int i = 0; i < 4; ++i) {
        for (int at = 0; at < 3; ++at) {
            const int64_t good = ids[at];
            char name[24];
            sprintf(name, "ids[%d]", at);
            ids[at] = bad_ids[i];
            CHECK_REFUSED(write_td_errors(replay, 3, ids, 1, values, NULL), name);
            CHECK_REFUSED(write_priorities(replay, 3, ids, values, NULL), name);
            CHECK_REFUSED(per_replay_get_priorities(replay, 3, ids, out, NULL), name);
            ids[at] = good;
            check_unchanged();
        }
    }
    values[2] = NAN;
    CHECK_REFUSED(write_td_errors(replay, 3, ids, 2, values, NULL), "td_errors");
    CHECK_REFUSED(write_priorities(replay, 3, ids, values, NULL), "priorities[2]");
    values[2] = -1;
    CHECK_REFUSED(write_priorities(replay, 3, ids, values, NULL), "priorities[2]");
    CHECK(out[0] == -7 && out[1] == -7 && out[2] == -7);
    check_unchanged();
}

static void priority_arguments(void) {
    int64_t ids[] = {0, 4, 2}, many_ids[18] = {0};
    float values[] = {9, 9, 9}, square[17 * 18];
    per_priorities both = priorities_given(1, ids);
    CHECK_REFUSED(per_replay_update_priorities(replay, &both, NULL), "td_errors and priorities are both NULL");
    both.td_errors = both.priorities = values;
    CHECK_REFUSED(per_replay_update_priorities(replay, &both, NULL), "td_errors and priorities are both given");
    both.td_errors = NULL;
    both.n_critics = 2;
    CHECK_REFUSED(per_replay_update_priorities(replay, &both, NULL),
                  "n_critics is 2: must be 1 where priorities are given");
    both.n_critics = both.n_steps = 1;
    CHECK_REFUSED(per_replay_update_priorities(replay, &both, NULL),
                  "n_steps is 1: must be 0 where priorities are given");
    CHECK_REFUSED(write_sequence_errors(replay, 1, ids, 1, 1, values, NULL),
                  "n_steps is 1: must be 0, as this buffer draws single transitions");
    CHECK_REFUSED(write_td_errors(replay, 1, ids, 0, values, NULL), "n_critics");
    CHECK_REFUSED(write_td_errors(replay, 0, NULL, 0, NULL, NULL), "n_critics is 0: allowed are 1 .. 1099511627776");
    if (on_cuda()) {
        CHECK_REFUSED(write_td_errors(replay, 4294967295, ids, 1, values, NULL), too_many_for_cuda);
        CHECK_REFUSED(write_priorities(replay, 4294967295, ids, values, NULL), too_many_for_cuda);
    }
    for (int i = 0; i < 17 * 18; ++i) square[i] = 9;
    CHECK_REFUSED(write_td_errors(replay, 17, many_ids, 17, square, NULL),
                  "td_errors are those of 17 critics for as many ids: probably [n] minus [n, 1], which broadcasts to "
                  "[n, n]; drop the axis of 1");
    CHECK_OK(write_td_errors(replay, 0, NULL, 17, NULL, NULL));
    CHECK_OK(write_td_errors(replay, 0, NULL, 1, NULL, NULL));
    CHECK_OK(write_priorities(replay, 0, NULL, NULL, NULL));
    CHECK_OK(per_replay_get_priorities(replay, 0, NULL, NULL, NULL));
    check_unchanged();
}

/* More errors than 64 bits count, or than any memory holds. */
static void too_many_ids_and_critics(void) {
    const int64_t id = 0, many = INT64_C(1) << 30;
    const float td_error = 1;
    for (int64_t length = 0; length <= 3; length += 3) {
        per_replay_options options = replay_options(20, 1);
        options.sequence_length = length;
        per_replay* filled = create_filled(&options, 9);
        const per_replay_statistics before = stats_of(filled);
        for (int64_t critics = many; critics <= 1024 * many; critics *= 1024) {
            const per_status status = write_td_errors(filled, many, &id, critics, &td_error, NULL);
            CHECK(status == PER_ERROR_INVALID_ARGUMENT || status == PER_ERROR_OUT_OF_MEMORY);
        }
        check_same_statistics(filled, &before);
        per_replay_free(filled);
    }
}

/* ------------------------------------------------------------------ the others */

static void set_arguments(void) {
    const int64_t ids[] = {0, 1};
    const float values[] = {0, 0};
    const per_array field = array_of(values, PER_FLOAT32);
    if (on_cuda()) CHECK_REFUSED(per_replay_set(replay, 4294967295, ids, &field, NULL), too_many_for_cuda);
    CHECK_REFUSED(per_replay_set(replay, 2, ids, &field, NULL), "observation");
    check_unchanged();
}

/* Arrays of a dtype that only the call can check. */
static void misaligned_arrays(void) {
    static rows out;
    const int64_t id = 0;
    int64_t count = -7;
    char text[40];
    call given;
    for (int i = 0; i < N_ARRAYS; ++i) {
        fill_good(&given, 1);
        *array_at(&given, i) = array_of(MISALIGNED(rewards), PER_FLOAT32);
        sprintf(text, "%s is 0x", array_names[i]);
        CHECK_MISALIGNED(per_replay_add(replay, &given.steps, ids_out, NULL), "");
        CHECK(strstr(per_last_error(), text) != NULL);
    }
    fill_rows(&out);
    out.fields[0] = MISALIGNED(out.observation);
    CHECK_MISALIGNED(per_replay_sample(replay, NULL, BATCH, &out.batch, NULL), "observation");
    fill_rows(&out);
    out.next_fields[0] = MISALIGNED(out.next);
    CHECK_MISALIGNED(per_replay_sample(replay, NULL, BATCH, &out.batch, NULL), "next_observation");
    out.batch.weights = out.batch.probabilities = NULL;
    CHECK_MISALIGNED(per_replay_get(replay, 1, &id, &out.batch, NULL), "next_observation");
    CHECK_MISALIGNED(per_replay_get_bootstraps(replay, 1, &out.batch, &count, NULL), "next_observation");
    CHECK(count == -7);
    check_unchanged();
}

static void settings_and_readers(void) {
    per_replay_settings settings = unchanged_settings();
    int64_t live = -7;
    CHECK_REFUSED(change_gamma(replay, 1.1, NULL), "gamma");
    CHECK_REFUSED(change_n_step(replay, 9, NULL), "needs 11");
    CHECK_OK(per_replay_change_settings(replay, &settings, NULL)); /* no setting is given */
    settings.alpha = settings.gamma = 0.25;                        /* only the last setting is bad: none is changed */
    settings.beta = 2;
    settings.n_step = 1;
    settings.save_compression = 20;
    CHECK_REFUSED(per_replay_change_settings(replay, &settings, NULL), "save_compression");
    CHECK_REFUSED(per_replay_get_live_ids(replay, -1, ids_out, &live), "capacity is -1");
    CHECK(live == -7);
    CHECK_OK(per_replay_synchronize(replay, NULL));
    check_unchanged();
}

/* The buffer continues like a twin on the CPU that saw no bad call. Frees the twin. */
static void goes_on_like(per_replay* twin) {
    static rows drawn;
    int64_t ids[6], twin_ids[6];
    for (int round = 0; round < 4; ++round) {
        call given;
        fill_good(&given, 3);
        CHECK_OK(per_replay_add(replay, &given.steps, ids, NULL));
        CHECK_OK(per_replay_add(twin, &given.steps, twin_ids, NULL));
        CHECK(memcmp(ids, twin_ids, sizeof ids) == 0);
        check_same_draw(replay, twin, 100, &drawn);
        set_priority(replay, drawn.ids[0], 2);
        set_priority(twin, drawn.ids[0], 2);
    }
    per_replay_free(twin);
}

/* --------------------------------------------------------- what CUDA leaves out */

/* Recreates both buffers. */
static per_replay* create_pair(void) {
    per_replay_free(replay);
    replay = create(PER_CUDA);
    return create(PER_CPU);
}

static void check_same_priorities(per_replay* twin) {
    CHECK(live_of(replay) == live_of(twin));
    for (int64_t id = 0; id < 13; ++id) CHECK(priority_of(replay, id) == priority_of(twin, id));
}

/* Three steps; the last one of environment 1 is bad. The twin gets them with a mask that leaves it out. */
static void check_step_left_out(const call* given) {
    static const uint8_t all_but_last[3][ENVS] = {{1, 1}, {1, 1}, {1, 0}};
    per_replay* twin = create_pair();
    int64_t twin_ids[3 * ENVS], ids[3 * ENVS];
    call good;
    fill_good(&good, 3);
    good.steps.mask = array_of(all_but_last, PER_BOOL);
    if (given->steps.next_fields == NULL) good.steps.next_fields = NULL;
    CHECK_OK(per_replay_add(twin, &good.steps, twin_ids, NULL));
    CHECK_REFUSED(per_replay_add(replay, &given->steps, ids, NULL), "1 steps were not allowed");
    CHECK(memcmp(ids, twin_ids, sizeof ids) == 0 && ids[5] == -1 && ids[4] >= 0);
    CHECK(stats_of(replay).rejected_updates == 1);
    check_same_priorities(twin);
    goes_on_like(twin);
}

static void steps_are_left_out(void) {
    double beyond[3][ENVS];
    call given;
    fill_good(&given, 3);
    given.steps.next_fields = NULL;
    given.steps.truncated = array_of(last_ends, PER_BOOL);
    check_step_left_out(&given);
    for (int i = 0; i < 3; ++i) {
        const float(*const from)[ENVS] = i == 0 ? observations : i == 1 ? nexts : rewards;
        for (int k = 0; k < 3 * ENVS; ++k) beyond[k / ENVS][k % ENVS] = (double)from[k / ENVS][k % ENVS];
        beyond[2][1] = -1e39;
        fill_good(&given, 3);
        *(i == 0 ? &given.observation : i == 1 ? &given.next : &given.steps.reward) = array_of(beyond, PER_FLOAT64);
        check_step_left_out(&given);
    }
}

static void set_priorities_of(call* given, int are_td_errors, const void* values) {
    *(are_td_errors ? &given->steps.td_errors : &given->steps.priorities) = array_of(values, PER_FLOAT32);
}

/* A step with an invalid priority is added as if it had none. */
static void priorities_of_steps_are_left_out(int are_td_errors) {
    static const uint8_t first[ENVS] = {1, 0}, second[ENVS] = {0, 1};
    per_replay* twin = create_pair();
    int64_t ids[3 * ENVS];
    call given;
    fill_good(&given, 3);
    set_priorities_of(&given, are_td_errors, late_nan);
    CHECK_REFUSED(per_replay_add(replay, &given.steps, ids, NULL), "1 priorities or td_errors gave no finite priority");
    given.steps.length = 2;
    CHECK_OK(per_replay_add(twin, &given.steps, NULL, NULL));
    fill_call(&given, 1, observations[2], nexts[2], rewards[2], flags[2], flags[2]);
    given.steps.mask = array_of(second, PER_BOOL);
    CHECK_OK(per_replay_add(twin, &given.steps, NULL, NULL));
    given.steps.mask = array_of(first, PER_BOOL);
    set_priorities_of(&given, are_td_errors, late_nan[2]);
    CHECK_OK(per_replay_add(twin, &given.steps, NULL, NULL));
    CHECK(stats_of(replay).added == stats_of(twin).added && stats_of(replay).rejected_updates == 1);
    check_same_priorities(twin);
    goes_on_like(twin);
}

/* Updates both buffers; the twin's call lacks the bad entry. */
static void update_both(per_replay* twin, int at, const int64_t* ids, const float* values, const char* kind) {
    int64_t good_ids[2];
    float good_values[2];
    int n = 0;
    for (int i = 0; i < 3; ++i) {
        if (i == at) continue;
        good_ids[n] = ids[i];
        good_values[n++] = values[i];
    }
    CHECK_REFUSED(write_td_errors(replay, 3, ids, 1, values, NULL), kind);
    CHECK_OK(write_td_errors(twin, 2, good_ids, 1, good_values, NULL));
    check_same_priorities(twin);
    CHECK_REFUSED(write_priorities(replay, 3, ids, values, NULL), kind);
    CHECK_OK(write_priorities(twin, 2, good_ids, good_values, NULL));
    check_same_priorities(twin);
}

static void entries_are_left_out(void) {
    static const float bad_values[] = {NAN, INFINITY, -INFINITY};
    per_replay* twin = create_pair();
    int64_t ids[] = {0, 4, 2};
    float values[] = {1, 2, 3}, out[3];
    const int64_t rejected = stats_of(replay).rejected_updates;
    for (int at = 0; at < 3; ++at) {
        const int64_t good = ids[at];
        for (int i = 0; i < 4; ++i) {
            ids[at] = bad_ids[i];
            update_both(twin, at, ids, values, "1 ids named no row");
            CHECK_REFUSED(per_replay_get_priorities(replay, 3, ids, out, NULL), "1 ids");
            for (int k = 0; k < 3; ++k) CHECK(out[k] == (k == at ? 0 : values[k]));
        }
        ids[at] = good;
        for (int i = 0; i < 3; ++i) {
            const float before = values[at];
            values[at] = bad_values[i];
            update_both(twin, at, ids, values, "1 priorities or td_errors gave no finite priority");
            values[at] = before;
        }
        for (int k = 0; k < 3; ++k) values[k] += 1;
    }
    CHECK(stats_of(replay).updates == stats_of(twin).updates && stats_of(twin).rejected_updates == 0);
    /* Each bad entry was in two updates. Reads of bad entries are reported, and not counted here. */
    CHECK(stats_of(replay).rejected_updates - rejected == 3 * (4 + 3) * 2);
    goes_on_like(twin);
}

int main(void) {
    for (int i = 0; i < 64; ++i) ids_out[i] = -7;
    replay = create(test_device());
    remember();
    add_arguments();
    add_arrays();
    add_both_or_nothing();
    next_observations_of_all_or_none();
    cut_arguments();
    sample_arguments();
    priority_arguments();
    too_many_ids_and_critics();
    set_arguments();
    misaligned_arrays();
    settings_and_readers();
    if (!on_cuda()) add_steps();
    if (!on_cuda()) priority_entries();
    goes_on_like(create(PER_CPU));
    if (on_cuda()) {
        steps_are_left_out();
        priorities_of_steps_are_left_out(0);
        priorities_of_steps_are_left_out(1);
        entries_are_left_out();
    }
    free_both(replay, NULL);
    return 0;
}

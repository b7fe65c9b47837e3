/*
 * Windows by id are bit-identical to those of a draw of the same ids, with current weights and probabilities. Reading
 * them is not a draw. Ids that are not live are an error that names the first, or leave zeros.
 */
#include "replay_check.h"

enum { PLACES = 64, VALUES = 24 }; /* number of entries, and values of an entry, in any buffer here */

/* A batch of any of these buffers, whose arrays initially contain garbage. */
typedef struct batch {
    float observation[PLACES * VALUES], next[PLACES * VALUES], reward[PLACES * VALUES], discount[PLACES * VALUES];
    float gamma_m[PLACES * VALUES], weights[PLACES], priorities[PLACES], probabilities[PLACES];
    int32_t n_steps[PLACES * VALUES];
    uint8_t terminated[PLACES * VALUES], truncated[PLACES * VALUES], mask[PLACES * VALUES];
    int64_t ids[PLACES];
    void *fields[1], *next_fields[1]; /* the numbers end here */
    per_batch arrays;
} batch;

static void fill(batch* out, int of_sequences) {
    memset(out, 0x55, sizeof *out);
    CHECK_OK(per_batch_init(&out->arrays, sizeof out->arrays));
    out->fields[0] = out->observation;
    out->next_fields[0] = out->next;
    out->arrays.fields = out->fields;
    if (!of_sequences) out->arrays.next_fields = out->next_fields;
    POINT_BATCH(out->arrays, out);
    out->arrays.weights = out->weights;
    out->arrays.probabilities = out->probabilities;
    if (of_sequences) out->arrays.mask = out->mask;
}

#define SAME(a, b) (memcmp(&(a), &(b), offsetof(batch, fields)) == 0)

/* Two environments with episodes of 11 and 7 steps, some with unknown ends; priorities 1, 2, 3, ... by id. */
static per_replay* filled(per_replay_options options) {
    per_replay* replay = create_replay(&options);
    int64_t ids[80];
    float priorities[80];
    for (int64_t t = 0; t < 40; ++t)
        for (int64_t env = 0; env < 2; ++env) {
            const int ends = t % (env ? 7 : 11) == 0;
            int64_t id;
            CHECK_OK(try_step(replay, env, (float)(100 * env + t), (float)(t % 5), ends ? 1 + (end)(t % 2) : GOES_ON,
                              ends && t % 3 == 0 && !options.store_next_observation ? NEXT_UNKNOWN : NEXT_GIVEN,
                              (float)(100 * env + t + 1), &id));
            CHECK(id >= 0);
        }
    for (int64_t t = 0; t < 80; ++t) {
        ids[t] = t;
        priorities[t] = (float)(t + 1);
    }
    CHECK_OK(write_priorities(replay, 80, ids, priorities, NULL));
    return replay;
}

static per_replay_options shape(int which) {
    per_replay_options options = replay_options(60, 2);
    options.gamma = 0.5;
    options.alpha = 0.7;
    options.seed = 3;
    if (which == 1) options.n_step = 3;
    if (which == 2) options.frame_stack = 3;
    if (which == 3) options.n_step = options.frame_stack = 2;
    if (which == 3) options.store_next_observation = 1;
    if (which >= 4) options.sequence_length = 4, options.burn_in = 1, options.sequence_stride = 2, options.n_step = 2;
    if (which == 5) options.frame_stack = 3;
    return options;
}

/* Windows equal those of a draw, for every kind of draw and of weights. */
static void equal_those_of_a_draw(void) {
    static batch drawn, windows;
    for (int which = 0; which < 6; ++which) {
        per_replay* replay = filled(shape(which));
        for (int prioritization = 0; prioritization < 3; ++prioritization)
            for (int normalization = 0; normalization < 3; ++normalization)
                for (int uniform = 0; uniform < 2; ++uniform) {
                    per_sample_options options = default_sample_options();
                    options.beta = 0.6;
                    options.prioritization = prioritization;
                    options.normalize_weights = normalization;
                    options.uniform_fraction = uniform ? 0.25 : 0;
                    options.n_step = which == 3 ? 1 : 0;
                    fill(&drawn, which >= 4);
                    fill(&windows, which >= 4);
                    CHECK_OK(per_replay_sample(replay, &options, PLACES, &drawn.arrays, NULL));
                    CHECK_OK(per_replay_get_windows(replay, &options, PER_INVALID_ERROR, PLACES, drawn.ids,
                                                    &windows.arrays, NULL));
                    CHECK(SAME(drawn, windows));
                }
        per_replay_free(replay);
    }
}

/* Options omitted from a call are those of the buffer. The scheme has no effect. */
static void options_are_those_of_the_buffer(void) {
    static batch drawn, windows;
    for (int prioritization = 0; prioritization < 3; ++prioritization) {
        per_replay_options options = shape(1);
        options.beta = 0.6;
        options.prioritization = prioritization;
        options.normalize_weights = prioritization;
        options.uniform_fraction = 0.25;
        per_replay* replay = filled(options);
        fill(&drawn, 0);
        CHECK_OK(per_replay_sample(replay, NULL, PLACES, &drawn.arrays, NULL));
        per_replay_free(replay);
        options.scheme = PER_WITHOUT_REPLACEMENT;
        replay = filled(options);
        fill(&windows, 0);
        CHECK_OK(per_replay_get_windows(replay, NULL, PER_INVALID_SKIP, PLACES, drawn.ids, &windows.arrays, NULL));
        CHECK(SAME(drawn, windows));
        per_replay_free(replay);
    }
}

/* A buffer that returned windows by id continues like its twin, which did not. */
static void are_no_draw(void) {
    static batch out, expected;
    per_replay_options options = shape(1);
    per_replay_statistics before;
    const int64_t ids[3] = {72, 50, 72};
    options.beta = 0;
    options.beta_final = 1;
    options.beta_steps = 2;
    options.normalize_weights = PER_NONE;
    per_replay *replay = filled(options), *twin = filled(options);
    for (int i = 0; i < 3; ++i) {
        fill(&expected, 0);
        fill(&out, 0);
        CHECK_OK(per_replay_sample(twin, NULL, PLACES, &expected.arrays, NULL));
        before = stats_of(replay);
        CHECK_OK(per_replay_get_windows(replay, NULL, PER_INVALID_ERROR, 3, ids, &out.arrays, NULL));
        /* Uses the beta of the next batch. */
        fill(&out, 0);
        CHECK_OK(per_replay_get_windows(replay, NULL, PER_INVALID_ERROR, PLACES, expected.ids, &out.arrays, NULL));
        CHECK(SAME(out, expected));
        check_same_statistics(replay, &before);
        fill(&out, 0);
        CHECK_OK(per_replay_sample(replay, NULL, PLACES, &out.arrays, NULL));
        CHECK(SAME(out, expected));
    }
    free_both(replay, twin);
}

/* Priorities 1, 4, 16 and 0, alpha 1/2: P is 1/7, 2/7, 4/7 and 0; w is (4 P)^-1 divided by the largest of the given
   ids. */
static void law_by_hand(void) {
    static rows out;
    per_replay_options options = replay_options(20, 1);
    per_sample_options given = default_sample_options();
    const int64_t ids[4] = {3, 1, 2, 1}, all[4] = {0, 1, 2, 3}, none[2] = {3, 3};
    options.alpha = 0.5;
    per_replay* replay = create_replay(&options);
    for (int t = 0; t < 5; ++t) add_step(replay, 0, (float)t, 0);
    set_priority(replay, 1, 4);
    set_priority(replay, 2, 16);
    set_priority(replay, 3, 0);
    given.beta = 1;
    fill_rows(&out);
    CHECK_OK(per_replay_get_windows(replay, &given, PER_INVALID_ERROR, 4, ids, &out.batch, NULL));
    CHECK(out.ids[0] == 3 && out.observation[0] == 3 && out.priorities[0] == 0 && out.probabilities[0] == 0);
    CHECK(out.weights[0] == 0 && out.weights[1] == 1 && fabsf(out.weights[2] - 0.5f) <= 1e-7f && out.weights[3] == 1);
    CHECK(out.probabilities[1] == (float)(2.0 / 7) && out.probabilities[2] == (float)(4.0 / 7));
    CHECK(out.priorities[1] == 4 && out.priorities[2] == 16);
    given.normalize_weights = PER_NONE;
    CHECK_OK(per_replay_get_windows(replay, &given, PER_INVALID_ERROR, 4, all, &out.batch, NULL));
    CHECK(fabsf(out.weights[0] - 7.0f / 4) <= 1e-6f && fabsf(out.weights[1] - 7.0f / 8) <= 1e-6f);
    given.normalize_weights = PER_BUFFER_MAX;
    CHECK_OK(per_replay_get_windows(replay, &given, PER_INVALID_ERROR, 4, ids, &out.batch, NULL));
    CHECK(fabsf(out.weights[1] - 0.5f) <= 1e-7f && fabsf(out.weights[2] - 0.25f) <= 1e-7f && out.weights[0] == 0);
    given.normalize_weights = PER_BATCH_MAX;
    CHECK_OK(per_replay_get_windows(replay, &given, PER_INVALID_ERROR, 2, none, &out.batch, NULL));
    CHECK(out.weights[0] == 0 && out.weights[1] == 0 && out.ids[1] == 3);
    /* Half uniform: P of the last is 1/8. */
    given.uniform_fraction = 0.5;
    CHECK_OK(per_replay_get_windows(replay, &given, PER_INVALID_ERROR, 4, ids, &out.batch, NULL));
    CHECK(fabsf(out.probabilities[0] - 0.125f) <= 1e-7f && out.weights[0] == 1);
    CHECK(fabsf(out.weights[1] - 0.125f / (1.0f / 7 + 0.125f)) <= 1e-6f);
    per_replay_free(replay);
}

/* Dead ids and a live one; of 60 rows, 30 of each environment, the oldest have been overwritten. */
static const int64_t some_ids[6] = {-1, 0, 72, 1000, -5, 57};
static const int live_at[6] = {0, 0, 1, 0, 0, 1};

static void the_dead_leave_zeros(int on_invalid) {
    static batch out, expected, zeros;
    static const int64_t dead[3] = {-1, 2, INT64_MAX};
    for (int which = 0; which < 6; ++which) {
        const per_replay_options own = shape(which);
        const int64_t steps = which >= 4 ? 5 : 1, frames = which == 2 || which == 5 ? 3 : which == 3 ? 2 : 1;
        const int64_t n_observations = (which >= 4 ? 7 : 1) * frames;
        per_replay* replay = filled(own);
        memset(&zeros, 0, sizeof zeros);
        fill(&out, which >= 4);
        per_status status = per_replay_get_windows(replay, NULL, on_invalid, 6, some_ids, &out.arrays, NULL);
        if (on_invalid == PER_INVALID_SKIP)
            CHECK(status == PER_OK);
        else
            CHECK(status == PER_ERROR_INVALID_ARGUMENT && strstr(per_last_error(), "4 ids") != NULL);
        for (int i = 0; i < 6; ++i) {
            const int64_t first = i * steps;
            if (live_at[i]) {
                int64_t id = some_ids[i];
                fill(&expected, which >= 4);
                CHECK_OK(per_replay_get_windows(replay, NULL, PER_INVALID_ERROR, 1, &id, &expected.arrays, NULL));
                CHECK(out.ids[i] == id && out.probabilities[i] == *expected.probabilities && out.weights[i] > 0);
                CHECK(memcmp(out.reward + first, expected.reward, (size_t)steps * sizeof *out.reward) == 0);
                CHECK(memcmp(out.observation + i * n_observations, expected.observation,
                             (size_t)n_observations * sizeof *out.observation) == 0);
                continue;
            }
            CHECK(out.ids[i] == -1 && out.weights[i] == 0 && out.probabilities[i] == 0 && out.priorities[i] == 0);
            CHECK(memcmp(out.observation + i * n_observations, zeros.observation, (size_t)n_observations * 4) == 0);
            if (which < 4) CHECK(memcmp(out.next + i * frames, zeros.next, (size_t)frames * 4) == 0);
            CHECK(memcmp(out.reward + first, zeros.reward, (size_t)steps * 4) == 0);
            CHECK(memcmp(out.discount + first, zeros.discount, (size_t)steps * 4) == 0);
            CHECK(memcmp(out.gamma_m + first, zeros.gamma_m, (size_t)steps * 4) == 0);
            CHECK(memcmp(out.n_steps + first, zeros.n_steps, (size_t)steps * 4) == 0);
            CHECK(memcmp(out.terminated + first, zeros.terminated, (size_t)steps) == 0);
            CHECK(memcmp(out.truncated + first, zeros.truncated, (size_t)steps) == 0);
            if (which >= 4) CHECK(memcmp(out.mask + first, zeros.mask, (size_t)steps) == 0);
        }
        fill(&out, which >= 4);
        CHECK_OK(per_replay_get_windows(replay, NULL, PER_INVALID_SKIP, 3, dead, &out.arrays, NULL));
        for (int i = 0; i < 3; ++i) CHECK(out.ids[i] == -1 && out.weights[i] == 0);
        per_replay_free(replay);
    }
}

static void the_dead_are_refused(void) {
    static batch out, garbage;
    per_replay* replay = filled(shape(1));
    const per_replay_statistics before = stats_of(replay);
    const int64_t late[3] = {72, 0, -1}, unknown[3] = {72, 57, 1000}, waiting[2] = {72, 80}, minus[1] = {-1};
    fill(&out, 0);
    fill(&garbage, 0);
#define CHECK_DEAD(ids, text)                                                                                         \
    CHECK_FAILS(                                                                                                      \
        per_replay_get_windows(replay, NULL, PER_INVALID_ERROR, sizeof(ids) / sizeof *(ids), ids, &out.arrays, NULL), \
        PER_ERROR_INVALID_ARGUMENT, text)
    CHECK_DEAD(late, "ids[1] is 0: no live transition (");
    CHECK_DEAD(unknown, "ids[2] is 1000: never issued; ids so far are 0 .. ");
    CHECK_DEAD(waiting,
               "ids[1] is 80: no live transition (not yet, as more steps of its episode are needed); with on_invalid "
               "PER_INVALID_SKIP such ids are skipped");
    CHECK_DEAD(minus, "ids[0] is -1: no live transition (no step; -1 marks ");
    CHECK(SAME(out, garbage));
    check_same_statistics(replay, &before);
    per_replay_free(replay);
}

static void bad_arguments(void) {
    static batch out, garbage;
    static rows of_empty;
    static const int64_t ids[2] = {72, 57};
    per_replay *replay = filled(shape(0)), *sequences = filled(shape(4)), *empty = create_plain(20, 1);
    const per_replay_statistics before = stats_of(replay);
    per_sample_options given = default_sample_options();
    per_batch unknown;
    int64_t id = 0;
    fill(&out, 0);
    fill(&garbage, 0);
#define CHECK_BAD_CALL(text, ...) CHECK_REFUSED(per_replay_get_windows(__VA_ARGS__), text)
    CHECK_BAD_CALL("on_invalid is 2", replay, NULL, 2, 2, ids, &out.arrays, NULL);
    CHECK_BAD_CALL("count is -1", replay, NULL, 0, -1, ids, &out.arrays, NULL);
    CHECK_BAD_CALL("count is 16777217", replay, NULL, 0, (1 << 24) + 1, ids, &out.arrays, NULL);
    given.n_step = 2;
    CHECK_BAD_CALL("n_step is 2", replay, &given, 0, 2, ids, &out.arrays, NULL);
    unknown = out.arrays;
    unknown.mask = out.mask;
    CHECK_BAD_CALL("mask is not NULL", replay, NULL, 0, 2, ids, &unknown, NULL);
    CHECK_BAD_CALL("next_fields[0] is not NULL", sequences, NULL, 0, 2, ids, &out.arrays, NULL);
    CHECK_OK(per_replay_get_windows(replay, NULL, 0, 0, NULL, &out.arrays, NULL));
    CHECK(SAME(out, garbage));
    check_same_statistics(replay, &before);

    /* An empty buffer alone is not an error. */
    fill_rows(&of_empty);
    of_empty.weights[0] = 7;
    CHECK_OK(per_replay_get_windows(empty, NULL, PER_INVALID_SKIP, 1, &id, &of_empty.batch, NULL));
    CHECK(of_empty.ids[0] == -1 && of_empty.weights[0] == 0);
    CHECK_BAD_ID(per_replay_get_windows(empty, NULL, PER_INVALID_ERROR, 1, &id, &of_empty.batch, NULL), "ids[0] is 0");
    per_replay_free(replay);
    free_both(sequences, empty);
}

int main(void) {
    equal_those_of_a_draw();
    options_are_those_of_the_buffer();
    are_no_draw();
    law_by_hand();
    the_dead_leave_zeros(PER_INVALID_SKIP);
    if (on_cuda())
        the_dead_leave_zeros(PER_INVALID_ERROR);
    else
        the_dead_are_refused();
    bad_arguments();
    return 0;
}

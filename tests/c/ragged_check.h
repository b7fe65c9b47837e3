/*
 * Buffers with rows of any length, for tests. What step t of environment e is given follows from both numbers alone, so
 * every row of a batch can be recomputed from its id.
 */
#ifndef RAGGED_CHECK_H
#define RAGGED_CHECK_H

#include "saved_bytes.h"

enum { CAPACITY = 60, MAX_POINTS = 5, MAX_TOKENS = 300, B = 32, MOST_ROWS = 20000, N_FIELDS = 3 };

/* ---------------------------------------------------------------------------------------------------------- contents */

static const int64_t point_shape[1] = {2};
static const per_field fields[N_FIELDS] = {
    {.name = "observation", .shape = point_shape, .ndim = 1, .dtype = PER_FLOAT32, .max_length = MAX_POINTS},
    {.name = "tokens", .dtype = PER_INT16, .max_length = MAX_TOKENS},
    {.name = "action", .dtype = PER_INT32},
};

static inline uint64_t mix(uint64_t a, uint64_t b, uint64_t c) {
    uint64_t x = a * 0x9E3779B97F4A7C15u + b * 0xC2B2AE3D27D4EB4Fu + c * 0x165667B19E3779F9u;
    x ^= x >> 29;
    x *= 0xBF58476D1CE4E5B9u;
    return x ^ x >> 32;
}

/* All lengths from 0 to the largest come up; that of tokens is 0 for a tenth of the steps. */
static inline int64_t n_points(int64_t env, int64_t t) {
    return (int64_t)(mix(1, (uint64_t)env, (uint64_t)t) % (MAX_POINTS + 1));
}
static inline int64_t n_tokens(int64_t env, int64_t t) {
    const uint64_t x = mix(2, (uint64_t)env, (uint64_t)t);
    return x % 10 == 0 ? 0 : (int64_t)(x / 10 % (MAX_TOKENS + 1));
}
static inline float point(int64_t env, int64_t t, int64_t k) {
    return (float)(mix(3 + (uint64_t)k, (uint64_t)env, (uint64_t)t) % 1000);
}
static inline int16_t token(int64_t env, int64_t t, int64_t k) {
    return (int16_t)(mix(20 + (uint64_t)k, (uint64_t)env, (uint64_t)t) % 30000);
}

static inline per_replay_options options_of(int64_t n_envs) {
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

static inline void fill_ragged_call(ragged_call* add, int64_t n_envs, int64_t first, int64_t length, int64_t episode) {
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

static inline void add_steps(per_replay* replay, int64_t n_envs, int64_t first, int64_t length, int64_t episode) {
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

static inline void fill_batch(ragged_rows* rows, int64_t padded_points, int64_t padded_tokens) {
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

static inline void check_points(const per_ragged* out, int64_t i, int64_t env, int64_t t) {
    const int64_t n = t < 0 ? 0 : n_points(env, t), padded = out->padded_length;
    const float* const values = (const float*)out->values + 2 * (padded > 0 ? i * padded : out->offsets[i]);
    CHECK(out->offsets[i + 1] - out->offsets[i] == n);
    for (int64_t k = 0; k < 2 * n; ++k) CHECK(values[k] == point(env, t, k));
    for (int64_t k = 2 * n; k < 2 * padded; ++k) CHECK(values[k] == 0);
}

static inline void check_tokens(const per_ragged* out, int64_t i, int64_t env, int64_t t) {
    const int64_t n = t < 0 ? 0 : n_tokens(env, t), padded = out->padded_length;
    const int16_t* const values = (const int16_t*)out->values + (padded > 0 ? i * padded : out->offsets[i]);
    CHECK(out->offsets[i + 1] - out->offsets[i] == n);
    for (int64_t k = 0; k < n; ++k) CHECK(values[k] == token(env, t, k));
    for (int64_t k = n; k < padded; ++k) CHECK(values[k] == 0);
}

static inline void check_total(const per_ragged* out, int64_t n) {
    int64_t longest = 0;
    for (int64_t i = 0; i < n; ++i)
        if (out->offsets[i + 1] - out->offsets[i] > longest) longest = out->offsets[i + 1] - out->offsets[i];
    CHECK(out->offsets[0] == 0 && out->total == (out->padded_length > 0 ? longest : out->offsets[n]));
}

/* Rows by id; action is the step. A negative id has empty rows. */
static inline void check_ragged_rows(const ragged_rows* rows, int64_t n, int64_t n_envs) {
    for (int64_t i = 0; i < n; ++i) {
        const int64_t env = rows->ids[i] < 0 ? 0 : rows->ids[i] % n_envs;
        const int64_t t = rows->ids[i] < 0 ? -1 : rows->actions[i];
        check_points(&rows->ragged[0], i, env, t);
        check_points(&rows->ragged[1], i, env, t < 0 ? -1 : t + rows->n_steps[i]);
        check_tokens(&rows->ragged[2], i, env, t);
    }
    for (int a = 0; a < 3; ++a) check_total(&rows->ragged[a], n);
}

/* Rows of a batch whose arrays are elsewhere, such as in the slot of a loader. */
static inline void refer_to(ragged_rows* rows, const per_batch* batch, int64_t n) {
    rows->ragged[0] = *(const per_ragged*)batch->fields[0];
    rows->ragged[1] = *(const per_ragged*)batch->next_fields[0];
    rows->ragged[2] = *(const per_ragged*)batch->fields[1];
    memcpy(rows->actions, batch->fields[2], (size_t)n * sizeof *rows->actions);
    memcpy(rows->n_steps, batch->n_steps, (size_t)n * sizeof *rows->n_steps);
    memcpy(rows->ids, batch->ids, (size_t)n * sizeof *rows->ids);
}

#endif

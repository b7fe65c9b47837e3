/*
 * Buffers for tests. Most tests need only one field, "observation", one float32: its value can identify the environment
 * and step of a row.
 */
#ifndef REPLAY_CHECK_H
#define REPLAY_CHECK_H

#include <math.h>
#include <stddef.h>

#include "replay_device.h"

/*
 * An entry that the CPU refuses by name (`text`), and that CUDA skips and counts. In a call of one entry both change
 * nothing.
 */
#define CHECK_BAD(call, status, text, kind) CHECK_FAILS(call, status, on_cuda() ? (kind) : (text))
#define CHECK_BAD_STEP(call, text) \
    CHECK_BAD(call, PER_ERROR_INVALID_ARGUMENT, text, "steps were not allowed: not added")
#define CHECK_BAD_PRIORITY(call, text) \
    CHECK_BAD(call, PER_ERROR_INVALID_ARGUMENT, text, "priorities or td_errors gave no finite priority")
#define CHECK_BAD_ID(call, text) CHECK_BAD(call, PER_ERROR_INVALID_ARGUMENT, text, "ids named no row that could be had")
#define CHECK_BAD_BOOTSTRAPS(call, text) CHECK_BAD(call, PER_ERROR_INVALID_ARGUMENT, text, "calls for advantages")

/* The id of a refused step; the variable was -7 before. */
static inline int64_t id_of_bad_step(void) {
    return on_cuda() ? -1 : -7;
}

static inline per_field field_of(const char* name, int32_t dtype, int32_t ndim, const int64_t* shape) {
    per_field field;
    memset(&field, 0, sizeof field);
    field.name = name;
    field.dtype = dtype;
    field.ndim = ndim;
    field.shape = shape;
    return field;
}

static inline void set_fields(per_replay_options* options, const per_field* fields, int64_t n_fields) {
    options->fields = fields;
    options->n_fields = n_fields;
    options->field_size = sizeof(per_field);
}

/* The fields observation and goal: one float32 each. */
static inline void set_goal_fields(per_replay_options* options) {
    static const per_field fields[2] = {{"observation", NULL, 0, PER_FLOAT32, PER_ROLE_DEFAULT, 0, NULL, 0, 0, 0},
                                        {"goal", NULL, 0, PER_FLOAT32, PER_ROLE_DEFAULT, 0, NULL, 0, 0, 0}};
    set_fields(options, fields, 2);
}

/* Options of a buffer with the one field; the caller changes what differs. */
static inline per_replay_options replay_options(int64_t capacity, int64_t n_envs) {
    static const per_field observation = {"observation", NULL, 0, PER_FLOAT32, PER_ROLE_DEFAULT, 0, NULL, 0, 0, 0};
    per_replay_options options = default_replay_options();
    options.capacity = capacity;
    options.n_envs = n_envs;
    set_fields(&options, &observation, 1);
    options.device = test_device();
    return options;
}

static inline void set_rate_limit(per_replay_options* options, double samples_per_insert, int64_t tolerance,
                                  int64_t min_size) {
    options->rate_limit.samples_per_insert = samples_per_insert;
    options->rate_limit.samples_tolerance = tolerance;
    options->rate_limit.min_size_to_sample = min_size;
}

static inline per_replay* create_replay(const per_replay_options* options) {
    per_replay* replay = NULL;
    CHECK_OK(per_replay_create(options, &replay));
    CHECK(replay != NULL);
    return replay;
}

/* A buffer with the one field and default options. */
static inline per_replay* create_plain(int64_t capacity, int64_t n_envs) {
    const per_replay_options options = replay_options(capacity, n_envs);
    return create_replay(&options);
}

static inline void free_both(per_replay* replay, per_replay* twin) {
    per_replay_free(replay);
    per_replay_free(twin);
}

static inline per_replay_options describe_replay(per_replay* replay) {
    per_replay_options described = default_replay_options();
    CHECK_OK(per_replay_describe(replay, &described));
    return described;
}

static inline per_replay_statistics stats_of(per_replay* replay) {
    per_replay_statistics statistics;
    CHECK_OK(per_replay_get_statistics(replay, &statistics, sizeof statistics));
    return statistics;
}

static inline void check_same_statistics(per_replay* replay, const per_replay_statistics* expected) {
    const per_replay_statistics now = stats_of(replay);
    CHECK(memcmp(&now, expected, sizeof now) == 0);
}

static inline int64_t live_of(per_replay* replay) {
    int64_t live = -1;
    CHECK_OK(per_replay_get_live_ids(replay, 0, NULL, &live));
    CHECK(live == stats_of(replay).live);
    return live;
}

static inline per_array array_of(const void* data, int32_t dtype) {
    per_array array;
    memset(&array, 0, sizeof array);
    array.data = data;
    array.dtype = dtype;
    return array;
}

/* Hindsight with goals of these fields. */
static inline per_hindsight_options relabelling(int32_t achieved_field, int32_t goal_field,
                                                int32_t (*reward)(void* context, int64_t count, const void* achieved,
                                                                  const void* goals, float* rewards_out,
                                                                  uint8_t* terminated_out),
                                                void* context) {
    per_hindsight_options options = default_hindsight_options();
    options.achieved_field = achieved_field;
    options.goal_field = goal_field;
    options.reward = reward;
    options.context = context;
    return options;
}

/* A reward of hindsight: always 0. */
static inline int32_t no_reward(void* context, int64_t count, const void* achieved, const void* goals,
                                float* rewards_out, uint8_t* terminated_out) {
    (void)context, (void)achieved, (void)goals, (void)terminated_out;
    memset(rewards_out, 0, (size_t)count * sizeof *rewards_out);
    return 0;
}

/* ------------------------------------------------------------------ adding */

/* Steps whose rewards are float32 and whose flags are bytes. next_fields may be NULL. */
static inline per_steps steps_of(int64_t length, const per_array* fields, const per_array* next_fields,
                                 const void* rewards, const void* terminated, const void* truncated) {
    per_steps steps = default_steps();
    steps.length = length;
    steps.fields = fields;
    steps.next_fields = next_fields;
    steps.reward = array_of(rewards, PER_FLOAT32);
    steps.terminated = array_of(terminated, PER_BOOL);
    steps.truncated = array_of(truncated, PER_BOOL);
    return steps;
}

/* A call of per_replay_add() on a buffer with the one field. Must not be copied: steps points into it. */
typedef struct call {
    per_steps steps;
    per_array observation;
    per_array next;
} call;

/* NULL flags are 0. next NULL: omitted. All arrays are [length, n], with n the environments of the buffer. */
static inline void fill_call(call* given, int64_t length, const float* observation, const float* next,
                             const float* reward, const uint8_t* terminated, const uint8_t* truncated) {
    static const uint8_t no_flags[4096] = {0};
    given->observation = array_of(observation, PER_FLOAT32);
    given->next = array_of(next, PER_FLOAT32);
    given->steps = steps_of(length, &given->observation, next != NULL ? &given->next : NULL, reward,
                            terminated != NULL ? terminated : no_flags, truncated != NULL ? truncated : no_flags);
}

/* Adds steps to a buffer with the one field, as fill_call() describes them. */
static inline void add_given(per_replay* replay, int64_t length, const float* observation, const float* next,
                             const float* reward, const uint8_t* terminated, const uint8_t* truncated,
                             int64_t* ids_out) {
    call given;
    fill_call(&given, length, observation, next, reward, terminated, truncated);
    CHECK_OK(per_replay_add(replay, &given.steps, ids_out, NULL));
}

typedef enum end { GOES_ON, TERMINATED, TRUNCATED } end;
typedef enum next_kind { NEXT_LEFT_OUT, NEXT_GIVEN, NEXT_UNKNOWN } next_kind;

/* One step of environment `env`; returns the status, and the id in *id. */
static inline per_status try_step(per_replay* replay, int64_t env, float observation, float reward, end how,
                                  next_kind kind, float next, int64_t* id) {
    const uint8_t terminated = how == TERMINATED, truncated = how == TRUNCATED, known = kind != NEXT_UNKNOWN;
    call given;
    fill_call(&given, 1, &observation, kind == NEXT_GIVEN ? &next : NULL, &reward, &terminated, &truncated);
    given.steps.n_envs = 1;
    given.steps.env_ids = &env;
    if (kind != NEXT_LEFT_OUT) given.steps.next_mask = array_of(&known, PER_BOOL);
    return per_replay_add(replay, &given.steps, id, NULL);
}

/* A step whose next observation is left out. */
static inline int64_t add_step(per_replay* replay, int64_t env, float observation, float reward) {
    int64_t id = -7;
    CHECK_OK(try_step(replay, env, observation, reward, GOES_ON, NEXT_LEFT_OUT, 0, &id));
    return id;
}

/* A step with its next observation. */
static inline int64_t add_full(per_replay* replay, int64_t env, float observation, float reward, end how, float next) {
    int64_t id = -7;
    CHECK_OK(try_step(replay, env, observation, reward, how, NEXT_GIVEN, next, &id));
    return id;
}

/* Steps with observations first .. end - 1, each of which announces the next. */
static inline void add_run(per_replay* replay, int64_t first, int64_t end) {
    for (int64_t t = first; t < end; ++t) add_full(replay, 0, (float)t, 0, GOES_ON, (float)t + 1);
}

static inline per_replay* create_filled(const per_replay_options* options, int64_t n_steps) {
    per_replay* replay = create_replay(options);
    add_run(replay, 0, n_steps);
    return replay;
}

/* The last step of an episode with an unknown final observation. */
static inline int64_t add_unknown_end(per_replay* replay, int64_t env, float observation, float reward, end how) {
    int64_t id = -7;
    CHECK_OK(try_step(replay, env, observation, reward, how, NEXT_UNKNOWN, 0, &id));
    return id;
}

/* ----------------------------------------------------------------- drawing */

enum { MANY = 2048 };

/* Points members of a batch to the arrays of the same names in `out`. The batch may be any struct with them. */
#define POINT_BATCH(batch, out)                                                                                      \
    ((batch).reward = (out)->reward, (batch).discount = (out)->discount, (batch).gamma_m = (out)->gamma_m,           \
     (batch).n_steps = (out)->n_steps, (batch).terminated = (out)->terminated, (batch).truncated = (out)->truncated, \
     (batch).ids = (out)->ids, (batch).priorities = (out)->priorities)

/* A batch with all arrays of a buffer with the one field, of single frames. */
typedef struct rows {
    float observation[MANY], next[MANY], reward[MANY], discount[MANY], weights[MANY], priorities[MANY];
    float probabilities[MANY], gamma_m[MANY];
    int32_t n_steps[MANY];
    uint8_t terminated[MANY], truncated[MANY];
    int64_t ids[MANY];
    void* fields[1];
    void* next_fields[1];
    per_batch batch;
} rows;

static inline void fill_rows(rows* out) {
    memset(out, 0, sizeof *out);
    out->batch = default_batch();
    out->fields[0] = out->observation;
    out->next_fields[0] = out->next;
    out->batch.fields = out->fields;
    out->batch.next_fields = out->next_fields;
    POINT_BATCH(out->batch, out);
    out->batch.weights = out->weights;
    out->batch.probabilities = out->probabilities;
}

static inline void draw_with(per_replay* replay, const per_sample_options* options, int64_t batch_size, rows* out) {
    CHECK(batch_size <= MANY);
    fill_rows(out);
    CHECK_OK(per_replay_sample(replay, options, batch_size, &out->batch, NULL));
}

static inline void draw(per_replay* replay, int64_t batch_size, rows* out) {
    draw_with(replay, NULL, batch_size, out);
}

/* The next batches of both buffers are bit-identical. Leaves that batch in `out`. */
static inline void check_same_draw(per_replay* replay, per_replay* twin, int64_t batch_size, rows* out) {
    static rows of_twin;
    draw(replay, batch_size, out);
    draw(twin, batch_size, &of_twin);
    CHECK(memcmp(out, &of_twin, offsetof(rows, fields)) == 0);
}

/* Index of `id` among the first `count` ids of a batch; -1 if it is not among them. */
static inline int64_t place_of(const rows* drawn, int64_t count, int64_t id) {
    for (int64_t i = 0; i < count; ++i)
        if (drawn->ids[i] == id) return i;
    return -1;
}

/* Number of transitions in a draw that covers the whole buffer: less on the simulated GPU, where buffers are small. */
static inline int64_t many(void) {
    return on_cuda() ? 256 : MANY;
}

/* One drawn transition. */
typedef struct window {
    float observation, reward, discount, next;
    int32_t n_steps, terminated, truncated;
} window;

static inline void check_window(per_replay* replay, int64_t id, window expected, int line) {
    static rows drawn;
    const float gamma_m = (float)pow(stats_of(replay).gamma, expected.n_steps);
    draw(replay, many(), &drawn);
    int64_t i = place_of(&drawn, many(), id);
    if (i >= 0 && drawn.observation[i] == expected.observation && drawn.reward[i] == expected.reward &&
        drawn.discount[i] == expected.discount && drawn.next[i] == expected.next &&
        drawn.n_steps[i] == expected.n_steps && drawn.terminated[i] == expected.terminated &&
        drawn.truncated[i] == expected.truncated && drawn.gamma_m[i] == gamma_m)
        return;
    fprintf(stderr, "line %d: id %lld ", line, (long long)id);
    if (i < 0) {
        fprintf(stderr, "is not drawn\n");
    } else {
        fprintf(stderr,
                "is observation %.9g reward %.9g discount %.9g next %.9g n_steps %d terminated %d truncated %d "
                "gamma_m %.9g\n",
                drawn.observation[i], drawn.reward[i], drawn.discount[i], drawn.next[i], drawn.n_steps[i],
                drawn.terminated[i], drawn.truncated[i], drawn.gamma_m[i]);
    }
    exit(1);
}

/* The transition is live, and a draw returns these values: observation, reward, discount, next observation, n_steps,
   flags. */
#define CHECK_WINDOW(replay, id, ...)                        \
    do {                                                     \
        window expected_window = {__VA_ARGS__};              \
        check_window(replay, id, expected_window, __LINE__); \
    } while (0)

/*
 * Exactly these ids are live. A systematic batch of equally likely transitions contains each of them if its size is a
 * multiple of their number. Priorities must be equal, or all positive and not too far apart.
 */
static inline void check_live(per_replay* replay, int64_t count, const int64_t* ids, int line) {
    static rows drawn;
    int64_t i, n = live_of(replay);
    int good = n == count;
    if (n > 0) draw(replay, many(), &drawn);
    for (i = 0; i < count && n > 0; ++i) good = good && place_of(&drawn, many(), ids[i]) >= 0;
    for (i = 0; i < many() && n > 0; ++i) {
        int64_t j = 0;
        while (j < count && ids[j] != drawn.ids[i]) ++j;
        good = good && j < count;
    }
    if (good) return;
    fprintf(stderr, "line %d: %lld live, %lld expected; drawn:", line, (long long)n, (long long)count);
    for (i = 0; i < many() && n > 0; ++i)
        if (place_of(&drawn, i, drawn.ids[i]) < 0) fprintf(stderr, " %lld", (long long)drawn.ids[i]);
    fprintf(stderr, "\n");
    exit(1);
}

#define CHECK_LIVE(replay, ...)                                                                \
    do {                                                                                       \
        const int64_t live_ids[] = {__VA_ARGS__};                                              \
        check_live(replay, (int64_t)(sizeof live_ids / sizeof *live_ids), live_ids, __LINE__); \
    } while (0)

#define CHECK_NONE_LIVE(replay) check_live(replay, 0, NULL, __LINE__)

/* -------------------------------------------------------------- priorities */

static inline float priority_of(per_replay* replay, int64_t id) {
    float priority = -7;
    CHECK_OK(per_replay_get_priorities(replay, 1, &id, &priority, NULL));
    return priority;
}

static inline void set_priority(per_replay* replay, int64_t id, float priority) {
    CHECK_OK(write_priorities(replay, 1, &id, &priority, NULL));
}

#endif

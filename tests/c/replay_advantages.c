/*
 * Advantages by hand. gamma 0.5 and lambda 0.5, so that gamma lambda is 1/4, and values that make every sum exact:
 * A_t = delta_t + A_(t+1) / 4, delta_t = r_t + V(next_t) / 2 - V_t.
 */
#include "replay_check.h"

enum { OBSERVATION, VALUE, ADVANTAGE, RETURN, COUNT, VECTOR, WHOLE, N_FIELDS };

static per_replay* create(int64_t capacity, int64_t n_envs, int32_t stack) {
    static const int64_t two[] = {2};
    static per_field fields[N_FIELDS];
    per_replay_options options = replay_options(capacity, n_envs);
    fields[OBSERVATION] = field_of("observation", PER_FLOAT32, 0, NULL);
    fields[VALUE] = field_of("value", PER_FLOAT32, 0, NULL);
    fields[ADVANTAGE] = field_of("advantage", PER_FLOAT32, 0, NULL);
    fields[RETURN] = field_of("value_target", PER_FLOAT32, 0, NULL);
    fields[COUNT] = field_of("count", PER_FLOAT32, 0, NULL);
    fields[VECTOR] = field_of("vector", PER_FLOAT32, 1, two);
    fields[WHOLE] = field_of("whole", PER_INT32, 0, NULL);
    set_fields(&options, fields, N_FIELDS);
    options.frame_stack = stack;
    options.gamma = 0.5;
    return create_replay(&options);
}

/* One step of environment `env` whose advantage and return are -9. */
static int64_t add(per_replay* replay, int64_t env, float observation, float value, float reward, end how,
                   next_kind kind, float next) {
    static const float minus_nine = -9, pair[2];
    static const int32_t zero;
    const uint8_t terminated = how == TERMINATED, truncated = how == TRUNCATED, known = kind != NEXT_UNKNOWN;
    int64_t id = -7;
    per_array fields[N_FIELDS] = {[OBSERVATION] = array_of(&observation, PER_FLOAT32),
                                  [VALUE] = array_of(&value, PER_FLOAT32),
                                  [VECTOR] = array_of(pair, PER_FLOAT32),
                                  [WHOLE] = array_of(&zero, PER_INT32)};
    fields[ADVANTAGE] = fields[RETURN] = fields[COUNT] = array_of(&minus_nine, PER_FLOAT32);
    per_array next_fields[N_FIELDS] = {[OBSERVATION] = array_of(&next, PER_FLOAT32)};
    per_steps steps = steps_of(1, fields, kind == NEXT_GIVEN ? next_fields : NULL, &reward, &terminated, &truncated);
    steps.n_envs = 1;
    steps.env_ids = &env;
    if (kind == NEXT_UNKNOWN) steps.next_mask = array_of(&known, PER_BOOL);
    CHECK_OK(per_replay_add(replay, &steps, &id, NULL));
    return id;
}

static float field_at(per_replay* replay, int64_t id, int field) {
    float value = -7;
    void* fields[N_FIELDS] = {NULL};
    fields[field] = &value;
    per_batch batch = default_batch();
    batch.fields = fields;
    CHECK_OK(per_replay_get(replay, 1, &id, &batch, NULL));
    return value;
}

#define CHECK_ADVANTAGE(replay, id, advantage, value_target)   \
    do {                                                       \
        CHECK(field_at(replay, id, ADVANTAGE) == (advantage)); \
        CHECK(field_at(replay, id, RETURN) == (value_target)); \
    } while (0)

/* The ids that need a bootstrap value, with their next observations. */
static int64_t bootstraps(per_replay* replay, int64_t* ids, float* next) {
    void* next_fields[N_FIELDS] = {NULL};
    int64_t count = -1;
    per_batch batch = default_batch();
    next_fields[OBSERVATION] = next;
    batch.next_fields = next_fields;
    batch.ids = ids;
    CHECK_OK(per_replay_get_bootstraps(replay, 16, &batch, &count, NULL));
    return count;
}

static per_status estimate(per_replay* replay, int64_t count, const int64_t* ids, const float* values) {
    return per_replay_compute_advantages(replay, VALUE, ADVANTAGE, RETURN, 0.5, count, ids, values, NULL);
}

static void terminated_episode(void) {
    per_replay* replay = create(20, 1, 1);
    const int64_t a = add(replay, 0, 0, 1, 1, GOES_ON, NEXT_LEFT_OUT, 0);
    const int64_t b = add(replay, 0, 1, 2, 2, GOES_ON, NEXT_LEFT_OUT, 0);
    const int64_t c = add(replay, 0, 2, 4, 3, TERMINATED, NEXT_GIVEN, 3);
    const int64_t d = add(replay, 0, 7, 8, 5, TERMINATED, NEXT_UNKNOWN, 0);
    const int64_t e = add(replay, 0, 8, 2, 6, TERMINATED, NEXT_GIVEN, 9); /* in the row after d's */
    CHECK_OK(estimate(replay, 0, NULL, NULL));
    CHECK_ADVANTAGE(replay, e, 4, 6);
    CHECK_ADVANTAGE(replay, d, -3, 5);            /* 5 - 8 */
    CHECK_ADVANTAGE(replay, c, -1, 3);            /* 3 - 4; nothing of the next episode */
    CHECK_ADVANTAGE(replay, b, 1.75f, 3.75f);     /* 2 + 4/2 - 2 = 2; 2 - 1/4 */
    CHECK_ADVANTAGE(replay, a, 1.4375f, 2.4375f); /* 1 + 2/2 - 1 = 1; 1 + 1.75/4 */
    CHECK(field_at(replay, a, COUNT) == -9 && field_at(replay, a, VALUE) == 1);
    per_replay_free(replay);
}

/* A truncated end bootstraps from its final observation, and so does the latest step of a running episode. */
static void truncated_and_running_episodes(void) {
    static const float values[] = {6, 10, 2};
    per_replay* replay = create(40, 2, 1);
    int64_t ids[16];
    float next[16];
    int64_t a = add(replay, 1, 0, 1, 1, GOES_ON, NEXT_GIVEN, 1);
    int64_t b = add(replay, 1, 1, 2, 2, TRUNCATED, NEXT_GIVEN, 55);
    int64_t c = add(replay, 1, 7, 3, 4, GOES_ON, NEXT_GIVEN, 8);
    int64_t d = add(replay, 0, 20, 4, 8, TRUNCATED, NEXT_GIVEN, 66);
    int64_t e = add(replay, 0, 30, 2, 1, GOES_ON, NEXT_GIVEN, 31);
    int64_t f = add(replay, 0, 31, 4, 1, GOES_ON, NEXT_LEFT_OUT, 0);
    CHECK(bootstraps(replay, ids, next) == 3); /* environment 0 first */
    CHECK(ids[0] == d && next[0] == 66 && ids[1] == b && next[1] == 55 && ids[2] == c && next[2] == 8);
    CHECK_OK(estimate(replay, 3, ids, values));
    CHECK_ADVANTAGE(replay, d, 7, 11);        /* 8 + 6/2 - 4 */
    CHECK_ADVANTAGE(replay, b, 5, 7);         /* 2 + 10/2 - 2 */
    CHECK_ADVANTAGE(replay, a, 2.25f, 3.25f); /* 1 + 2/2 - 1 = 1; 1 + 5/4 */
    CHECK_ADVANTAGE(replay, c, 2, 5);         /* 4 + 2/2 - 3 */
    /* The observation after f is unknown: f has no advantage, but its value serves e. */
    CHECK_ADVANTAGE(replay, e, 1, 3); /* 1 + 4/2 - 2 */
    CHECK_ADVANTAGE(replay, f, -9, -9);
    per_replay_free(replay);
}

static void unknown_final_observations_and_cuts(void) {
    static const float eight = 8;
    per_replay* replay = create(40, 1, 1);
    int64_t ids[16];
    float next[16];
    int64_t a = add(replay, 0, 0, 1, 1, GOES_ON, NEXT_GIVEN, 1);
    int64_t b = add(replay, 0, 1, 2, 2, TRUNCATED, NEXT_UNKNOWN, 0);
    int64_t c = add(replay, 0, 2, 2, 2, GOES_ON, NEXT_GIVEN, 3);
    int64_t d = add(replay, 0, 9, 1, 1, GOES_ON, NEXT_LEFT_OUT, 0); /* not 3: c was the last one before a cut */
    int64_t e = add(replay, 0, 10, 4, 1, GOES_ON, NEXT_LEFT_OUT, 0);
    CHECK_OK(per_replay_cut(replay, 0, NULL, NULL)); /* the observation after e will never be known */
    CHECK(bootstraps(replay, ids, next) == 1 && ids[0] == c && next[0] == 3);
    CHECK_OK(estimate(replay, 1, ids, &eight));
    CHECK_ADVANTAGE(replay, a, 1, 2); /* 1 + 2/2 - 1, and nothing beyond b */
    CHECK_ADVANTAGE(replay, b, -9, -9);
    CHECK_ADVANTAGE(replay, c, 4, 6); /* 2 + 8/2 - 2 */
    CHECK_ADVANTAGE(replay, d, 2, 3); /* 1 + 4/2 - 1 */
    CHECK_ADVANTAGE(replay, e, -9, -9);
    per_replay_free(replay);
}

/* Advantages do not depend on n_step. A stack affects which rows exist and the observations of bootstraps. */
static void windows(void) {
    static const float zero = 0;
    per_replay* replay = create(6, 1, 2);
    void* next_fields[N_FIELDS] = {NULL};
    float stacks[4][2] = {{0}}, discount[4], priorities[4] = {-7};
    int32_t n_steps[4];
    int64_t ids[4], count = -1;
    CHECK_OK(change_n_step(replay, 3, NULL));
    for (int64_t t = 0; t < 10; ++t) add(replay, 0, (float)t, 0, 1, GOES_ON, NEXT_GIVEN, (float)t + 1);
    per_batch batch = default_batch();
    next_fields[OBSERVATION] = stacks;
    batch.next_fields = next_fields;
    batch.ids = ids;
    batch.n_steps = n_steps;
    batch.discount = discount;
    batch.priorities = priorities;
    CHECK_OK(per_replay_get_bootstraps(replay, 4, &batch, &count, NULL));
    CHECK(count == 1 && ids[0] == 9 && stacks[0][0] == 9 && stacks[0][1] == 10 && n_steps[0] == 1);
    CHECK(discount[0] == 0.5f);
    CHECK(priorities[0] == 0); /* not live before its window of 3 is complete */
    CHECK_OK(per_replay_compute_advantages(replay, VALUE, ADVANTAGE, -1, 0.5, 1, ids, &zero, NULL));
    /* Rows 5 to 9 exist, 5 without the older frame of its stack. */
    CHECK_ADVANTAGE(replay, 5, -9, -9);
    CHECK_ADVANTAGE(replay, 6, 1.328125f, -9); /* 1 + 1/4 + 1/16 + 1/64 */
    CHECK_ADVANTAGE(replay, 8, 1.25f, -9);
    CHECK_ADVANTAGE(replay, 9, 1, -9);
    CHECK_OK(change_n_step(replay, 1, NULL));
    CHECK_OK(per_replay_get_bootstraps(replay, 4, &batch, &count, NULL));
    CHECK(count == 1 && priorities[0] == 1);
    per_replay_free(replay);
}

/* lambda 0 is the one-step error, lambda 1 the return minus the value. */
static void extremes_of_lambda(void) {
    per_replay* replay = create(20, 1, 1);
    const int64_t a = add(replay, 0, 0, 1, 1, GOES_ON, NEXT_LEFT_OUT, 0);
    add(replay, 0, 1, 2, 2, GOES_ON, NEXT_LEFT_OUT, 0);
    add(replay, 0, 2, 4, 4, TERMINATED, NEXT_GIVEN, 3);
    CHECK_OK(per_replay_compute_advantages(replay, VALUE, ADVANTAGE, RETURN, 0, 0, NULL, NULL, NULL));
    CHECK_ADVANTAGE(replay, a, 1, 2);
    CHECK_OK(per_replay_compute_advantages(replay, VALUE, ADVANTAGE, RETURN, 1, 0, NULL, NULL, NULL));
    CHECK_ADVANTAGE(replay, a, 2, 3); /* 1 + 2/2 + 4/4 = 3 */
    CHECK_OK(change_gamma(replay, 1, NULL));
    CHECK_OK(per_replay_compute_advantages(replay, VALUE, ADVANTAGE, RETURN, 1, 0, NULL, NULL, NULL));
    CHECK_ADVANTAGE(replay, a, 6, 7);
    per_replay_free(replay);
}

static void bad_arguments(void) {
    static const float values[] = {1, 2}, infinite[] = {1, INFINITY}, none[] = {NAN, 1};
    per_replay* replay = create(20, 1, 1);
    per_batch batch;
    int64_t ids[16], swapped[2], count = -1;
    float next[16], weights[16];
    const int64_t a = add(replay, 0, 0, 1, 1, TRUNCATED, NEXT_GIVEN, 1);
    const int64_t b = add(replay, 0, 5, 2, 2, GOES_ON, NEXT_GIVEN, 6);
    CHECK(bootstraps(replay, ids, next) == 2 && ids[0] == a && ids[1] == b);
    swapped[0] = b;
    swapped[1] = a;
#define CHECK_INVALID(text, ...) CHECK_REFUSED(per_replay_compute_advantages(__VA_ARGS__), text)
    CHECK_INVALID("value_field is -1: allowed are 0 .. 6", replay, -1, ADVANTAGE, -1, 0.5, 2, ids, values, NULL);
    CHECK_INVALID("advantage_field is 7", replay, VALUE, N_FIELDS, -1, 0.5, 2, ids, values, NULL);
    CHECK_INVALID("return_field is -2", replay, VALUE, ADVANTAGE, -2, 0.5, 2, ids, values, NULL);
    CHECK_INVALID("value_field is \"observation\"", replay, OBSERVATION, ADVANTAGE, -1, 0.5, 2, ids, values, NULL);
    CHECK_INVALID("advantage_field is \"vector\"", replay, VALUE, VECTOR, -1, 0.5, 2, ids, values, NULL);
    CHECK_INVALID("return_field is \"whole\"", replay, VALUE, ADVANTAGE, WHOLE, 0.5, 2, ids, values, NULL);
    CHECK_INVALID("advantage_field and value_field are both \"value\"", replay, VALUE, VALUE, -1, 0.5, 2, ids, values,
                  NULL);
    CHECK_INVALID("return_field and value_field are both \"value\"", replay, VALUE, ADVANTAGE, VALUE, 0.5, 2, ids,
                  values, NULL);
    CHECK_INVALID("return_field and advantage_field are both \"advantage\"", replay, VALUE, ADVANTAGE, ADVANTAGE, 0.5,
                  2, ids, values, NULL);
    CHECK_INVALID("lambda is 1.5", replay, VALUE, ADVANTAGE, -1, 1.5, 2, ids, values, NULL);
    CHECK_INVALID("count is -1", replay, VALUE, ADVANTAGE, -1, 0.5, -1, ids, values, NULL);
    CHECK_BAD_BOOTSTRAPS(per_replay_compute_advantages(replay, VALUE, ADVANTAGE, -1, 0.5, 1, ids, values, NULL),
                         "count is 1: 2 transitions need");
    CHECK_BAD_BOOTSTRAPS(per_replay_compute_advantages(replay, VALUE, ADVANTAGE, -1, 0.5, 3, ids, next, NULL),
                         "count is 3: 2 transitions need");
    CHECK_BAD_BOOTSTRAPS(per_replay_compute_advantages(replay, VALUE, ADVANTAGE, -1, 0.5, 0, NULL, NULL, NULL),
                         "count is 0: 2 transitions need");
    CHECK_BAD_BOOTSTRAPS(per_replay_compute_advantages(replay, VALUE, ADVANTAGE, -1, 0.5, 2, swapped, values, NULL),
                         "ids[0] is 2");
    CHECK_BAD_BOOTSTRAPS(per_replay_compute_advantages(replay, VALUE, ADVANTAGE, -1, 0.5, 2, ids, infinite, NULL),
                         "bootstrap_values[1] is inf");
    CHECK_BAD_BOOTSTRAPS(per_replay_compute_advantages(replay, VALUE, ADVANTAGE, -1, 0.5, 2, ids, none, NULL),
                         "bootstrap_values[0] is");
    CHECK_ADVANTAGE(replay, a, -9, -9);
    CHECK_ADVANTAGE(replay, b, -9, -9);

    batch = default_batch();
    CHECK_REFUSED(per_replay_get_bootstraps(replay, -1, &batch, &count, NULL), "capacity is -1");
    batch.weights = weights;
    CHECK_REFUSED(per_replay_get_bootstraps(replay, 1, &batch, &count, NULL), "weights is not NULL");
    CHECK(count == -1);
    batch.weights = NULL;

    /* Too small an array gets the first ids; the count covers all of them. */
    ids[1] = -1;
    batch.ids = ids;
    CHECK_OK(per_replay_get_bootstraps(replay, 1, &batch, &count, NULL));
    CHECK(count == 2 && ids[0] == a && ids[1] == -1);
    CHECK_OK(per_replay_get_bootstraps(replay, 0, NULL, &count, NULL));
    CHECK(count == 2);
    per_replay_free(replay);
}

int main(void) {
    terminated_episode();
    truncated_and_running_episodes();
    unknown_final_observations_and_cuts();
    windows();
    extremes_of_lambda();
    bad_arguments();
    return 0;
}

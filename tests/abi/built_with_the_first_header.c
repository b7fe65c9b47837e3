/*
 * A program of the first days: it is compiled against first_per.h, the first header of this interface, which never
 * changes, and runs with every later library. It calls every function that there was, and expects what it expected.
 */
#include "first_per.h"

#include <math.h>
#include <unistd.h>

#include "../c/check.h" /* its <per.h> adds nothing to the first one */

enum { STEPS = 10, PLACES = 55, OBSERVATION = 0, GOAL = 1, VALUE = 2, ADVANTAGE = 3, FIELDS = 4 };

static int is_near(double a, double b) {
    return fabs(a - b) <= 1e-6 * fabs(b);
}

/* Leaves of priority 0, 1, 2 and 1: equal parts of the total fall on 1, twice on 2, and on 3. */
static void trees(void) {
    const int64_t indices[3] = {1, 2, 3};
    const float priorities[3] = {1, 2, 1}, weights[4] = {1, 0.5f, 0.5f, 1};
    const int64_t expected[4] = {1, 2, 2, 3};
    const double sums[2] = {0.5, 3.5};
    int64_t drawn[4], found[2], capacity = 0;
    float weights_out[4], priorities_out[4];
    uint64_t mass = 0, unit;
    int32_t scale = 0;
    double total = 0;
    per_tree_options options;
    per_tree* tree = NULL;
    int i;
    CHECK_OK(per_tree_options_init(&options, sizeof options));
    CHECK_FAILS(per_tree_create(&options, &tree), PER_ERROR_INVALID_ARGUMENT, "capacity");
    CHECK(tree == NULL && strcmp(per_status_name(PER_ERROR_INVALID_ARGUMENT), "PER_ERROR_INVALID_ARGUMENT") == 0);
    options.capacity = 4;
    options.seed = 3;
    CHECK_OK(per_tree_create(&options, &tree));
    CHECK_OK(per_update(tree, 3, indices, priorities, NULL));
    CHECK_OK(per_sample(tree, 4, PER_SYSTEMATIC, 1, drawn, priorities_out, weights_out, NULL));
    for (i = 0; i < 4; ++i) {
        CHECK(drawn[i] == expected[i] && is_near(weights_out[i], weights[i]));
        CHECK(priorities_out[i] == (drawn[i] == 2 ? 2 : 1));
    }
    CHECK_OK(per_tree_find(tree, 2, sums, found, NULL));
    CHECK(found[0] == 1 && found[1] == 3);
    CHECK_OK(per_tree_mass(tree, &mass, &scale));
    CHECK((double)mass == ldexp(4, scale));
    unit = mass - 1;
    CHECK_OK(per_tree_find_mass(tree, 1, &unit, found, NULL));
    CHECK(found[0] == 3);
    CHECK_OK(per_tree_priorities(tree, 4, NULL, priorities_out, NULL));
    CHECK(priorities_out[0] == 0 && priorities_out[3] == 1);
    CHECK_OK(per_tree_capacity(tree, &capacity));
    CHECK_OK(per_tree_reset(tree, NULL));
    CHECK_OK(per_tree_synchronize(tree, NULL));
    CHECK_OK(per_tree_total(tree, &total));
    CHECK(capacity == 4 && total == 0);
    per_tree_free(tree);
}

static per_array array_of(const void* data, int32_t dtype) {
    per_array array = {NULL, NULL, 0, 0};
    array.data = data;
    array.dtype = dtype;
    return array;
}

/* The step from `t` to t + 1, with reward t + 1. */
static void add(per_replay* replay, float t, uint8_t terminated) {
    const float next = t + 1, goal = -1;
    const uint8_t truncated = 0;
    int64_t id = -1;
    per_array fields[FIELDS], next_fields[FIELDS];
    per_steps steps;
    memset(fields, 0, sizeof fields);
    memset(next_fields, 0, sizeof next_fields);
    CHECK_OK(per_steps_init(&steps, sizeof steps));
    fields[OBSERVATION] = array_of(&t, PER_FLOAT32);
    fields[GOAL] = array_of(&goal, PER_FLOAT32);
    next_fields[OBSERVATION] = array_of(&next, PER_FLOAT32);
    steps.fields = fields;
    steps.next_fields = next_fields;
    steps.reward = array_of(&next, PER_FLOAT32);
    steps.terminated = array_of(&terminated, PER_BOOL);
    steps.truncated = array_of(&truncated, PER_BOOL);
    CHECK_OK(per_replay_add(replay, &steps, &id, NULL));
    CHECK(id >= 0);
}

/* One episode of ten steps from 0 to 10, which ends there; returns are of two steps with a discount of a half. */
static per_replay* created(void) {
    static const float nothing = 0;
    static const int64_t scalar[1] = {0};
    per_array zero = array_of(&nothing, PER_FLOAT32);
    per_field fields[FIELDS] = {{"observation", NULL, 0, PER_FLOAT32, PER_ROLE_DEFAULT, 0, NULL, 0, 0},
                                {"goal", NULL, 0, PER_FLOAT32, PER_ROLE_PLAIN, 0, NULL, 0, 0},
                                {"value", NULL, 0, PER_FLOAT32, PER_ROLE_PLAIN, 0, NULL, 0, 0},
                                {"advantage", NULL, 0, PER_FLOAT32, PER_ROLE_PLAIN, 0, NULL, 0, 0}};
    per_replay_options options;
    per_replay* replay = NULL;
    int64_t capacity = 0;
    int t;
    zero.shape = scalar;
    fields[VALUE].default_value = fields[ADVANTAGE].default_value = &zero;
    for (t = 0; t < FIELDS; ++t) CHECK_OK(per_field_check(&fields[t]));
    CHECK_OK(per_replay_options_init(&options, sizeof options));
    options.fields = fields;
    options.n_fields = FIELDS;
    options.n_step = 2;
    options.gamma = 0.5;
    options.alpha = 1;
    options.beta = 1;
    options.scheme = PER_SYSTEMATIC;
    CHECK_OK(per_replay_capacity_for(&options, STEPS, 0, &capacity));
    CHECK(capacity == STEPS + 3); /* t + (t - 1) / (no end) + n_step + frame_stack */
    options.capacity = 64;
    CHECK_OK(per_replay_create(&options, &replay));
    for (t = 0; t < STEPS; ++t) add(replay, (float)t, t == STEPS - 1);
    return replay;
}

typedef struct rows {
    float observation[PLACES], goal[PLACES], next[PLACES], reward[PLACES], discount[PLACES], weights[PLACES];
    float probabilities[PLACES], priorities[PLACES], advantage[PLACES];
    int32_t n_steps[PLACES];
    uint8_t terminated[PLACES], truncated[PLACES];
    int64_t ids[PLACES];
    void *fields[FIELDS], *next_fields[FIELDS];
    per_batch batch;
} rows;

static rows out;

/* With weights and probabilities, or for functions that do not write these. */
static void point_to(int with_weights) {
    memset(&out, 0, sizeof out);
    CHECK_OK(per_batch_init(&out.batch, sizeof out.batch));
    out.fields[OBSERVATION] = out.observation;
    out.fields[GOAL] = out.goal;
    out.fields[ADVANTAGE] = out.advantage;
    out.next_fields[OBSERVATION] = out.next;
    out.batch.fields = out.fields;
    out.batch.next_fields = out.next_fields;
    out.batch.reward = out.reward;
    out.batch.discount = out.discount;
    out.batch.n_steps = out.n_steps;
    out.batch.terminated = out.terminated;
    out.batch.truncated = out.truncated;
    out.batch.ids = out.ids;
    out.batch.priorities = out.priorities;
    if (!with_weights) return;
    out.batch.weights = out.weights;
    out.batch.probabilities = out.probabilities;
}

static void draws_and_priorities(per_replay* replay) {
    int64_t ids[STEPS], count[STEPS] = {0};
    float priorities[STEPS], read[STEPS];
    const float td_error = -3;
    per_sample_options options;
    int i;
    for (i = 0; i < STEPS; ++i) {
        ids[i] = i;
        priorities[i] = (float)(i + 1);
    }
    CHECK_OK(per_replay_set_priorities(replay, STEPS, ids, priorities, NULL));
    CHECK_OK(per_replay_priorities(replay, STEPS, ids, read, NULL));
    CHECK(memcmp(read, priorities, sizeof read) == 0);
    CHECK_OK(per_sample_options_init(&options, sizeof options));
    point_to(1);
    CHECK_OK(per_replay_sample(replay, &options, PLACES, &out.batch, NULL));
    for (i = 0; i < PLACES; ++i) {
        const int t = (int)out.ids[i];
        ++count[t];
        CHECK(out.observation[i] == (float)t && out.next[i] == (float)(t < 9 ? t + 2 : 10));
        CHECK(out.reward[i] == (float)(t < 9 ? t + 1 + 0.5 * (t + 2) : 10) && out.n_steps[i] == (t < 9 ? 2 : 1));
        CHECK(out.discount[i] == (t < 8 ? 0.25f : 0) && out.terminated[i] == (t >= 8) && out.truncated[i] == 0);
        CHECK(out.priorities[i] == (float)(t + 1) && is_near(out.probabilities[i], (t + 1) / 55.0));
        CHECK(is_near(out.weights[i], 1.0 / (t + 1)));
    }
    for (i = 0; i < STEPS; ++i) CHECK(count[i] == i + 1);
    CHECK_OK(per_replay_update_priorities(replay, 1, ids, 1, &td_error, NULL));
    CHECK_OK(per_replay_priorities(replay, 1, ids, read, NULL));
    CHECK(read[0] == (float)(3 + 1e-6));
}

static void rows_by_id(per_replay* replay) {
    const int64_t id = 3;
    const float goal = 7;
    per_array fields[FIELDS];
    memset(fields, 0, sizeof fields);
    fields[GOAL] = array_of(&goal, PER_FLOAT32);
    CHECK_OK(per_replay_set(replay, 1, &id, fields, NULL));
    point_to(0);
    CHECK_OK(per_replay_get(replay, 1, &id, &out.batch, NULL));
    CHECK(out.observation[0] == 3 && out.next[0] == 4 && out.reward[0] == 4 && out.n_steps[0] == 1);
    CHECK(out.goal[0] == 7 && out.discount[0] == 0.5f);
}

/* A_9 = 10, and before it A_t = t + 1 + A_(t+1) / 2, as all values are 0. */
static void advantages(per_replay* replay) {
    const int64_t ids[2] = {7, 8};
    int64_t count = -1;
    CHECK_OK(per_replay_bootstraps(replay, 0, NULL, &count, NULL));
    CHECK(count == 0);
    CHECK_OK(per_replay_advantages(replay, VALUE, ADVANTAGE, -1, 1, 0, NULL, NULL, NULL));
    point_to(0);
    CHECK_OK(per_replay_get(replay, 2, ids, &out.batch, NULL));
    CHECK(out.advantage[0] == 15 && out.advantage[1] == 14);
}

static void walks(per_replay* replay) {
    static const int64_t sizes[4] = {4, 4, 2, 0};
    int64_t count, sum = 0;
    per_epochs* epochs = NULL;
    int i, k;
    CHECK_OK(per_epochs_create(replay, 1, 4, 0, NULL, &epochs));
    for (i = 0; i < 4; ++i) {
        point_to(1);
        CHECK_OK(per_epochs_next(epochs, &out.batch, &count, NULL));
        CHECK(count == sizes[i]);
        for (k = 0; k < count; ++k) {
            sum += 1 << out.ids[k];
            CHECK(out.weights[k] == 1);
        }
    }
    CHECK(sum == (1 << STEPS) - 1);
    per_epochs_free(epochs);
}

static int32_t reward(void* context, int64_t count, const void* achieved, const void* goals, float* rewards_out,
                      uint8_t* terminated_out) {
    int64_t i;
    (void)terminated_out;
    *(int64_t*)context += count;
    for (i = 0; i < count; ++i) rewards_out[i] = ((const float*)achieved)[i] == ((const float*)goals)[i];
    return 0;
}

static void hindsight(per_replay* replay) {
    int64_t n_asked = 0;
    per_hindsight_options options;
    int i;
    CHECK_OK(per_hindsight_options_init(&options, sizeof options));
    options.achieved_field = OBSERVATION;
    options.goal_field = GOAL;
    options.strategy = PER_GOAL_FINAL;
    options.fraction = 1;
    options.reward = reward;
    options.context = &n_asked;
    point_to(1);
    CHECK_OK(per_replay_sample_hindsight(replay, NULL, &options, PLACES, &out.batch, NULL));
    CHECK(n_asked > PLACES);
    for (i = 0; i < PLACES; ++i) {
        CHECK(out.goal[i] == 10);
        CHECK(out.reward[i] == (out.ids[i] == 9 ? 1 : out.ids[i] == 8 ? 0.5f : 0));
    }
}

static void loaders(per_replay* replay) {
    per_loader_options options;
    per_loader* loader = NULL;
    int64_t slot = -1;
    int i;
    CHECK_OK(per_loader_options_init(&options, sizeof options));
    options.batch_size = 8;
    options.slots = 2;
    CHECK_OK(per_loader_create(replay, &options, &loader));
    for (i = 0; i < 5; ++i) {
        per_batch batch;
        CHECK_OK(per_batch_init(&batch, sizeof batch));
        CHECK_OK(per_loader_next(loader, 1, &batch, &slot, NULL));
        CHECK(((float*)batch.fields[OBSERVATION])[7] == (float)batch.ids[7]);
        CHECK_OK(per_loader_release(loader, slot, NULL));
    }
    CHECK_OK(per_loader_stop(loader));
    per_loader_free(loader);
}

static void files(per_replay* replay) {
    static rows first;
    char path[64];
    per_replay* loaded = NULL;
    snprintf(path, sizeof path, "built_with_the_first_header_%ld.per", (long)getpid());
    CHECK_OK(per_replay_save(replay, path));
    CHECK_OK(per_replay_load(path, PER_CPU, 0, &loaded));
    CHECK(remove(path) == 0);
    point_to(1);
    CHECK_OK(per_replay_sample(replay, NULL, PLACES, &out.batch, NULL));
    first = out;
    point_to(1);
    CHECK_OK(per_replay_sample(loaded, NULL, PLACES, &out.batch, NULL));
    CHECK(memcmp(first.ids, out.ids, sizeof out.ids) == 0 &&
          memcmp(first.weights, out.weights, sizeof out.weights) == 0);
    per_replay_free(loaded);
}

static void settings(per_replay* replay) {
    per_replay_options options;
    per_replay_statistics statistics;
    int64_t live = -1, ids[STEPS + 1], count = -1;
    CHECK_OK(per_replay_options_init(&options, sizeof options));
    CHECK_OK(per_replay_statistics_init(&statistics, sizeof statistics));
    CHECK_OK(per_replay_live_ids(replay, STEPS + 1, ids, &count));
    CHECK(count == STEPS && ids[0] == 0 && ids[9] == 9);
    add(replay, 50, 0);
    CHECK_OK(per_replay_cut(replay, 0, NULL, NULL));
    CHECK_OK(per_replay_set_alpha(replay, 0.25, NULL));
    CHECK_OK(per_replay_set_beta(replay, 0.75, NULL));
    CHECK_OK(per_replay_set_gamma(replay, 1, NULL));
    CHECK_OK(per_replay_set_n_step(replay, 1, NULL));
    CHECK_OK(per_replay_synchronize(replay, NULL));
    CHECK_OK(per_replay_describe(replay, &options));
    CHECK(options.alpha == 0.25 && options.beta == 0.75 && options.gamma == 1 && options.n_step == 1);
    CHECK(options.capacity == 64 && options.n_fields == FIELDS &&
          options.fields[OBSERVATION].role == PER_ROLE_OBSERVATION);
    CHECK_OK(per_replay_stats(replay, &statistics));
    CHECK(statistics.added == STEPS + 1 && statistics.live == STEPS + 1 && statistics.episodes == 2);
    CHECK(statistics.cuts == 1 && statistics.updates == STEPS + 1 && statistics.beta == 0.75);
    CHECK(statistics.suspected_resets == 0 && statistics.memory_bytes > 0);
    CHECK_OK(per_replay_clear(replay, NULL));
    CHECK_OK(per_replay_live(replay, &live));
    CHECK(live == 0);
    point_to(1);
    CHECK(per_replay_sample(replay, NULL, 1, &out.batch, NULL) == PER_ERROR_EMPTY);
}

int main(void) {
    per_replay* replay;
    CHECK(per_abi_version() == PER_ABI_VERSION && strchr(per_version(), '.') != NULL);
    trees();
    replay = created();
    draws_and_priorities(replay);
    rows_by_id(replay);
    advantages(replay);
    walks(replay);
    hindsight(replay);
    loaders(replay);
    files(replay);
    settings(replay);
    per_replay_free(replay);
    return 0;
}

/*
 * With n_step_min each transition or sequence has a separate n, given in tests/golden/n_steps.csv. An independent model
 * wrote that file (make_n_steps.py describes its lines). Everything else equals a draw with that n_step.
 */
#include "loader_check.h"

enum { B = 32, LONGEST = 5, STEPS = 4, K = 40, VALUES = (STEPS + LONGEST) * 2 }; /* values of an entry, at most */

enum { SINGLE, STACKED, SEQUENCES, STACKED_SEQUENCES, KINDS };
enum { DRAWN, DRAWN_WITH_GOALS, BY_ID, BY_ID_WITH_GOALS, WAYS };

typedef struct batch {
    float observation[B * VALUES], next[B * 2], goal[B * STEPS], reward[B * STEPS], discount[B * STEPS];
    float gamma_m[B * STEPS], weights[B], priorities[B], probabilities[B];
    int32_t n_steps[B * STEPS];
    uint8_t terminated[B * STEPS], truncated[B * STEPS], mask[B * STEPS];
    int64_t ids[B];
    void *fields[2], *next_fields[2];
    per_batch arrays;
} batch;

static int is_of_sequences(int kind) {
    return kind >= SEQUENCES;
}

static void fill(batch* out, int kind) {
    memset(out, 0x55, sizeof *out);
    CHECK_OK(per_batch_init(&out->arrays, sizeof out->arrays));
    out->fields[0] = out->observation;
    out->fields[1] = out->goal;
    out->next_fields[0] = out->next;
    out->arrays.fields = out->fields;
    if (!is_of_sequences(kind)) out->arrays.next_fields = out->next_fields;
    POINT_BATCH(out->arrays, out);
    out->arrays.weights = out->weights;
    out->arrays.probabilities = out->probabilities;
    if (is_of_sequences(kind)) out->arrays.mask = out->mask;
}

/* Two environments with episodes of 11 and 7 steps, some with unknown ends. */
static per_replay* filled(int kind) {
    static const float goals[2 * K] = {0};
    float observations[2 * K], next[2 * K], rewards[2 * K], priorities[2 * K];
    uint8_t terminated[2 * K], truncated[2 * K], known[2 * K];
    per_replay_options options = replay_options(2 * K + 30, 2);
    set_goal_fields(&options);
    options.n_step = LONGEST;
    options.gamma = 0.5;
    options.seed = 3;
    if (kind == STACKED || kind == STACKED_SEQUENCES) options.frame_stack = 2;
    if (kind == STACKED) options.store_next_observation = 1;
    if (is_of_sequences(kind)) options.sequence_length = 3, options.burn_in = 1, options.sequence_stride = 2;
    per_replay* replay = create_replay(&options);
    for (int i = 0; i < 2 * K; ++i) {
        const int t = i / 2, env = i % 2, ends = t % (env ? 7 : 11) == 0;
        observations[i] = (float)(100 * env + t);
        next[i] = observations[i] + 1;
        rewards[i] = (float)(t % 5);
        priorities[i] = (float)(i + 1);
        terminated[i] = (uint8_t)(ends && t % 2 == 0);
        truncated[i] = (uint8_t)(ends && t % 2 == 1);
        known[i] = (uint8_t) !(ends && t % 3 == 0 && kind != STACKED);
    }
    per_array given[2] = {array_of(observations, PER_FLOAT32), array_of(goals, PER_FLOAT32)};
    per_array next_given[2] = {array_of(next, PER_FLOAT32), array_of(NULL, PER_FLOAT32)};
    per_steps steps = steps_of(K, given, next_given, rewards, terminated, truncated);
    steps.next_mask = array_of(known, PER_BOOL);
    steps.priorities = array_of(priorities, PER_FLOAT32);
    CHECK_OK(per_replay_add(replay, &steps, NULL, NULL));
    return replay;
}

/* A step that reaches the goal has the reward 1, and is terminal if single transitions are drawn. */
static int32_t reward(void* kind, int64_t count, const void* achieved, const void* goals, float* rewards_out,
                      uint8_t* terminated_out) {
    for (int64_t i = 0; i < count; ++i) {
        const int is_there = ((const float*)achieved)[i] == ((const float*)goals)[i];
        rewards_out[i] = (float)is_there;
        if (!is_of_sequences(*(int*)kind)) terminated_out[i] = (uint8_t)is_there;
    }
    return 0;
}

static per_sample_options range_of(int64_t shortest, int64_t longest) {
    per_sample_options options = default_sample_options();
    CHECK(options.n_step_min == 0);
    options.n_step_min = shortest;
    options.n_step = longest;
    return options;
}

/* Draws the second batch of a buffer. */
static void make(int kind, int way, const per_sample_options* options, batch* out) {
    per_replay* replay = filled(kind);
    int64_t ids[2 * K], count;
    per_hindsight_options hindsight = relabelling(0, 1, reward, &kind);
    hindsight.fraction = 0.5;
    CHECK_OK(per_replay_get_live_ids(replay, 2 * K, ids, &count));
    fill(out, kind);
    CHECK_OK(per_replay_sample(replay, options, B, &out->arrays, NULL));
    fill(out, kind);
    int64_t samples = stats_of(replay).samples;
    if (count > B) count = B;
    if (way == DRAWN) CHECK_OK(per_replay_sample(replay, options, B, &out->arrays, NULL));
    if (way == DRAWN_WITH_GOALS) CHECK_OK(sample_with_hindsight(replay, options, &hindsight, B, &out->arrays, NULL));
    if (way == BY_ID)
        CHECK_OK(per_replay_get_windows(replay, options, PER_INVALID_ERROR, count, ids, &out->arrays, NULL));
    if (way == BY_ID_WITH_GOALS)
        CHECK_OK(
            get_windows_with_hindsight(replay, options, &hindsight, PER_INVALID_ERROR, count, ids, &out->arrays, NULL));
    CHECK(stats_of(replay).samples == samples + (way != BY_ID || options->n_step_min != 0));
    CHECK_OK(per_replay_synchronize(replay, NULL));
    per_replay_free(replay);
}

static int all_zero(const float* values, int64_t count) {
    while (count > 0 && values[count - 1] == 0) --count;
    return count == 0;
}

#define SAME_AT(member, first, count) \
    (memcmp(out.member + (first), with_n->member + (first), (size_t)(count) * sizeof *out.member) == 0)

/* A window that its episode cuts short equals that of a smaller n; n_steps gives its length. */
static void rows_are_those_of_their_n(int kind, int way, int64_t shortest) {
    static batch out, with[LONGEST + 1];
    const int64_t steps = is_of_sequences(kind) ? STEPS : 1, stack = kind % 2 ? 2 : 1;
    const int64_t length = (is_of_sequences(kind) ? STEPS + LONGEST : 1) * stack;
    per_sample_options options = range_of(shortest, LONGEST);
    int64_t i, seen = 0;
    make(kind, way, &options, &out);
    for (int64_t n = 1; n <= LONGEST; ++n) {
        const per_sample_options fixed = range_of(0, n);
        make(kind, way, &fixed, &with[n]);
    }
    for (i = 0; i < B && out.n_steps[i * steps] != 0x55555555; ++i) {
        const int64_t m = out.n_steps[i * steps];
        const batch* with_n = &with[m];
        const int64_t known = is_of_sequences(kind) ? (STEPS + m) * stack : stack;
        CHECK(m >= 1 && m <= LONGEST);
        seen |= (int64_t)1 << m;
        CHECK(SAME_AT(ids, i, 1) && SAME_AT(weights, i, 1) && SAME_AT(probabilities, i, 1) &&
              SAME_AT(priorities, i, 1));
        CHECK(SAME_AT(reward, i * steps, steps) && SAME_AT(discount, i * steps, steps));
        CHECK(SAME_AT(gamma_m, i * steps, steps) && SAME_AT(n_steps, i * steps, steps));
        CHECK(SAME_AT(terminated, i * steps, steps) && SAME_AT(truncated, i * steps, steps));
        CHECK(SAME_AT(goal, i * steps, steps));
        CHECK(!is_of_sequences(kind) || SAME_AT(mask, i * steps, steps));
        CHECK(is_of_sequences(kind) || SAME_AT(next, i * stack, stack));
        CHECK(memcmp(out.observation + i * length, with_n->observation + i * known, (size_t)known * 4) == 0);
        CHECK(all_zero(out.observation + i * length + known, length - known));
    }
    CHECK(i > 8 && seen >> shortest == (1 << (LONGEST + 1 - shortest)) - 1);
}

static void all_kinds_in_all_ways(void) {
    for (int kind = 0; kind < KINDS; ++kind)
        for (int way = 0; way < WAYS; ++way) rows_are_those_of_their_n(kind, way, 1 + way % 2);
}

static void golden_table(void) {
    static char line[4096];
    FILE* file = fopen(PER_GOLDEN_N_STEPS, "r");
    int n_lines = 0;
    CHECK(file != NULL);
    for (; fgets(line, sizeof line, file) != NULL; ++n_lines) {
        per_replay_options options = replay_options(200, 1);
        int32_t n_steps[16];
        per_batch out = default_batch();
        out.n_steps = n_steps;
        options.seed = strtoull(strtok(line, ","), NULL, 10);
        per_sample_options range = range_of(atoi(strtok(NULL, ",")), 0);
        range.n_step = options.n_step = atoi(strtok(NULL, ","));
        int64_t draws = atoi(strtok(NULL, ","));
        CHECK(strcmp(strtok(NULL, ","), "->") == 0);
        per_replay* replay = create_filled(&options, 80);
        for (int64_t t = 0; t < draws; ++t) CHECK_OK(per_replay_sample(replay, t % 2 ? &range : NULL, 16, &out, NULL));
        CHECK_OK(per_replay_sample(replay, &range, 16, &out, NULL));
        for (int64_t t = 0; t < 16; ++t) CHECK(n_steps[t] == atoi(strtok(NULL, ",\n")));
        CHECK(strtok(NULL, ",\n") == NULL);
        per_replay_free(replay);
    }
    CHECK(n_lines == 6);
    fclose(file);
}

static void loaders_draw_the_same(void) {
    static batch expected;
    const per_sample_options range = range_of(2, 4);
    per_replay *replay = filled(SINGLE), *twin = filled(SINGLE);
    per_loader* loader;
    per_loader_options options = default_loader_options();
    options.batch_size = B;
    options.sample = &range;
    options.device = test_device();
    CHECK_OK(per_loader_create(replay, &options, &loader));
    for (int turn = 0; turn < 5; ++turn) {
        per_batch drawn;
        const int64_t slot = take(loader, &drawn);
        fill(&expected, SINGLE);
        CHECK_OK(per_replay_sample(twin, &range, B, &expected.arrays, NULL));
        check_same(drawn.n_steps, expected.n_steps, B, sizeof(int32_t));
        check_same(drawn.reward, expected.reward, B, sizeof(float));
        check_same(drawn.next_fields[0], expected.next, B, sizeof(float));
        CHECK_OK(per_loader_release(loader, slot, NULL));
    }
    free_loader(loader, replay, twin);
}

static void ranges_that_are_none(void) {
    static batch out, expected;
    per_replay *replay = filled(SINGLE), *twin = filled(SINGLE);
    const int64_t dead = 1000000;
    per_sample_options range = range_of(-1, 0);
    fill(&out, SINGLE);
    CHECK_REFUSED(per_replay_sample(replay, &range, B, &out.arrays, NULL), "n_step_min is -1: allowed are 0 .. 5");
    range = range_of(6, 0);
    CHECK_REFUSED(per_replay_sample(replay, &range, B, &out.arrays, NULL), "n_step_min is 6: allowed are 0 .. 5");
    range = range_of(4, 3);
    CHECK_REFUSED(per_replay_sample(replay, &range, B, &out.arrays, NULL), "n_step_min is 4: allowed are 0 .. 3");
    CHECK_REFUSED(per_replay_get_windows(replay, &range, PER_INVALID_ERROR, 0, NULL, &out.arrays, NULL),
                  "n_step_min is 4");
    range = range_of(1, 6);
    CHECK_REFUSED(per_replay_sample(replay, &range, B, &out.arrays, NULL), "n_step is 6");
    range = range_of(1, 5);
    /* A failed call consumes no random number; an empty call needs none. */
    if (!on_cuda())
        CHECK_REFUSED(per_replay_get_windows(replay, &range, PER_INVALID_ERROR, 1, &dead, &out.arrays, NULL), "ids[0]");
    CHECK_OK(per_replay_get_windows(replay, &range, PER_INVALID_ERROR, 0, NULL, &out.arrays, NULL));
    CHECK(stats_of(replay).samples == 0);
    fill(&expected, SINGLE);
    CHECK_OK(per_replay_sample(replay, &range, B, &out.arrays, NULL));
    CHECK_OK(per_replay_sample(twin, &range, B, &expected.arrays, NULL));
    CHECK(memcmp(&out, &expected, offsetof(batch, fields)) == 0);
    CHECK_OK(change_n_step(replay, 2, NULL));
    range = range_of(3, 0);
    CHECK_REFUSED(per_replay_sample(replay, &range, B, &out.arrays, NULL), "n_step_min is 3: allowed are 0 .. 2");
    free_both(replay, twin);
}

int main(void) {
    golden_table();
    all_kinds_in_all_ways();
    loaders_draw_the_same();
    ranges_that_are_none();
    return 0;
}

/*
 * With PER_PADDING_ZERO, the frames of a stack from before the start of its episode are zeros, in every kind of batch.
 * Episodes begin with the observation 1, 11, 21 .. and count up from there, so the newest frame determines the stack.
 */
#include "replay_check.h"

enum { STACK = 3, PLACES = 64, MOST_ENTRIES = 8, OBSERVATION = 0, GOAL = 1, HINT = 2, FIELDS = 3 };

/* An observation; a goal, which is an observation too; and a stacked field that is not an observation. */
static per_replay* create(per_replay_options options, int32_t padding) {
    per_field fields[FIELDS] = {[OBSERVATION] = field_of("observation", PER_FLOAT32, 0, NULL),
                                [GOAL] = field_of("observation.goal", PER_FLOAT32, 0, NULL),
                                [HINT] = field_of("hint", PER_FLOAT32, 0, NULL)};
    for (int i = 0; i < FIELDS; ++i) {
        fields[i].stack = STACK;
        fields[i].padding = padding;
    }
    set_fields(&options, fields, FIELDS);
    return create_replay(&options);
}

static void add(per_replay* replay, float observation, end how, next_kind kind) {
    const float next = observation + 1, reward = 0;
    const uint8_t terminated = how == TERMINATED, truncated = how == TRUNCATED, known = kind != NEXT_UNKNOWN;
    per_array fields[FIELDS], next_fields[FIELDS];
    for (int i = 0; i < FIELDS; ++i) {
        fields[i] = array_of(&observation, PER_FLOAT32);
        next_fields[i] = array_of(i == HINT ? NULL : &next, PER_FLOAT32);
    }
    per_steps steps = steps_of(1, fields, kind == NEXT_GIVEN ? next_fields : NULL, &reward, &terminated, &truncated);
    if (kind != NEXT_LEFT_OUT) steps.next_mask = array_of(&known, PER_BOOL);
    CHECK_OK(per_replay_add(replay, &steps, NULL, NULL));
}

/* Steps that begin with the observation `first`; the last one ends as given. */
static void add_episode(per_replay* replay, float first, int count, end how, next_kind kind) {
    int t;
    for (t = 0; t < count - 1; ++t) add(replay, first + (float)t, GOES_ON, NEXT_LEFT_OUT);
    add(replay, first + (float)t, how, kind);
}

static void add_some_episodes(per_replay* replay) {
    add_episode(replay, 1, 5, TERMINATED, NEXT_GIVEN);
    add_episode(replay, 11, 1, TRUNCATED, NEXT_GIVEN);
    add_episode(replay, 21, 2, TERMINATED, NEXT_UNKNOWN);
    add_episode(replay, 31, 3, TRUNCATED, NEXT_UNKNOWN);
    add_episode(replay, 41, 4, GOES_ON, NEXT_GIVEN);
}

typedef struct stacks {
    float frames[FIELDS][PLACES * MOST_ENTRIES][STACK], next[FIELDS][PLACES][STACK];
    int32_t n_steps[PLACES * MOST_ENTRIES];
    void *fields[FIELDS], *next_fields[FIELDS];
    per_batch batch;
} stacks;

static void fill(stacks* out) {
    memset(out, 0x55, sizeof *out);
    CHECK_OK(per_batch_init(&out->batch, sizeof out->batch));
    for (int i = 0; i < FIELDS; ++i) {
        out->fields[i] = out->frames[i];
        out->next_fields[i] = i == HINT ? NULL : out->next[i];
    }
    out->batch.fields = out->fields;
    out->batch.next_fields = out->next_fields;
    out->batch.n_steps = out->n_steps;
}

static float first_of_episode(float observation) {
    return 10 * floorf(observation / 10) + 1;
}

/* True if a stack with this newest frame is correct. Frames of the episode hold `value`, or their own number if it is
   0. */
static int is_padded_with_zeros(const float* stack, float newest, float value) {
    int good = 1;
    for (int age = 0; age < STACK; ++age) {
        const float frame = newest - (float)age;
        const float expected = frame < first_of_episode(newest) ? 0 : value != 0 ? value : frame;
        good = good && stack[STACK - 1 - age] == expected;
    }
    return good;
}

/* Draws `count` transitions; returns the number of stacks with padding. */
static int check_transitions(const stacks* drawn, int64_t count) {
    int padded = 0;
    for (int64_t i = 0; i < count; ++i) {
        const float newest = drawn->frames[OBSERVATION][i][STACK - 1];
        const float next = drawn->next[OBSERVATION][i][STACK - 1];
        CHECK(is_padded_with_zeros(drawn->frames[OBSERVATION][i], newest, 0));
        CHECK(is_padded_with_zeros(drawn->frames[GOAL][i], newest, 0));
        CHECK(is_padded_with_zeros(drawn->frames[HINT][i], newest, 0));
        CHECK(next == (newest + (float)drawn->n_steps[i] == 23 ? 22 : newest + (float)drawn->n_steps[i]));
        CHECK(is_padded_with_zeros(drawn->next[OBSERVATION][i], next, 0));
        CHECK(is_padded_with_zeros(drawn->next[GOAL][i], next, 0));
        padded += drawn->frames[OBSERVATION][i][0] == 0;
        padded += drawn->next[OBSERVATION][i][0] == 0;
    }
    return padded;
}

static void draws(void) {
    static stacks drawn;
    for (int64_t stores_next = 0; stores_next < 2; ++stores_next) {
        for (int64_t n_step = 1; n_step <= 4; ++n_step) {
            per_replay_options options = replay_options(40, 1);
            options.n_step = n_step;
            options.store_next_observation = (int32_t)stores_next;
            per_replay* replay = create(options, PER_PADDING_ZERO);
            if (stores_next) {
                for (int t = 0; t < 5; ++t) add(replay, (float)(t + 1), t == 4 ? TRUNCATED : GOES_ON, NEXT_GIVEN);
            } else {
                add_some_episodes(replay);
            }
            fill(&drawn);
            CHECK_OK(per_replay_sample(replay, NULL, PLACES, &drawn.batch, NULL));
            CHECK(check_transitions(&drawn, PLACES) > 0);
            per_replay_free(replay);
        }
    }
}

static void epochs_and_bootstraps(void) {
    static stacks drawn;
    per_replay* replay = create(replay_options(40, 1), PER_PADDING_ZERO);
    per_epochs* walk = NULL;
    int64_t count = 0;
    add_some_episodes(replay);
    fill(&drawn);
    CHECK_OK(per_epochs_create(replay, 1, PLACES, 0, NULL, &walk));
    CHECK_OK(per_epochs_next(walk, &drawn.batch, &count, NULL));
    CHECK_OK(synchronized(replay, PER_OK));
    CHECK(count == live_of(replay) && check_transitions(&drawn, count) > 0);
    per_epochs_free(walk);

    fill(&drawn);
    CHECK_OK(per_replay_get_bootstraps(replay, PLACES, &drawn.batch, &count, NULL));
    CHECK(count == 2); /* the truncated step 11, and 44, the latest of a running episode */
    CHECK(check_transitions(&drawn, count) == 2);
    CHECK(drawn.frames[OBSERVATION][0][2] == 11 && drawn.next[OBSERVATION][0][1] == 11);
    per_replay_free(replay);
}

/* Rows 1 .. 8 exist, but the first step of their episode does not: live rows have all of their frames. */
static void stacks_that_reach_to_overwritten_rows_are_not_drawn(void) {
    static stacks drawn;
    per_replay* replay = create(replay_options(8, 1), PER_PADDING_ZERO);
    add_episode(replay, 101, 9, GOES_ON, NEXT_LEFT_OUT);
    fill(&drawn);
    CHECK(live_of(replay) == 5);
    CHECK_OK(per_replay_sample(replay, NULL, PLACES, &drawn.batch, NULL));
    CHECK(check_transitions(&drawn, PLACES) == 0);
    per_replay_free(replay);
}

static void sequences(void) {
    static stacks drawn;
    per_replay_options options = replay_options(40, 1);
    int padded = 0;
    options.sequence_length = 3;
    options.burn_in = 1;
    options.sequence_stride = 1;
    options.n_step = 2;
    per_replay* replay = create(options, PER_PADDING_ZERO);
    add_some_episodes(replay);
    fill(&drawn);
    drawn.batch.next_fields = NULL;
    CHECK_OK(per_replay_sample(replay, NULL, PLACES, &drawn.batch, NULL));
    for (int64_t i = 0; i < PLACES; ++i) {
        const float start = drawn.frames[OBSERVATION][6 * i][STACK - 1];
        for (int64_t t = 0; t < 6; ++t) {
            const float* stack = drawn.frames[OBSERVATION][6 * i + t];
            const float newest = stack[STACK - 1];
            if (newest == 0) { /* the episode has ended */
                CHECK(stack[0] == 0 && stack[1] == 0);
            } else if (newest == 22 && newest != start + (float)t) { /* repeated */
                CHECK(is_padded_with_zeros(stack, newest, 0));
            } else {
                CHECK(newest == start + (float)t && is_padded_with_zeros(stack, newest, 0));
                padded += stack[0] == 0;
            }
            if (t < 4 && drawn.n_steps[4 * i + t] > 0)
                CHECK(is_padded_with_zeros(drawn.frames[HINT][4 * i + t], newest, 0));
        }
    }
    CHECK(padded > 0);
    per_replay_free(replay);
}

/* A step ends the episode if it reaches the goal. */
static int32_t reward(void* context, int64_t count, const void* achieved, const void* goals, float* rewards_out,
                      uint8_t* terminated_out) {
    const float *at = (const float*)achieved, *goal = (const float*)goals;
    (void)context;
    for (int64_t i = 0; i < count; ++i) {
        rewards_out[i] = 0;
        terminated_out[i] = at[i] == goal[i];
    }
    return 0;
}

/* Windows of up to 4 steps end where the goal is reached, and their ends determine the padding of the next goal. */
static void goals_take_no_place_of_zeros(void) {
    static stacks drawn;
    per_replay_options options = replay_options(40, 1);
    int cut_short = 0, padded = 0;
    options.n_step = 4;
    per_replay* replay = create(options, PER_PADDING_ZERO);
    add_episode(replay, 1, 6, TRUNCATED, NEXT_GIVEN);
    per_hindsight_options hindsight = relabelling(OBSERVATION, GOAL, reward, NULL);
    hindsight.fraction = 1;
    fill(&drawn);
    CHECK_OK(sample_with_hindsight(replay, NULL, &hindsight, PLACES, &drawn.batch, NULL));
    for (int64_t i = 0; i < PLACES; ++i) {
        const float newest = drawn.frames[OBSERVATION][i][STACK - 1], goal = drawn.frames[GOAL][i][STACK - 1];
        const float next = newest + (float)drawn.n_steps[i];
        CHECK(goal > newest && goal <= 7 && next <= goal);
        CHECK(is_padded_with_zeros(drawn.frames[OBSERVATION][i], newest, 0));
        CHECK(is_padded_with_zeros(drawn.next[OBSERVATION][i], next, 0));
        CHECK(is_padded_with_zeros(drawn.frames[GOAL][i], newest, goal));
        CHECK(is_padded_with_zeros(drawn.next[GOAL][i], next, goal));
        cut_short += next == goal && drawn.n_steps[i] < 4 && next < 7;
        padded += drawn.next[GOAL][i][0] == 0;
    }
    CHECK(cut_short > 0 && padded > 0);
    per_replay_free(replay);
}

/* A stack of one frame has no padding, whatever the option. */
static void padding_is_an_option_of_the_field(void) {
    per_replay_options options = replay_options(40, 1), described;
    per_field field = field_of("observation", PER_FLOAT32, 0, NULL);
    per_replay* replay = create(options, PER_PADDING_ZERO);
    described = describe_replay(replay);
    CHECK(described.fields[GOAL].padding == PER_PADDING_ZERO && described.fields[GOAL].stack == STACK);
    per_replay_free(replay);

    field.padding = PER_PADDING_ZERO;
    options.fields = &field;
    replay = create_replay(&options);
    add_full(replay, 0, 1, 0, GOES_ON, 2);
    CHECK_WINDOW(replay, 0, 1, 0, 0.99f, 2, 1, 0, 0);
    CHECK_OK(per_replay_describe(replay, &described));
    CHECK(described.fields[0].padding == PER_PADDING_ZERO && described.fields[0].stack == 1);
    per_replay_free(replay);
}

int main(void) {
    draws();
    epochs_and_bootstraps();
    stacks_that_reach_to_overwritten_rows_are_not_drawn();
    sequences();
    goals_take_no_place_of_zeros();
    padding_is_an_option_of_the_field();
    return 0;
}

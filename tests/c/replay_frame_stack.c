/*
 * Frames are stored once and stacked when a batch is drawn, oldest first: the first frame of an episode is repeated,
 * and no stack includes frames of the previous episode. A row whose older frames were overwritten is not live.
 */
#include "replay_check.h"

enum { STACK = 3 };

static per_replay* create(int64_t rows, int64_t n_step) {
    per_replay_options options = replay_options(rows, 1);
    options.frame_stack = STACK;
    options.n_step = n_step;
    return create_replay(&options);
}

static int stack_is(const float* stack, float oldest, float middle, float newest) {
    return stack[0] == oldest && stack[1] == middle && stack[2] == newest;
}

typedef struct stacks {
    float observation[MANY][STACK], next[MANY][STACK];
    int64_t ids[MANY];
} stacks;

static void draw_stacks(per_replay* replay, stacks* drawn) {
    per_batch batch = default_batch();
    void* fields[1] = {drawn->observation};
    void* next_fields[1] = {drawn->next};
    batch.fields = fields;
    batch.next_fields = next_fields;
    batch.ids = drawn->ids;
    CHECK_OK(per_replay_sample(replay, NULL, MANY, &batch, NULL));
}

static void check_stacks(per_replay* replay, int64_t id, const float* observation, const float* next, int line) {
    static stacks drawn;
    int i = 0;
    draw_stacks(replay, &drawn);
    while (i < MANY && drawn.ids[i] != id) ++i;
    if (i < MANY && stack_is(drawn.observation[i], observation[0], observation[1], observation[2]) &&
        stack_is(drawn.next[i], next[0], next[1], next[2]))
        return;
    fprintf(stderr, "line %d: id %lld ", line, (long long)id);
    if (i < MANY)
        fprintf(stderr, "is %g %g %g, then %g %g %g\n", drawn.observation[i][0], drawn.observation[i][1],
                drawn.observation[i][2], drawn.next[i][0], drawn.next[i][1], drawn.next[i][2]);
    else
        fprintf(stderr, "is not drawn\n");
    exit(1);
}

/* The transition's stack of three frames, followed by that of its next observation. */
#define CHECK_STACKS(replay, id, a, b, c, next_a, next_b, next_c)                 \
    do {                                                                          \
        const float stack[] = {a, b, c}, next_stack[] = {next_a, next_b, next_c}; \
        check_stacks(replay, id, stack, next_stack, __LINE__);                    \
    } while (0)

/* The live ids for any stacks: draws batches without frames. */
static void check_live_ids(per_replay* replay, int64_t first, int64_t last) {
    static stacks drawn;
    int i;
    CHECK(live_of(replay) == last - first + 1);
    draw_stacks(replay, &drawn);
    for (i = 0; i < MANY; ++i) CHECK(drawn.ids[i] >= first && drawn.ids[i] <= last);
    for (int64_t id = first; id <= last; ++id) {
        for (i = 0; i < MANY && drawn.ids[i] != id;) ++i;
        CHECK(i < MANY);
    }
}

static void stacks_begin_with_their_episode(void) {
    per_replay* replay = create(20, 1);
    add_step(replay, 0, 1, 0);
    add_step(replay, 0, 2, 0);
    add_step(replay, 0, 3, 0);
    add_full(replay, 0, 4, 0, TERMINATED, 5);
    CHECK_STACKS(replay, 0, 1, 1, 1, 1, 1, 2);
    CHECK_STACKS(replay, 1, 1, 1, 2, 1, 2, 3);
    CHECK_STACKS(replay, 2, 1, 2, 3, 2, 3, 4);
    CHECK_STACKS(replay, 3, 2, 3, 4, 3, 4, 5);
    /* Row 4 is the final observation. */
    add_full(replay, 0, 11, 0, TRUNCATED, 12);
    CHECK_STACKS(replay, 5, 11, 11, 11, 11, 11, 12);
    /* Row 6 is a final observation too. After an end at an unknown observation, the next stack repeats the transition's
       own. */
    add_step(replay, 0, 21, 0);
    add_unknown_end(replay, 0, 22, 0, TERMINATED);
    CHECK_STACKS(replay, 7, 21, 21, 21, 21, 21, 22);
    CHECK_STACKS(replay, 8, 21, 21, 22, 21, 21, 22);
    add_step(replay, 0, 31, 0);
    add_step(replay, 0, 32, 0);
    CHECK_STACKS(replay, 9, 31, 31, 31, 31, 31, 32);
    CHECK_STACKS(replay, 8, 21, 21, 22, 21, 21, 22);
    per_replay_free(replay);
}

static void rows_whose_older_frames_are_overwritten_are_not_live(void) {
    per_replay* replay = create(8, 1);
    for (int t = 0; t < 10; ++t) add_step(replay, 0, (float)t, 0); /* rows 2 .. 9 exist */
    check_live_ids(replay, 4, 8);
    CHECK_STACKS(replay, 4, 2, 3, 4, 3, 4, 5);
    CHECK_STACKS(replay, 8, 6, 7, 8, 7, 8, 9);
    add_full(replay, 0, 10, 0, GOES_ON, 11); /* with 11, rows 4 .. 11 exist */
    check_live_ids(replay, 6, 10);
    CHECK_STACKS(replay, 10, 8, 9, 10, 9, 10, 11);
    per_replay_free(replay);
}

static void a_stack_that_the_episode_starts_in_needs_no_older_frames(void) {
    per_replay* replay = create(8, 1);
    for (int t = 0; t < 4; ++t) add_step(replay, 0, (float)t, 0);
    add_full(replay, 0, 4, 0, TERMINATED, 5);
    for (int t = 10; t < 17; ++t) add_step(replay, 0, (float)t, 0); /* rows 6 .. 12 are live; rows 5 .. 12 exist */
    check_live_ids(replay, 6, 11);
    CHECK_STACKS(replay, 6, 10, 10, 10, 10, 10, 11);
    add_step(replay, 0, 17, 0); /* rows 6 .. 13 */
    check_live_ids(replay, 6, 12);
    CHECK_STACKS(replay, 7, 10, 10, 11, 10, 11, 12);
    add_step(replay, 0, 18, 0); /* row 6 is gone, which the stacks of rows 7 and 8 need */
    check_live_ids(replay, 9, 13);
    per_replay_free(replay);
}

static void stacks_of_the_bootstrap_observation(void) {
    per_replay* replay = create(20, 2);
    add_step(replay, 0, 1, 0);
    add_step(replay, 0, 2, 0);
    add_step(replay, 0, 3, 0);
    add_full(replay, 0, 4, 0, TRUNCATED, 5);
    CHECK_STACKS(replay, 0, 1, 1, 1, 1, 2, 3);
    CHECK_STACKS(replay, 1, 1, 1, 2, 2, 3, 4);
    CHECK_STACKS(replay, 2, 1, 2, 3, 3, 4, 5);
    CHECK_STACKS(replay, 3, 2, 3, 4, 3, 4, 5);
    add_full(replay, 0, 11, 0, TRUNCATED, 12);
    CHECK_STACKS(replay, 5, 11, 11, 11, 11, 11, 12);
    per_replay_free(replay);
}

static void next_observations_in_arrays_of_their_own(void) {
    per_replay_options options = replay_options(6, 1);
    options.frame_stack = STACK;
    options.store_next_observation = 1;
    per_replay* replay = create_replay(&options);
    add_full(replay, 0, 1, 0, GOES_ON, 1.5f);
    add_full(replay, 0, 2, 0, GOES_ON, 2.5f);
    add_full(replay, 0, 3, 0, TRUNCATED, 3.5f);
    add_full(replay, 0, 11, 0, GOES_ON, 11.5f);
    CHECK_STACKS(replay, 0, 1, 1, 1, 1, 1, 1.5f);
    CHECK_STACKS(replay, 1, 1, 1, 2, 1, 2, 2.5f);
    CHECK_STACKS(replay, 2, 1, 2, 3, 2, 3, 3.5f);
    CHECK_STACKS(replay, 3, 11, 11, 11, 11, 11, 11.5f);
    per_replay_free(replay);
}

/* Each field has its own stack, and the arrays of an add may hold stacks, of which the newest frame is stored. */
static void stacks_are_a_field_s_own(void) {
    static const int64_t two[] = {2}, stacked[] = {3, 2};
    per_replay_options options = replay_options(20, 1);
    per_array given[3], next[3];
    static uint8_t image[MANY][3][2], next_image[MANY][3][2];
    static float state[MANY], next_state[MANY], action[MANY][2];
    static int64_t ids[MANY];
    per_field fields[3] = {field_of("observation.image", PER_UINT8, 1, two),
                           field_of("observation.state", PER_FLOAT32, 0, NULL)};
    fields[1].stack = 1;
    fields[2] = field_of("action", PER_FLOAT32, 0, NULL);
    fields[2].stack = 2;
    set_fields(&options, fields, 3);
    options.frame_stack = 3;
    per_replay* replay = create_replay(&options);

    per_steps steps = default_steps();
    for (int t = 1; t <= 3; ++t) {
        const uint8_t now = (uint8_t)t, frames[3][2] = {{99, 99}, {99, 99}, {now, now}};
        const uint8_t after[3][2] = {{99, 99}, {99, 99}, {(uint8_t)(t + 1), (uint8_t)(t + 1)}};
        const float value = (float)t, value_after = (float)t + 1, reward = 0;
        const uint8_t no = 0;
        memset(next, 0, sizeof next);
        given[0] = array_of(frames, PER_UINT8);
        given[0].shape = stacked;
        given[0].ndim = 2;
        next[0] = given[0];
        next[0].data = after;
        given[1] = array_of(&value, PER_FLOAT32);
        next[1] = array_of(&value_after, PER_FLOAT32);
        given[2] = array_of(&value, PER_FLOAT32);
        steps.fields = given;
        steps.next_fields = next;
        steps.reward = array_of(&reward, PER_FLOAT32);
        steps.terminated = steps.truncated = array_of(&no, PER_BOOL);
        CHECK_OK(per_replay_add(replay, &steps, NULL, NULL));
    }
    CHECK(stats_of(replay).cuts == 0);
    per_batch batch = default_batch();
    void* out[3] = {image, state, action};
    void* next_out[3] = {next_image, next_state, NULL};
    batch.fields = out;
    batch.next_fields = next_out;
    batch.ids = ids;
    CHECK_OK(per_replay_sample(replay, NULL, MANY, &batch, NULL));
    for (int i = 0; i < MANY; ++i) {
        const int now = (int)ids[i] + 1;
        for (int t = 0; t < 3; ++t) {
            const int frame = now - 2 + t < 1 ? 1 : now - 2 + t;
            CHECK(image[i][t][0] == frame && image[i][t][1] == frame);
            CHECK(next_image[i][t][0] == (now - 1 + t < 1 ? 1 : now - 1 + t));
        }
        CHECK(state[i] == now && next_state[i] == now + 1);
        CHECK(action[i][1] == now && action[i][0] == (now > 1 ? now - 1 : 1));
    }
    per_replay_free(replay);
}

int main(void) {
    stacks_begin_with_their_episode();
    rows_whose_older_frames_are_overwritten_are_not_live();
    a_stack_that_the_episode_starts_in_needs_no_older_frames();
    stacks_of_the_bootstrap_observation();
    next_observations_in_arrays_of_their_own();
    stacks_are_a_field_s_own();
    return 0;
}

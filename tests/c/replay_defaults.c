/*
 * A field with a default value may be omitted when steps are added, by any way of adding: the steps then hold the
 * default. It is one value of the field, or a number for all its elements, and is copied.
 */
#include "replay_check.h"

enum { ENVS = 2, MOST = 64, OBSERVATION = 0, ADVANTAGE = 1, TARGET = 2, STATE = 3, FIELDS = 4 };

static const int64_t two[] = {2}, three[] = {3}, none[] = {0};

static per_array shaped(const void* data, int32_t dtype, int32_t ndim, const int64_t* shape) {
    per_array array = array_of(data, dtype);
    array.ndim = ndim;
    array.shape = shape;
    return array;
}

/* Advantages of -1.5; targets of three int16 that are 7, 8 and 9; states of two float32 that are 0.25 each. */
static per_replay* create(per_replay_options options) {
    float advantage = -1.5f;
    const uint8_t target[3] = {7, 8, 9};
    const double state = 0.25;
    per_array defaults[FIELDS] = {[ADVANTAGE] = array_of(&advantage, PER_FLOAT32),
                                  [TARGET] = shaped(target, PER_UINT8, 1, three),
                                  [STATE] = shaped(&state, PER_FLOAT64, 0, none)};
    per_field fields[FIELDS] = {[OBSERVATION] = field_of("observation", PER_FLOAT32, 0, NULL),
                                [ADVANTAGE] = field_of("advantage", PER_FLOAT32, 0, NULL),
                                [TARGET] = field_of("target", PER_INT16, 1, three),
                                [STATE] = field_of("state", PER_FLOAT32, 1, two)};
    fields[STATE].role = PER_ROLE_RECURRENT_STATE;
    fields[ADVANTAGE].default_value = &defaults[ADVANTAGE];
    fields[TARGET].default_value = &defaults[TARGET];
    fields[STATE].default_value = &defaults[STATE];
    set_fields(&options, fields, FIELDS);
    per_replay* replay = create_replay(&options);
    advantage = 99; /* copied */
    return replay;
}

/* `length` steps of all environments with rewards 0, 1, 2 .., omitting the fields without an array. */
static void add(per_replay* replay, int64_t length, const per_array* given, const uint8_t* mask) {
    static float observation[MOST];
    static uint8_t no[MOST];
    per_array fields[FIELDS];
    for (int i = 0; i < MOST; ++i) observation[i] = (float)i;
    memcpy(fields, given, sizeof fields);
    fields[OBSERVATION] = array_of(observation, PER_FLOAT32);
    per_steps steps = steps_of(length, fields, NULL, observation, no, no);
    if (mask != NULL) steps.mask = array_of(mask, PER_BOOL);
    CHECK_OK(per_replay_add(replay, &steps, NULL, NULL));
}

typedef struct row {
    float reward, advantage, state[2];
    int16_t target[3];
} row;

static row row_of(per_replay* replay, int64_t id) {
    row found;
    void* fields[FIELDS] = {NULL, &found.advantage, found.target, found.state};
    per_batch batch = default_batch();
    batch.fields = fields;
    batch.reward = &found.reward;
    CHECK_OK(per_replay_get(replay, 1, &id, &batch, NULL));
    return found;
}

static int has_defaults(const row* found) {
    return found->advantage == -1.5f && found->target[0] == 7 && found->target[1] == 8 && found->target[2] == 9 &&
           found->state[0] == 0.25f && found->state[1] == 0.25f;
}

static void fields_that_are_left_out_hold_their_default(void) {
    const per_array nothing[FIELDS] = {{NULL, NULL, 0, 0, NULL}};
    const uint8_t mask[ENVS] = {1, 0};
    per_array given[FIELDS] = {{NULL, NULL, 0, 0, NULL}};
    float advantages[ENVS] = {3, 4};
    per_replay* replay = create(replay_options(40, ENVS));
    int64_t id;
    row found;
    add(replay, 1, nothing, NULL); /* ids 0 and 1 */
    add(replay, 9, nothing, NULL); /* ids 2 .. 19, written in one run */
    for (id = 0; id < 20; ++id) {
        found = row_of(replay, id);
        CHECK(has_defaults(&found) && found.reward == (float)(id < 2 ? id : id - 2));
    }
    given[ADVANTAGE] = array_of(advantages, PER_FLOAT32);
    add(replay, 1, given, mask); /* id 20 */
    found = row_of(replay, 20);
    CHECK(found.advantage == 3 && found.target[2] == 9 && found.state[1] == 0.25f);

    /* per_replay_set() overwrites the default. The next round of the ring writes it again. */
    id = 4;
    CHECK_OK(per_replay_set(replay, 1, &id, given, NULL));
    found = row_of(replay, 4);
    CHECK(found.advantage == 3 && found.target[0] == 7);
    add(replay, 20, nothing, NULL);
    CHECK(stats_of(replay).added == 2 * 10 + 1 + 2 * 20);
    found = row_of(replay, 44); /* in the slot of id 4 */
    CHECK(has_defaults(&found));
    per_replay_free(replay);
}

static void sequences_start_with_the_default_state(void) {
    const per_array nothing[FIELDS] = {{NULL, NULL, 0, 0, NULL}};
    float states[8][2], advantages[8][3];
    void* fields[FIELDS] = {NULL, advantages, NULL, states};
    per_replay_options options = replay_options(40, ENVS);
    options.sequence_length = 3;
    per_replay* replay = create(options);
    add(replay, 10, nothing, NULL);
    per_batch batch = default_batch();
    batch.fields = fields;
    CHECK_OK(per_replay_sample(replay, NULL, 8, &batch, NULL));
    for (int i = 0; i < 8; ++i) CHECK(states[i][0] == 0.25f && states[i][1] == 0.25f && advantages[i][2] == -1.5f);
    per_replay_free(replay);
}

static void check_described(per_replay* replay) {
    const per_replay_options options = describe_replay(replay);
    CHECK(options.fields[OBSERVATION].default_value == NULL);
    const per_array* state = options.fields[STATE].default_value;
    CHECK(state != NULL && state->dtype == PER_FLOAT32 && state->ndim == 1 && state->shape[0] == 2);
    CHECK(((const float*)state->data)[0] == 0.25f && ((const float*)state->data)[1] == 0.25f);
    const per_array* target = options.fields[TARGET].default_value;
    CHECK(target != NULL && target->dtype == PER_INT16 && ((const int16_t*)target->data)[1] == 8);
}

/* The description has the field's dtype and shape, so a buffer can be created from it. */
static void defaults_are_described(void) {
    per_replay* replay = create(replay_options(40, ENVS));
    check_described(replay);
    const per_replay_options options = describe_replay(replay);
    per_replay* again = create_replay(&options);
    check_described(again);
    free_both(again, replay);
}

static void check_refused(per_field* fields, const char* text) {
    per_replay_options options = replay_options(40, 1);
    per_replay* replay = (per_replay*)&options;
    set_fields(&options, fields, 2);
    CHECK_REFUSED(per_replay_create(&options, &replay), text);
    CHECK(replay == NULL);
}

static void defaults_that_are_not_allowed(void) {
    const float numbers[3] = {1, 2, 3};
    const int32_t large = 300;
    per_array value = array_of(numbers, PER_FLOAT32);
    per_field fields[2] = {field_of("observation", PER_FLOAT32, 0, NULL), field_of("x", PER_FLOAT32, 1, three)};
    fields[0].default_value = &value;
    check_refused(fields, "default of field \"observation\" is given");
    fields[0].default_value = NULL;
    fields[1].default_value = &value;
    value.data = NULL;
    check_refused(fields, "default of field \"x\" has no data");
    value = array_of((const char*)numbers + 1, PER_FLOAT32);
    check_refused(fields, "default of field \"x\" is ");
    value = shaped(numbers, PER_FLOAT32, 1, two);
    check_refused(fields, "default of field \"x\" has shape (2,): expected is (3,)");
    value = shaped(numbers, 13, 0, none);
    check_refused(fields, "default of field \"x\".dtype is 13");
    fields[1] = field_of("x", PER_INT8, 0, NULL);
    fields[1].default_value = &value;
    value = array_of(numbers, PER_FLOAT32);
    check_refused(fields, "default of field \"x\" has dtype float32");
    value = array_of(&large, PER_INT32);
    check_refused(fields, "default of field \"x\"[0] is 300: allowed are -128 .. 127 (int8)");
}

/* Only fields with a default may be omitted. */
static void other_fields_must_be_given(void) {
    const float number = 0;
    per_array value = array_of(&number, PER_FLOAT32), given[2];
    const uint8_t no = 0;
    per_replay_options options = replay_options(40, 1);
    per_field fields[2] = {field_of("observation", PER_FLOAT32, 0, NULL), field_of("x", PER_FLOAT32, 0, NULL)};
    set_fields(&options, fields, 2);
    per_replay* replay = create_replay(&options);
    per_steps steps = default_steps();
    given[0] = value;
    given[1] = array_of(NULL, PER_FLOAT32);
    steps.fields = given;
    steps.reward = value;
    steps.terminated = steps.truncated = array_of(&no, PER_BOOL);
    CHECK_REFUSED(per_replay_add(replay, &steps, NULL, NULL), "x is missing");
    CHECK(stats_of(replay).added == 0);
    per_replay_free(replay);
}

int main(void) {
    fields_that_are_left_out_hold_their_default();
    sequences_start_with_the_default_state();
    defaults_are_described();
    defaults_that_are_not_allowed();
    other_fields_must_be_given();
    return 0;
}

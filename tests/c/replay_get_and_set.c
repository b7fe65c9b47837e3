/* Rows by id, as they were added: one step, one frame, regardless of n_step and frame_stack. Fields can be written
   back. */
#include "replay_check.h"

enum { OBSERVATION, ACTION, ADVANTAGE, FIELDS };

static per_field fields[FIELDS];
static const int64_t two[] = {2};

static per_replay* create(int64_t rows, int64_t n_step, int64_t frame_stack) {
    per_replay_options options = replay_options(rows, 1);
    fields[OBSERVATION] = field_of("observation", PER_FLOAT32, 0, NULL);
    fields[ACTION] = field_of("action", PER_INT16, 1, two);
    fields[ADVANTAGE] = field_of("advantage", PER_FLOAT64, 0, NULL);
    set_fields(&options, fields, FIELDS);
    options.n_step = n_step;
    options.frame_stack = frame_stack;
    options.gamma = 0.5;
    return create_replay(&options);
}

/* Step t: observation t, action (t, -t), advantage t / 2, reward 10 t. */
static int64_t add_at(per_replay* replay, int t, end how, next_kind kind, float next) {
    const float observation = (float)t, reward = 10 * (float)t;
    const int16_t action[] = {(int16_t)t, (int16_t)-t};
    const double advantage = t / 2.0;
    const uint8_t terminated = how == TERMINATED, truncated = how == TRUNCATED, known = kind != NEXT_UNKNOWN;
    int64_t id = -7;
    per_array given[FIELDS] = {[OBSERVATION] = array_of(&observation, PER_FLOAT32),
                               [ACTION] = array_of(action, PER_INT16),
                               [ADVANTAGE] = array_of(&advantage, PER_FLOAT64)};
    per_array nexts[FIELDS] = {[OBSERVATION] = array_of(&next, PER_FLOAT32)};
    per_steps steps = steps_of(1, given, kind == NEXT_GIVEN ? nexts : NULL, &reward, &terminated, &truncated);
    steps.next_mask = array_of(&known, PER_BOOL);
    CHECK_OK(per_replay_add(replay, &steps, &id, NULL));
    return id;
}

typedef struct gathered {
    float observation[16], next[16], reward[16], discount[16], gamma_m[16], priorities[16];
    int16_t action[16][2];
    double advantage[16];
    int32_t n_steps[16];
    uint8_t terminated[16], truncated[16];
    int64_t ids[16];
    void *fields[FIELDS], *next_fields[FIELDS];
    per_batch batch;
} gathered;

static void prepare(gathered* out, int with_next) {
    memset(out, 0x5A, sizeof *out);
    CHECK_OK(per_batch_init(&out->batch, sizeof out->batch));
    out->fields[OBSERVATION] = out->observation;
    out->fields[ACTION] = out->action;
    out->fields[ADVANTAGE] = out->advantage;
    out->next_fields[OBSERVATION] = out->next;
    out->next_fields[ACTION] = out->next_fields[ADVANTAGE] = NULL;
    out->batch.fields = out->fields;
    if (with_next) out->batch.next_fields = out->next_fields;
    POINT_BATCH(out->batch, out);
}

static void check_row(per_replay* replay, int64_t id, int t, float next, float discount, end how) {
    static gathered out;
    prepare(&out, 1);
    CHECK_OK(per_replay_get(replay, 1, &id, &out.batch, NULL));
    CHECK(out.observation[0] == t && out.action[0][0] == t && out.action[0][1] == -t && out.advantage[0] == t / 2.0);
    CHECK(out.reward[0] == 10 * t && out.discount[0] == discount && out.n_steps[0] == 1 && out.next[0] == next);
    CHECK(out.terminated[0] == (how == TERMINATED) && out.truncated[0] == (how == TRUNCATED) && out.ids[0] == id);
    CHECK(out.gamma_m[0] == 0.5f);
}

/* The call fails and writes nothing; on CUDA it writes the rows that exist. */
static void check_refused(per_replay* replay, int64_t id, int with_next, const char* text) {
    static gathered out, untouched;
    const int64_t ids[] = {0, id};
    prepare(&out, with_next);
    untouched = out;
    CHECK_BAD_ID(per_replay_get(replay, 2, ids, &out.batch, NULL), text);
    if (!on_cuda()) CHECK(memcmp(&out.observation, &untouched.observation, offsetof(gathered, batch)) == 0);
}

static void rows_are_given_back_as_they_were_added(int64_t n_step, int64_t frame_stack) {
    per_replay* replay = create(40, n_step, frame_stack);
    static gathered out;
    add_at(replay, 0, GOES_ON, NEXT_LEFT_OUT, 0);
    add_at(replay, 1, GOES_ON, NEXT_LEFT_OUT, 0);
    add_at(replay, 2, TERMINATED, NEXT_GIVEN, 3);
    CHECK(add_at(replay, 10, GOES_ON, NEXT_GIVEN, 11) == 4); /* row 3 is final */
    add_at(replay, 11, TRUNCATED, NEXT_GIVEN, 12);
    CHECK(add_at(replay, 20, TERMINATED, NEXT_UNKNOWN, 0) == 7);
    CHECK(add_at(replay, 30, TRUNCATED, NEXT_UNKNOWN, 0) == 8);
    CHECK(add_at(replay, 40, GOES_ON, NEXT_LEFT_OUT, 0) == 9);
    check_row(replay, 0, 0, 1, 0.5f, GOES_ON);
    check_row(replay, 1, 1, 2, 0.5f, GOES_ON);
    check_row(replay, 2, 2, 3, 0, TERMINATED);
    check_row(replay, 4, 10, 11, 0.5f, GOES_ON);
    check_row(replay, 5, 11, 12, 0.5f, TRUNCATED);
    check_row(replay, 7, 20, 20, 0, TERMINATED);
    /* Without next observations, rows that have none can be read too. */
    prepare(&out, 0);
    for (int64_t id = 8; id <= 9; ++id) {
        CHECK_OK(per_replay_get(replay, 1, &id, &out.batch, NULL));
        CHECK(out.observation[0] == (id == 8 ? 30 : 40) && out.truncated[0] == (id == 8) && out.terminated[0] == 0);
        CHECK(out.discount[0] == 0.5f && out.priorities[0] == 0);
        check_refused(replay, id, 1, "must be read with NULL in next_fields");
    }
    check_refused(replay, 3, 0, "ids[1] is 3: a final observation, no transition");
    check_refused(replay, 10, 0, "ids[1] is 10: never issued; ids so far are 0 .. 9");
    check_refused(replay, -1, 0, "ids[1] is -1: no step; -1 marks steps that were not added");
    check_refused(replay, INT64_MAX, 0, "never issued; ids so far are 0 .. 9");
    check_refused(replay, INT64_MIN, 0, "never issued; ids are 0 and above");
    /* A row that holds only an announced observation is not a transition yet. */
    add_at(replay, 41, GOES_ON, NEXT_GIVEN, 42);
    check_row(replay, 9, 40, 41, 0.5f, GOES_ON);
    check_row(replay, 10, 41, 42, 0.5f, GOES_ON);
    check_refused(replay, 11, 0, "ids[1]");
    per_replay_free(replay);
}

static void several_rows_in_the_order_asked_for(void) {
    per_replay* replay = create(40, 1, 1);
    static gathered out;
    const int64_t ids[] = {3, 0, 3, 1};
    for (int t = 0; t < 5; ++t) add_at(replay, t, GOES_ON, NEXT_LEFT_OUT, 0);
    set_priority(replay, 3, 8);
    prepare(&out, 1);
    CHECK_OK(per_replay_get(replay, 4, ids, &out.batch, NULL));
    CHECK(out.observation[0] == 3 && out.observation[1] == 0 && out.observation[2] == 3 && out.observation[3] == 1);
    CHECK(out.next[0] == 4 && out.next[3] == 2 && out.priorities[0] == 8 && out.priorities[1] == 1);
    CHECK(memcmp(out.ids, ids, sizeof ids) == 0);
    CHECK_OK(per_replay_get(replay, 0, NULL, &out.batch, NULL));
    CHECK(stats_of(replay).samples == 0);
    per_replay_free(replay);
}

static void overwritten_rows_are_an_error(void) {
    per_replay* replay = create(8, 1, 1);
    for (int t = 0; t < 11; ++t) add_at(replay, t, GOES_ON, NEXT_LEFT_OUT, 0); /* rows 3 .. 10 exist */
    check_row(replay, 3, 3, 4, 0.5f, GOES_ON);
    for (int t = 0; t < 3; ++t) check_refused(replay, t, 0, "ids[0]");
    CHECK_OK(per_replay_clear(replay, NULL));
    for (int t = 0; t < 11; ++t) {
        static gathered out;
        const int64_t id = t;
        prepare(&out, 0);
        CHECK_BAD_ID(per_replay_get(replay, 1, &id, &out.batch, NULL), "ids[0]");
    }
    per_replay_free(replay);
}

static void what_get_has_none_of_must_be_null(void) {
    per_replay* replay = create(8, 1, 1);
    static gathered out;
    const int64_t id = 0;
    float weight;
    uint8_t mask;
    add_at(replay, 0, GOES_ON, NEXT_LEFT_OUT, 0);
    prepare(&out, 0);
    out.batch.weights = &weight;
    CHECK_REFUSED(per_replay_get(replay, 1, &id, &out.batch, NULL), "weights");
    prepare(&out, 0);
    out.batch.probabilities = &weight;
    CHECK_REFUSED(per_replay_get(replay, 1, &id, &out.batch, NULL), "probabilities");
    prepare(&out, 0);
    out.batch.mask = &mask;
    CHECK_REFUSED(per_replay_get(replay, 1, &id, &out.batch, NULL), "mask");
    per_replay_free(replay);
}

/* ------------------------------------------------------------------- set */

static void check_advantage(per_replay* replay, int64_t id, double expected) {
    static gathered out;
    prepare(&out, 0);
    CHECK_OK(per_replay_get(replay, 1, &id, &out.batch, NULL));
    CHECK(out.advantage[0] == expected);
}

static void set_writes_fields_back(void) {
    per_replay* replay = create(8, 1, 1);
    static const int64_t four[] = {4}, four_two[] = {4, 2}, two_two[] = {2, 2};
    const int64_t ids[] = {5, 2, 5, 7}, late[] = {-1, 6};
    const float advantages[] = {1.5f, 2.5f, 3.5f, 4.5f}, observations[] = {0, 0, 0, 0};
    const int32_t actions[][2] = {{1, 2}, {3, 4}, {5, 6}, {7, 8}}, beyond[][2] = {{1, 2}, {3, 4}, {5, 40000}, {7, 8}};
    static gathered out;
    per_array given[FIELDS];
    for (int t = 0; t < 11; ++t) add_at(replay, t, GOES_ON, NEXT_LEFT_OUT, 0); /* rows 3 .. 10 exist; id 2 is stale */
    memset(given, 0, sizeof given);
    given[ADVANTAGE] = array_of(advantages, PER_FLOAT32); /* cast to float64 */
    given[ADVANTAGE].shape = four;
    given[ADVANTAGE].ndim = 1;
    CHECK_OK(per_replay_set(replay, 4, ids, given, NULL));
    check_advantage(replay, 5, 3.5); /* of equal ids the last one wins */
    check_advantage(replay, 7, 4.5);
    check_advantage(replay, 6, 3);
    check_advantage(replay, 10, 5); /* id 2 shares its slot with id 10 */
    CHECK(stats_of(replay).stale_updates == 1);
    given[ACTION] = array_of(actions, PER_INT32);
    given[ACTION].shape = four_two;
    given[ACTION].ndim = 2;
    CHECK_OK(per_replay_set(replay, 4, ids, given, NULL));
    prepare(&out, 0);
    CHECK_OK(per_replay_get(replay, 1, ids, &out.batch, NULL));
    CHECK(out.action[0][0] == 5 && out.action[0][1] == 6 && out.observation[0] == 5 && out.reward[0] == 50);
    CHECK(stats_of(replay).stale_updates == 2);
    CHECK_OK(per_replay_set(replay, 2, late, (memset(given, 0, sizeof given), given), NULL));
    CHECK(stats_of(replay).stale_updates == 3);

    /* A bad argument changes nothing. (On CUDA only the device can check values, row by row.) */
    given[ADVANTAGE] = array_of(observations, PER_FLOAT32);
    if (!on_cuda()) {
        given[ACTION] = array_of(beyond, PER_INT32);
        CHECK_REFUSED(per_replay_set(replay, 4, ids, given, NULL), "action[5] is 40000");
        check_advantage(replay, 5, 3.5);
    }
    given[ACTION] = array_of(actions, PER_INT32);
    given[ACTION].shape = two_two;
    given[ACTION].ndim = 2;
    CHECK_REFUSED(per_replay_set(replay, 4, ids, given, NULL), "(4, 2)");
    check_advantage(replay, 5, 3.5);
    given[ACTION] = array_of(advantages, PER_FLOAT32);
    CHECK_REFUSED(per_replay_set(replay, 2, ids, given, NULL), "action has dtype float32");
    memset(&given[ACTION], 0, sizeof given[ACTION]);
    given[OBSERVATION] = array_of(observations, PER_FLOAT32);
    CHECK_REFUSED(per_replay_set(replay, 4, ids, given, NULL), "observation");
    check_advantage(replay, 5, 3.5);
    memset(&given[OBSERVATION], 0, sizeof given[OBSERVATION]);
    if (!on_cuda()) {
        const int64_t never[] = {5, 11}, below[] = {5, -2};
        CHECK_REFUSED(per_replay_set(replay, 2, never, given, NULL), "ids[1]");
        CHECK_REFUSED(per_replay_set(replay, 2, below, given, NULL), "ids[1]");
    }
    check_advantage(replay, 5, 3.5);
    CHECK(stats_of(replay).stale_updates == 3);
    CHECK_OK(per_replay_set(replay, 0, NULL, NULL, NULL));
    per_replay_free(replay);
}

/* Values of stale ids are ignored, even out of range ones. */
static void values_of_late_ids_are_not_looked_at(void) {
    per_replay* replay = create(8, 1, 1);
    const int64_t ids[] = {2, 5};
    const int32_t actions[][2] = {{40000, 40000}, {1, 2}};
    static gathered out;
    for (int t = 0; t < 11; ++t) add_at(replay, t, GOES_ON, NEXT_LEFT_OUT, 0);
    per_array given[FIELDS] = {[ACTION] = array_of(actions, PER_INT32)};
    CHECK_OK(per_replay_set(replay, 2, ids, given, NULL));
    prepare(&out, 0);
    CHECK_OK(per_replay_get(replay, 1, &ids[1], &out.batch, NULL));
    CHECK(out.action[0][0] == 1 && out.action[0][1] == 2);
    per_replay_free(replay);
}

int main(void) {
    rows_are_given_back_as_they_were_added(1, 1);
    rows_are_given_back_as_they_were_added(3, 4);
    several_rows_in_the_order_asked_for();
    overwritten_rows_are_an_error();
    what_get_has_none_of_must_be_null();
    set_writes_fields_back();
    values_of_late_ids_are_not_looked_at();
    return 0;
}

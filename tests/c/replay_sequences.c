/*
 * Sequences, by hand. Observation t has reward t + 1, action -t and recurrent state 10 t; gamma is 1/2, so all sums are
 * exact.
 */
#include "replay_check.h"

enum { MOST_STEPS = 16, MOST_SEQUENCES = 64 };

/* L = 3 after a burn-in of 1: T = 4. There are 4 + n_step observations. */
static per_replay_options sequence_options(int64_t rows, int64_t n_step) {
    static per_field fields[3];
    per_replay_options options = replay_options(rows, 1);
    fields[0] = field_of("observation", PER_FLOAT32, 0, NULL);
    fields[1] = field_of("action", PER_INT32, 0, NULL);
    fields[2] = field_of("state", PER_FLOAT64, 0, NULL);
    fields[2].role = PER_ROLE_RECURRENT_STATE;
    set_fields(&options, fields, 3);
    options.n_step = n_step;
    options.gamma = 0.5;
    options.sequence_length = 3;
    options.burn_in = 1;
    options.epsilon = 0;
    return options;
}

static int64_t add(per_replay* replay, int t, end how, next_kind kind) {
    const float observation = (float)t, next = (float)t + 1, reward = (float)t + 1;
    const int32_t action = -t;
    const double state = 10.0 * t;
    const uint8_t terminated = how == TERMINATED, truncated = how == TRUNCATED, known = kind != NEXT_UNKNOWN;
    int64_t id = -7;
    per_array fields[3] = {array_of(&observation, PER_FLOAT32), array_of(&action, PER_INT32),
                           array_of(&state, PER_FLOAT64)};
    per_array next_fields[3] = {array_of(&next, PER_FLOAT32)};
    per_steps steps = steps_of(1, fields, kind == NEXT_GIVEN ? next_fields : NULL, &reward, &terminated, &truncated);
    if (kind != NEXT_LEFT_OUT) steps.next_mask = array_of(&known, PER_BOOL);
    CHECK_OK(per_replay_add(replay, &steps, &id, NULL));
    return id;
}

/* Steps first .. last of one episode. */
static void add_episode(per_replay* replay, int first, int last, end how, next_kind kind) {
    for (int t = first; t < last; ++t) add(replay, t, GOES_ON, NEXT_LEFT_OUT);
    add(replay, last, how, kind);
}

typedef struct sequences {
    float observation[MOST_SEQUENCES * MOST_STEPS], reward[MOST_SEQUENCES * MOST_STEPS];
    float discount[MOST_SEQUENCES * MOST_STEPS], gamma_m[MOST_SEQUENCES * MOST_STEPS], weights[MOST_SEQUENCES],
        priorities[MOST_SEQUENCES];
    int32_t action[MOST_SEQUENCES * MOST_STEPS], n_steps[MOST_SEQUENCES * MOST_STEPS];
    double state[MOST_SEQUENCES];
    uint8_t terminated[MOST_SEQUENCES * MOST_STEPS], truncated[MOST_SEQUENCES * MOST_STEPS];
    uint8_t mask[MOST_SEQUENCES * MOST_STEPS];
    int64_t ids[MOST_SEQUENCES];
    void* fields[3];
    per_batch batch;
} sequences;

static void fill(sequences* out) {
    memset(out, 0x55, sizeof *out);
    CHECK_OK(per_batch_init(&out->batch, sizeof out->batch));
    out->fields[0] = out->observation;
    out->fields[1] = out->action;
    out->fields[2] = out->state;
    out->batch.fields = out->fields;
    POINT_BATCH(out->batch, out);
    out->batch.mask = out->mask;
    out->batch.weights = out->weights;
}

static void draw_sequences(per_replay* replay, const per_sample_options* options, int64_t batch_size, sequences* out) {
    fill(out);
    CHECK_OK(per_replay_sample(replay, options, batch_size, &out->batch, NULL));
}

/* One drawn sequence of 4 steps. */
typedef struct expected {
    double state;
    float observation[MOST_STEPS], reward[4], discount[4];
    int32_t action[4], n_steps[4];
    uint8_t terminated[4], truncated[4], mask[4];
} expected;

static void check_sequence(per_replay* replay, int64_t id, int64_t n_step, const expected* wanted, int line) {
    static sequences drawn;
    const size_t length = (size_t)(4 + n_step);
    float gamma_m[4];
    int64_t i = 0;
    for (int64_t t = 0; t < 4; ++t) gamma_m[t] = wanted->mask[t] ? (float)pow(0.5, wanted->n_steps[t]) : 0;
    draw_sequences(replay, NULL, MOST_SEQUENCES, &drawn);
    while (i < MOST_SEQUENCES && drawn.ids[i] != id) ++i;
    if (i < MOST_SEQUENCES && drawn.state[i] == wanted->state &&
        memcmp(drawn.observation + (size_t)i * length, wanted->observation, length * sizeof(float)) == 0 &&
        memcmp(drawn.reward + 4 * i, wanted->reward, sizeof wanted->reward) == 0 &&
        memcmp(drawn.discount + 4 * i, wanted->discount, sizeof wanted->discount) == 0 &&
        memcmp(drawn.gamma_m + 4 * i, gamma_m, sizeof gamma_m) == 0 &&
        memcmp(drawn.action + 4 * i, wanted->action, sizeof wanted->action) == 0 &&
        memcmp(drawn.n_steps + 4 * i, wanted->n_steps, sizeof wanted->n_steps) == 0 &&
        memcmp(drawn.terminated + 4 * i, wanted->terminated, 4) == 0 &&
        memcmp(drawn.truncated + 4 * i, wanted->truncated, 4) == 0 && memcmp(drawn.mask + 4 * i, wanted->mask, 4) == 0)
        return;
    fprintf(stderr, "line %d: sequence %lld is not as expected%s\n", line, (long long)id,
            i == MOST_SEQUENCES ? ": not drawn" : "");
    exit(1);
}
#define CHECK_SEQUENCE(replay, id, n_step, ...)                \
    do {                                                       \
        const expected wanted = {__VA_ARGS__};                 \
        check_sequence(replay, id, n_step, &wanted, __LINE__); \
    } while (0)

static void whole_sequences_wait_for_their_last_return(void) {
    const per_replay_options options = sequence_options(40, 2);
    per_replay* replay = create_replay(&options);
    for (int t = 0; t < 5; ++t) CHECK(add(replay, t, GOES_ON, NEXT_LEFT_OUT) == t);
    CHECK(live_of(replay) == 0); /* the return of step 3 needs observation 5 */
    add(replay, 5, GOES_ON, NEXT_GIVEN);
    CHECK(live_of(replay) == 1);
    CHECK_SEQUENCE(replay, 0, 2, 0, {0, 1, 2, 3, 4, 5}, {1 + 1, 2 + 1.5f, 3 + 2, 4 + 2.5f}, {.25f, .25f, .25f, .25f},
                   {0, -1, -2, -3}, {2, 2, 2, 2}, {0, 0, 0, 0}, {0, 0, 0, 0}, {1, 1, 1, 1});
    for (int t = 6; t < 8; ++t) add(replay, t, GOES_ON, NEXT_LEFT_OUT);
    CHECK(live_of(replay) == 1);
    add(replay, 8, GOES_ON, NEXT_LEFT_OUT); /* the sequence of 3 to 6 is complete with observation 8 */
    CHECK(live_of(replay) == 2);
    CHECK_SEQUENCE(replay, 3, 2, 30, {3, 4, 5, 6, 7, 8}, {4 + 2.5f, 5 + 3, 6 + 3.5f, 7 + 4}, {.25f, .25f, .25f, .25f},
                   {-3, -4, -5, -6}, {2, 2, 2, 2}, {0, 0, 0, 0}, {0, 0, 0, 0}, {1, 1, 1, 1});
    per_replay_free(replay);
}

static void sequences_of_episodes_that_ended_are_padded(void) {
    const per_replay_options options = sequence_options(80, 2);
    per_replay* replay = create_replay(&options);
    add_episode(replay, 0, 4, TERMINATED, NEXT_GIVEN); /* steps 0 .. 4, final observation in row 5 */
    CHECK(live_of(replay) == 2);
    CHECK_SEQUENCE(replay, 0, 2, 0, {0, 1, 2, 3, 4, 5}, {2, 3.5f, 5, 6.5f}, {.25f, .25f, .25f, 0}, {0, -1, -2, -3},
                   {2, 2, 2, 2}, {0, 0, 0, 1}, {0, 0, 0, 0}, {1, 1, 1, 1});
    CHECK_SEQUENCE(replay, 3, 2, 30, {3, 4, 5, 0, 0, 0}, {6.5f, 5, 0, 0}, {0, 0, 0, 0}, {-3, -4, 0, 0}, {2, 1, 0, 0},
                   {1, 1, 0, 0}, {0, 0, 0, 0}, {1, 1, 0, 0});
    /* Steps 10 .. 13 in rows 6 .. 9: the sequence of the last step ends within the burn-in. */
    add_episode(replay, 10, 13, TRUNCATED, NEXT_GIVEN);
    CHECK(live_of(replay) == 3);
    CHECK_SEQUENCE(replay, 6, 2, 100, {10, 11, 12, 13, 14, 0}, {17, 18.5f, 20, 14}, {.25f, .25f, .25f, .5f},
                   {-10, -11, -12, -13}, {2, 2, 2, 1}, {0, 0, 0, 0}, {0, 0, 1, 1}, {1, 1, 1, 1});
    /* An episode of one step ends within the burn-in. Row 12 holds its final observation. */
    add_episode(replay, 20, 20, TERMINATED, NEXT_GIVEN);
    CHECK(live_of(replay) == 3);
    /* The last observation replaces the unknown one. */
    add_episode(replay, 30, 31, TERMINATED, NEXT_UNKNOWN);
    CHECK(live_of(replay) == 4);
    CHECK_SEQUENCE(replay, 13, 2, 300, {30, 31, 31, 0, 0, 0}, {47, 32, 0, 0}, {0, 0, 0, 0}, {-30, -31, 0, 0},
                   {2, 1, 0, 0}, {1, 1, 0, 0}, {0, 0, 0, 0}, {1, 1, 0, 0});
    /* Step 42 contributes only its observation. */
    add_episode(replay, 40, 42, TRUNCATED, NEXT_UNKNOWN);
    CHECK(live_of(replay) == 5);
    CHECK_SEQUENCE(replay, 15, 2, 400, {40, 41, 42, 0, 0, 0}, {62, 42, 0, 0}, {.25f, .5f, 0, 0}, {-40, -41, 0, 0},
                   {2, 1, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {1, 1, 0, 0});
    /* A cut ends an episode, too. */
    add(replay, 50, GOES_ON, NEXT_LEFT_OUT);
    add(replay, 51, GOES_ON, NEXT_GIVEN);
    CHECK(live_of(replay) == 5);
    CHECK_OK(per_replay_cut(replay, 0, NULL, NULL));
    CHECK(live_of(replay) == 6);
    CHECK_SEQUENCE(replay, 18, 2, 500, {50, 51, 52, 0, 0, 0}, {77, 52, 0, 0}, {.25f, .5f, 0, 0}, {-50, -51, 0, 0},
                   {2, 1, 0, 0}, {0, 0, 0, 0}, {1, 1, 0, 0}, {1, 1, 0, 0});
    per_replay_free(replay);
}

static void sequences_start_at_multiples_of_the_stride(void) {
    per_replay_options options = sequence_options(40, 1);
    options.sequence_stride = 2;
    per_replay* replay = create_replay(&options);
    add_episode(replay, 0, 6, TERMINATED, NEXT_GIVEN);
    CHECK(live_of(replay) == 3); /* 0, 2 and 4; the one at 6 ends within the burn-in */
    add_episode(replay, 10, 12, TERMINATED, NEXT_GIVEN);
    CHECK(live_of(replay) == 4); /* counted from the episode's first step, in row 8 */
    CHECK(priority_of(replay, 8) == 1 && priority_of(replay, 9) == 0 && priority_of(replay, 10) == 0);
    per_replay_free(replay);
}

static void overwritten_sequences_are_gone(void) {
    const per_replay_options options = sequence_options(8, 1);
    per_replay* replay = create_replay(&options);
    for (int t = 0; t < 8; ++t) add(replay, t, GOES_ON, NEXT_LEFT_OUT);
    CHECK(priority_of(replay, 0) == 1 && priority_of(replay, 3) == 1 && live_of(replay) == 2);
    add(replay, 8, GOES_ON, NEXT_LEFT_OUT); /* in the slot of row 0 */
    CHECK(priority_of(replay, 0) == 0 && live_of(replay) == 1);
    CHECK_SEQUENCE(replay, 3, 1, 30, {3, 4, 5, 6, 7}, {4, 5, 6, 7}, {.5f, .5f, .5f, .5f}, {-3, -4, -5, -6},
                   {1, 1, 1, 1}, {0, 0, 0, 0}, {0, 0, 0, 0}, {1, 1, 1, 1});
    set_priority(replay, 0, 5);
    CHECK(stats_of(replay).stale_updates == 1 && stats_of(replay).max_priority == 1);
    for (int t = 9; t < 11; ++t) add(replay, t, GOES_ON, NEXT_LEFT_OUT); /* 6 .. 9 and 10 cross the end of the lane */
    CHECK_SEQUENCE(replay, 6, 1, 60, {6, 7, 8, 9, 10}, {7, 8, 9, 10}, {.5f, .5f, .5f, .5f}, {-6, -7, -8, -9},
                   {1, 1, 1, 1}, {0, 0, 0, 0}, {0, 0, 0, 0}, {1, 1, 1, 1});
    per_replay_free(replay);
}

/* p = eta max + (1 - eta) mean over the steps after the burn-in without padding. */
static void priorities_of_td_errors(void) {
    const int64_t ids[2] = {0, 3}, pending = 6, inside = 1;
    const float errors[2][4] = {{NAN, 1, -4, 2.5f}, {INFINITY, -3, NAN, NAN}};
    const float critics[2][2][4] = {{{9, 1, -2, 3}, {9, 4, 9, 9}}, {{9, 3, 2, -1}, {9, -2, 9, 9}}};
    const float short_errors[2][3] = {{1, -4, 2.5f}, {-3, NAN, NAN}};
    const float short_critics[2][2][3] = {{{1, -2, 3}, {4, 9, 9}}, {{3, 2, -1}, {-2, 9, 9}}};
    const float bad[4] = {0, 1, NAN, 1}, none[4] = {NAN, NAN, INFINITY, NAN};
    per_replay_options options = sequence_options(40, 1);
    options.sequence_eta = 0.75;
    options.epsilon = 0.25;
    per_replay* replay = create_replay(&options);
    add_episode(replay, 0, 4, TRUNCATED, NEXT_GIVEN);
    add(replay, 10, GOES_ON, NEXT_LEFT_OUT);
    CHECK_OK(write_td_errors(replay, 2, ids, 1, &errors[0][0], NULL));
    CHECK(priority_of(replay, 0) == 0.75f * 4 + 0.25f * 2.5f + 0.25f);
    CHECK(priority_of(replay, 3) == 3.25f);
    CHECK(stats_of(replay).max_priority == 3.875);
    CHECK_OK(write_td_errors(replay, 2, ids, 2, &critics[0][0][0], NULL));
    CHECK(priority_of(replay, 0) == 2.25f && priority_of(replay, 3) == 3.25f); /* step by step 2, 2, 2 and 3 */
    CHECK_BAD_PRIORITY(write_td_errors(replay, 1, ids, 1, bad, NULL), "td_errors[0]");
    CHECK(priority_of(replay, 0) == 2.25f);
    /* Errors of the burn-in may be omitted. */
    CHECK_OK(write_sequence_errors(replay, 2, ids, 1, 4, &errors[0][0], NULL));
    CHECK(priority_of(replay, 0) == 3.875f && priority_of(replay, 3) == 3.25f);
    CHECK_OK(write_sequence_errors(replay, 2, ids, 2, 3, &short_critics[0][0][0], NULL));
    CHECK(priority_of(replay, 0) == 2.25f && priority_of(replay, 3) == 3.25f);
    CHECK_OK(write_sequence_errors(replay, 2, ids, 1, 3, &short_errors[0][0], NULL));
    CHECK(priority_of(replay, 0) == 3.875f && priority_of(replay, 3) == 3.25f);
    CHECK_REFUSED(write_sequence_errors(replay, 2, ids, 1, 2, &errors[0][0], NULL),
                  "n_steps is 2: allowed are 3 and, with the burn-in, 4 or 0");
    CHECK_REFUSED(write_sequence_errors(replay, 1, ids, 1, 5, &errors[0][0], NULL),
                  "n_steps is 5: allowed are 3 and, with the burn-in, 4 or 0");
    /* Steps at which no sequence starts have no priority. */
    CHECK_OK(write_td_errors(replay, 1, &inside, 1, bad, NULL));
    CHECK_OK(write_priorities(replay, 1, &inside, bad + 1, NULL));
    CHECK(stats_of(replay).stale_updates == 2 && priority_of(replay, inside) == 0);
    /* The running sequence has no complete step after its burn-in yet, but may be given a priority. */
    CHECK_OK(write_td_errors(replay, 1, &pending, 1, none, NULL));
    CHECK(stats_of(replay).stale_updates == 3 && stats_of(replay).rejected_updates == 1 - !on_cuda());
    set_priority(replay, pending, 0.5f);
    CHECK(priority_of(replay, pending) == 0);
    add(replay, 11, TERMINATED, NEXT_GIVEN);
    CHECK(priority_of(replay, pending) == 0.5f);
    per_replay_free(replay);
}

/* Errors of an overwritten sequence, or of one whose steps have no return yet, are ignored. */
static void errors_that_are_nobodys_change_no_other_sequence(void) {
    const float none[4] = {NAN, NAN, INFINITY, NAN};
    per_replay_options options = sequence_options(16, 1);
    options.sequence_stride = 1;
    per_replay* replay = create_replay(&options);
    add_episode(replay, 0, 4, TRUNCATED, NEXT_GIVEN); /* sequences 0 .. 3, final observation in row 5 */
    int64_t pending = add(replay, 10, GOES_ON, NEXT_LEFT_OUT);
    for (int64_t id = 0; id < 4; ++id) set_priority(replay, id, 3);
    CHECK_OK(write_td_errors(replay, 1, &pending, 1, none, NULL));
    for (int64_t id = 0; id < 4; ++id) CHECK(priority_of(replay, id) == 3);
    CHECK(stats_of(replay).stale_updates == 1);
    per_replay_free(replay);
}

/* Priorities given with steps count if sequences start there. */
static void priorities_given_with_steps(void) {
    const per_replay_options options = sequence_options(40, 1);
    per_replay* replay = create_replay(&options);
    const float observations[5] = {0, 1, 2, 3, 4}, rewards[5] = {1, 1, 1, 1, 1}, p[5] = {2, 9, 9, 3, 9};
    const int32_t actions[5] = {0};
    const double states[5] = {0};
    const uint8_t flags[5] = {0};
    per_array fields[3] = {array_of(observations, PER_FLOAT32), array_of(actions, PER_INT32),
                           array_of(states, PER_FLOAT64)};
    per_steps steps = steps_of(5, fields, NULL, rewards, flags, flags);
    steps.priorities = array_of(p, PER_FLOAT32);
    CHECK_OK(per_replay_add(replay, &steps, NULL, NULL));
    CHECK(live_of(replay) == 1 && priority_of(replay, 0) == 2 && stats_of(replay).max_priority == 3);
    per_replay_free(replay);
}

static void what_sequences_do_not_have(void) {
    static sequences drawn;
    const int64_t id = 1;
    per_replay_options options = sequence_options(40, 1);
    per_replay* replay = create_replay(&options);
    void* next_fields[3] = {NULL, NULL, NULL};
    float next = 0;
    add_episode(replay, 0, 4, TERMINATED, NEXT_GIVEN);
    fill(&drawn);
    drawn.batch.next_fields = next_fields;
    CHECK_OK(per_replay_sample(replay, NULL, 1, &drawn.batch, NULL));
    next_fields[0] = drawn.observation;
    CHECK_REFUSED(per_replay_sample(replay, NULL, 1, &drawn.batch, NULL), "next_fields[0]");
    CHECK(stats_of(replay).samples == 1);
    /* Rows by id are single steps. */
    drawn.batch.mask = NULL;
    drawn.batch.weights = NULL;
    next_fields[0] = &next;
    CHECK_OK(per_replay_get(replay, 1, &id, &drawn.batch, NULL));
    CHECK(drawn.observation[0] == 1 && next == 2 && drawn.action[0] == -1 && drawn.state[0] == 10);
    CHECK(drawn.reward[0] == 2);
    per_replay_free(replay);
    options = replay_options(40, 1);
    replay = create_replay(&options);
    add_full(replay, 0, 1, 1, GOES_ON, 2);
    fill(&drawn);
    drawn.batch.fields = NULL;
    CHECK_REFUSED(per_replay_sample(replay, NULL, 1, &drawn.batch, NULL), "mask");
    per_replay_free(replay);
}

static void a_lane_needs_rows_for_a_sequence(void) {
    per_replay_options options = sequence_options(6, 2); /* 4 + 2 + 1 */
    per_replay* replay = (per_replay*)&options;
    CHECK_REFUSED(per_replay_create(&options, &replay), "needs 7");
    CHECK(strstr(per_last_error(), "6 rows") != NULL && strstr(per_last_error(), "1 + 3 steps") != NULL);
    options.capacity = 7;
    replay = create_replay(&options);
    CHECK_REFUSED(change_n_step(replay, 3, NULL), "needs 8");
    CHECK_OK(per_replay_describe(replay, &options));
    CHECK(options.sequence_stride == 3 && options.burn_in == 1 && options.n_step == 2);
    per_replay_free(replay);
}

static void n_step_of_the_call_and_of_the_buffer(void) {
    static sequences drawn;
    const per_replay_options options = sequence_options(40, 2);
    per_replay* replay = create_replay(&options);
    for (int t = 0; t < 6; ++t) add(replay, t, GOES_ON, NEXT_LEFT_OUT);
    CHECK(live_of(replay) == 1);
    per_sample_options choice = default_sample_options();
    choice.n_step = 1;
    draw_sequences(replay, &choice, 2, &drawn);
    for (int t = 0; t < 10; ++t) CHECK(drawn.observation[t] == (float)(t % 5)); /* 4 + 1 for each of the two */
    CHECK(drawn.reward[3] == 4 && drawn.discount[3] == 0.5f && drawn.n_steps[3] == 1);
    CHECK_OK(change_n_step(replay, 3, NULL));
    CHECK(live_of(replay) == 0);
    CHECK_OK(change_n_step(replay, 1, NULL));
    CHECK(live_of(replay) == 1);
    add(replay, 6, GOES_ON, NEXT_LEFT_OUT);
    add(replay, 7, GOES_ON, NEXT_LEFT_OUT); /* 3 .. 6 */
    CHECK(live_of(replay) == 2);
    per_replay_free(replay);
}

static void epochs_give_each_sequence_once(void) {
    static sequences drawn;
    const per_replay_options options = sequence_options(40, 1);
    per_replay* replay = create_replay(&options);
    per_epochs* walk = NULL;
    int64_t count = 0;
    add_episode(replay, 0, 11, TERMINATED, NEXT_GIVEN);
    CHECK(live_of(replay) == 4);
    CHECK_OK(per_epochs_create(replay, 1, 3, 0, NULL, &walk));
    fill(&drawn);
    CHECK_OK(synchronized(replay, per_epochs_next(walk, &drawn.batch, &count, NULL)));
    CHECK(count == 3 && drawn.weights[0] == 1);
    for (count = 0; count < 3; ++count) {
        CHECK(drawn.state[count] == 10.0 * (double)drawn.ids[count] && drawn.mask[4 * count + 1] == 1);
        CHECK(drawn.observation[5 * count + 1] == (float)drawn.ids[count] + 1);
    }
    CHECK_OK(change_n_step(replay, 2, NULL)); /* the arrays have room for 4 + 1 observations */
    CHECK_REFUSED(per_epochs_next(walk, &drawn.batch, &count, NULL), "n_step");
    CHECK_OK(change_n_step(replay, 1, NULL));
    CHECK_OK(per_epochs_next(walk, &drawn.batch, &count, NULL));
    CHECK(count == 1);
    per_epochs_free(walk);
    per_replay_free(replay);
}

static void loaders_draw_what_sample_draws(void) {
    static sequences drawn;
    const per_replay_options options = sequence_options(40, 2);
    per_replay *replay = create_replay(&options), *twin = create_replay(&options);
    per_loader* loader = NULL;
    per_batch batch;
    int64_t slot;
    add_episode(replay, 0, 11, TERMINATED, NEXT_GIVEN);
    add_episode(twin, 0, 11, TERMINATED, NEXT_GIVEN);
    per_loader_options loader_options = default_loader_options();
    loader_options.batch_size = MOST_SEQUENCES;
    CHECK_OK(per_loader_create(replay, &loader_options, &loader));
    for (int i = 0; i < 6; ++i) {
        if (i == 5) CHECK_OK(change_n_step(replay, 3, NULL)); /* the slots are for 2 */
        batch = default_batch();
        CHECK_OK(per_loader_next(loader, -1, &batch, &slot, NULL));
        draw_sequences(twin, NULL, MOST_SEQUENCES, &drawn);
        CHECK(memcmp(batch.ids, drawn.ids, sizeof drawn.ids) == 0 && batch.next_fields[0] == NULL);
        CHECK(memcmp(batch.fields[0], drawn.observation, MOST_SEQUENCES * 6 * sizeof(float)) == 0);
        CHECK(memcmp(batch.fields[1], drawn.action, MOST_SEQUENCES * 4 * sizeof(int32_t)) == 0);
        CHECK(memcmp(batch.fields[2], drawn.state, sizeof drawn.state) == 0);
        CHECK(memcmp(batch.reward, drawn.reward, MOST_SEQUENCES * 4 * sizeof(float)) == 0);
        CHECK(memcmp(batch.mask, drawn.mask, MOST_SEQUENCES * 4) == 0);
        CHECK_OK(per_loader_release(loader, slot, NULL));
    }
    per_loader_free(loader);
    free_both(replay, twin);
}

/* The states before the start that a stack needs are included, those of another episode are not. */
static void stacks_reach_back_before_the_start(void) {
    static sequences drawn;
    per_replay_options options = sequence_options(40, 1);
    const float second[10] = {12, 13, 13, 14, 14, 15, 0, 0, 0, 0};
    const float first[10] = {10, 10, 10, 11, 11, 12, 12, 13, 13, 14};
    options.frame_stack = 2;
    per_replay* replay = create_replay(&options);
    add_episode(replay, 0, 1, TERMINATED, NEXT_GIVEN);
    add_episode(replay, 10, 14, TERMINATED, NEXT_GIVEN); /* rows 3 .. 7 */
    draw_sequences(replay, NULL, 32, &drawn);
    for (int64_t i = 0; i < 32; ++i) {
        if (drawn.ids[i] == 3) CHECK(memcmp(drawn.observation + 10 * i, first, sizeof first) == 0);
        if (drawn.ids[i] == 6) CHECK(memcmp(drawn.observation + 10 * i, second, sizeof second) == 0);
    }
    per_replay_free(replay);
}

/* With n_step > T, observations between the steps and their bootstrap observations are left out. */
static void observations_that_no_step_needs_are_zeros(void) {
    static sequences drawn;
    per_replay_options options = sequence_options(40, 4);
    options.sequence_length = 1;
    options.burn_in = 0;
    per_replay* replay = create_replay(&options);
    add_episode(replay, 100, 107, TERMINATED, NEXT_GIVEN);
    CHECK(live_of(replay) == 8);
    draw_sequences(replay, NULL, MOST_SEQUENCES, &drawn);
    for (int64_t i = 0; i < MOST_SEQUENCES; ++i) {
        /* The windows of the last three steps end with the episode, at observation 108. */
        static const int32_t lengths[8] = {4, 4, 4, 4, 4, 3, 2, 1};
        const int64_t id = drawn.ids[i];
        float wanted[5] = {0, 0, 0, 0, 0};
        wanted[0] = (float)(100 + id);
        wanted[lengths[id]] = (float)(100 + id + lengths[id]);
        CHECK(memcmp(drawn.observation + 5 * i, wanted, sizeof wanted) == 0);
        CHECK(drawn.n_steps[i] == lengths[id] && drawn.mask[i] == 1);
    }
    per_replay_free(replay);

    options = sequence_options(40, 4);
    options.sequence_length = 2;
    options.burn_in = 0;
    replay = create_replay(&options);
    add_episode(replay, 0, 4, TERMINATED, NEXT_UNKNOWN);
    CHECK(live_of(replay) == 3);
    draw_sequences(replay, NULL, MOST_SEQUENCES, &drawn);
    for (int64_t i = 0; i < MOST_SEQUENCES; ++i) {
        /* Used are observations 0, 1, 4 and 5; 2, 3 and 5; 4 and 5. Observation 5 is unknown, so 4 is repeated. */
        static const float wanted[3][6] = {{0, 1, 0, 0, 4, 4}, {2, 3, 0, 4, 0, 0}, {4, 4, 0, 0, 0, 0}};
        CHECK(memcmp(drawn.observation + 6 * i, wanted[drawn.ids[i] / 2], sizeof *wanted) == 0);
    }
    per_replay_free(replay);
}

int main(void) {
    whole_sequences_wait_for_their_last_return();
    sequences_of_episodes_that_ended_are_padded();
    sequences_start_at_multiples_of_the_stride();
    overwritten_sequences_are_gone();
    priorities_of_td_errors();
    errors_that_are_nobodys_change_no_other_sequence();
    priorities_given_with_steps();
    what_sequences_do_not_have();
    a_lane_needs_rows_for_a_sequence();
    n_step_of_the_call_and_of_the_buffer();
    observations_that_no_step_needs_are_zeros();
    epochs_give_each_sequence_once();
    if (!on_cuda()) loaders_draw_what_sample_draws(); /* a buffer on CUDA has no loader */
    stacks_reach_back_before_the_start();
    return 0;
}

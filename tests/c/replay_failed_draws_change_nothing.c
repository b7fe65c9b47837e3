/*
 * A failed draw does not count: saves before and after it are byte-identical, and later draws equal those of a buffer
 * without the failure. PER_RANK is the hard case, since a draw may recompute ranks.
 */
#include "saved_bytes.h"

enum { STEPS = 200, BATCH = 64, ACHIEVED = 0, GOAL = 1 };

static per_replay* create(int32_t prioritization) {
    float observations[STEPS], nexts[STEPS], goals[STEPS], rewards[STEPS], priorities[STEPS];
    static const uint8_t no_flags[STEPS];
    per_replay_options options = replay_options(STEPS + 10, 1);
    set_goal_fields(&options);
    options.prioritization = prioritization;
    options.beta_steps = 100;
    options.seed = 5;
    per_replay* replay = create_replay(&options);
    for (int t = 0; t < STEPS; ++t) {
        observations[t] = (float)t;
        nexts[t] = (float)t + 1;
        goals[t] = rewards[t] = -1;
        priorities[t] = 1 + (float)(t * 7 % 31);
    }
    per_array given[2] = {[ACHIEVED] = array_of(observations, PER_FLOAT32), [GOAL] = array_of(goals, PER_FLOAT32)};
    per_array given_next[2] = {[ACHIEVED] = array_of(nexts, PER_FLOAT32)};
    per_steps steps = steps_of(STEPS, given, given_next, rewards, no_flags, no_flags);
    steps.priorities = array_of(priorities, PER_FLOAT32);
    CHECK_OK(per_replay_add(replay, &steps, NULL, NULL));
    return replay;
}

/* Ids first .. first + count - 1 get priorities from `least` on. */
static void set_run(per_replay* replay, int64_t first, int64_t count, float least) {
    int64_t ids[STEPS];
    float priorities[STEPS];
    for (int64_t i = 0; i < count; ++i) {
        ids[i] = first + i;
        priorities[i] = least + (float)i;
    }
    CHECK_OK(write_priorities(replay, count, ids, priorities, NULL));
}

/* Frees `before`. */
static void check_saves_the_same(per_replay* replay, bytes before) {
    check_saved_as(&before, replay);
    free(before.data);
}

static void check_same_draws(per_replay* replay, per_replay* twin, int n_draws) {
    static float weights[2][BATCH], probabilities[2][BATCH];
    static int64_t ids[2][BATCH];
    per_replay* const both[2] = {replay, twin};
    for (int i = 0; i < n_draws; ++i) {
        per_replay_statistics statistics[2];
        for (int which = 0; which < 2; ++which) {
            per_batch batch = default_batch();
            batch.weights = weights[which];
            batch.probabilities = probabilities[which];
            batch.ids = ids[which];
            CHECK_OK(per_replay_sample(both[which], NULL, BATCH, &batch, NULL));
            statistics[which] = stats_of(both[which]);
            statistics[which].memory_bytes = 0; /* the first call by rank allocates, even if it fails */
        }
        CHECK(memcmp(ids[0], ids[1], sizeof ids[0]) == 0);
        CHECK(memcmp(weights[0], weights[1], sizeof weights[0]) == 0);
        CHECK(memcmp(probabilities[0], probabilities[1], sizeof probabilities[0]) == 0);
        CHECK(memcmp(&statistics[0], &statistics[1], sizeof statistics[0]) == 0);
    }
}

/* ------------------------------------------------------------ hindsight */

typedef struct caller {
    per_replay* replay;
    int changes_priorities; /* true: the reward function changes a few priorities */
    int draws_in_vain;      /* number of further failing calls, each nested in the previous one */
    int32_t answer;
} caller;

static void draw_with_hindsight(caller* context, per_status expected);

static int32_t reward(void* context, int64_t count, const void* achieved, const void* goals, float* rewards_out,
                      uint8_t* terminated_out) {
    caller* const known = (caller*)context;
    (void)achieved;
    (void)goals;
    (void)terminated_out;
    memset(rewards_out, 0, (size_t)count * sizeof *rewards_out);
    if (known->changes_priorities) set_run(known->replay, 190, 3, 200);
    if (known->draws_in_vain > 0) {
        caller inner = *known;
        --inner.draws_in_vain;
        inner.changes_priorities = 0;
        inner.answer = 1;
        draw_with_hindsight(&inner, PER_ERROR_CALLBACK);
    }
    return known->answer;
}

static void draw_with_hindsight(caller* context, per_status expected) {
    float weights[BATCH];
    per_batch batch = default_batch();
    const per_hindsight_options hindsight = relabelling(ACHIEVED, GOAL, reward, context);
    batch.weights = weights;
    CHECK(sample_with_hindsight(context->replay, NULL, &hindsight, BATCH, &batch, NULL) == expected);
}

/* Ranks are due when the failing call begins. Before the next draw, 3 of 200 priorities change: during the call if
   changes_within is 1, otherwise after it. */
static void a_reward_that_fails(int changes_within, int draws_in_vain) {
    per_replay *replay = create(PER_RANK), *twin = create(PER_RANK);
    caller context;
    memset(&context, 0, sizeof context);
    context.replay = replay;
    context.changes_priorities = changes_within;
    context.draws_in_vain = draws_in_vain;
    context.answer = 1;
    check_same_draws(replay, twin, 2);
    set_run(replay, 0, 150, 20);
    set_run(twin, 0, 150, 20);
    bytes before = saved(replay);
    draw_with_hindsight(&context, PER_ERROR_CALLBACK);
    if (!changes_within)
        check_saves_the_same(replay, before);
    else
        free(before.data);
    if (!changes_within) set_run(replay, 190, 3, 200);
    set_run(twin, 190, 3, 200);
    const per_replay_statistics statistics = stats_of(replay);
    check_same_statistics(twin, &statistics);
    check_same_draws(replay, twin, 3);
    free_both(replay, twin);
}

/* The outer call computes ranks and succeeds. The calls in its reward function fail, and do not change these ranks. */
static void a_reward_that_is_had_after_failures(void) {
    per_replay *replay = create(PER_RANK), *twin = create(PER_RANK);
    caller context;
    memset(&context, 0, sizeof context);
    context.replay = replay;
    caller of_twin = context;
    of_twin.replay = twin;
    context.draws_in_vain = 2;
    draw_with_hindsight(&context, PER_OK);
    draw_with_hindsight(&of_twin, PER_OK);
    set_run(replay, 190, 3, 200);
    set_run(twin, 190, 3, 200);
    check_same_draws(replay, twin, 3);
    free_both(replay, twin);
}

/* ----------------------------------------------------- too few to draw */

static void more_than_there_are(int32_t of_buffer, int32_t prioritization) {
    static rows out;
    per_replay *replay = create(of_buffer), *twin = create(of_buffer);
    per_sample_options options = default_sample_options();
    per_batch batch = default_batch();
    options.scheme = PER_WITHOUT_REPLACEMENT;
    options.prioritization = prioritization;
    batch.weights = out.weights;
    check_same_draws(replay, twin, 2);
    set_run(replay, 0, 150, 20);
    set_run(twin, 0, 150, 20);
    bytes before = saved(replay);
    CHECK_BAD(per_replay_sample(replay, &options, STEPS + 1, &batch, NULL), PER_ERROR_INVALID_ARGUMENT,
              "batch_size is 201", "without replacement");
    check_saves_the_same(replay, before);
    set_run(replay, 190, 3, 200);
    set_run(twin, 190, 3, 200);
    check_same_draws(replay, twin, 3);
    free_both(replay, twin);
}

int main(void) {
    for (int n = 0; n < 3; ++n) {
        a_reward_that_fails(0, n);
        a_reward_that_fails(1, n);
    }
    a_reward_that_is_had_after_failures();
    more_than_there_are(PER_RANK, PER_RANK);
    more_than_there_are(PER_RANK, PER_PROPORTIONAL);
    more_than_there_are(PER_PROPORTIONAL, PER_RANK);
    more_than_there_are(PER_PROPORTIONAL, PER_PROPORTIONAL);
    return 0;
}

/*
 * Hindsight relabelling: the goals that transitions get, the arguments of the reward function and the effect of its
 * results on a batch; a failing reward function changes nothing.
 */
#include <pthread.h>

#include "replay_check.h"
#include "thread_check.h"

enum { PLACES = 64, ACHIEVED = 0, GOAL = 1 };

/* A buffer with the fields observation, which is also the achieved goal, and goal: one float32 each. */
static per_replay* create(per_replay_options options) {
    set_goal_fields(&options);
    return create_replay(&options);
}

/* A step from `observation` to the one after it; its goal is -1. */
static void add_goal_step(per_replay* replay, float observation, float reward, uint8_t terminated, uint8_t truncated) {
    const float next = observation + 1, goal = -1;
    per_array fields[2] = {[ACHIEVED] = array_of(&observation, PER_FLOAT32), [GOAL] = array_of(&goal, PER_FLOAT32)};
    per_array next_fields[2] = {[ACHIEVED] = array_of(&next, PER_FLOAT32), [GOAL] = array_of(NULL, PER_FLOAT32)};
    const per_steps steps = steps_of(1, fields, next_fields, &reward, &terminated, &truncated);
    CHECK_OK(per_replay_add(replay, &steps, NULL, NULL));
}

/* `count` steps at first, first + 1, ... The last one ends as given. */
static void add_episode(per_replay* replay, float first, int count, end how) {
    for (int t = 0; t < count; ++t)
        add_goal_step(replay, first + (float)t, 100, t == count - 1 && how == TERMINATED,
                      t == count - 1 && how == TRUNCATED);
}

static per_replay* with_episode(per_replay_options options) {
    per_replay* replay = create(options);
    add_episode(replay, 0, 20, TERMINATED);
    return replay;
}

typedef struct batch {
    float observation[PLACES], goal[PLACES], next[PLACES], reward[PLACES], discount[PLACES], gamma_m[PLACES];
    float weights[PLACES], priorities[PLACES];
    int32_t n_steps[PLACES];
    uint8_t terminated[PLACES], truncated[PLACES];
    int64_t ids[PLACES];
    void *fields[4], *next_fields[4]; /* as many as any buffer here has */
    per_batch arrays;
} batch;

static void fill(batch* out) {
    memset(out, 0, sizeof *out);
    CHECK_OK(per_batch_init(&out->arrays, sizeof out->arrays));
    out->fields[ACHIEVED] = out->observation;
    out->fields[GOAL] = out->goal;
    out->next_fields[ACHIEVED] = out->next;
    out->arrays.fields = out->fields;
    out->arrays.next_fields = out->next_fields;
    POINT_BATCH(out->arrays, out);
    out->arrays.weights = out->weights;
}

/* The arguments that a reward function got, and its instructions. */
typedef struct calls {
    int n_calls;
    int64_t n_steps;
    float achieved[8 * PLACES], goals[8 * PLACES];
    uint8_t terminated[8 * PLACES];
    int sets_terminated, says_no; /* terminal steps: those that reach the goal; none */
    int32_t answer;
    per_replay* replay; /* a buffer that it uses, if any */
} calls;

/* 1 if the goal is reached, otherwise minus the distance. */
static int32_t reward(void* context, int64_t count, const void* achieved, const void* goals, float* rewards_out,
                      uint8_t* terminated_out) {
    calls* seen = (calls*)context;
    const float *at = (const float*)achieved, *goal = (const float*)goals;
    CHECK(count > 0 && count <= 8 * PLACES);
    ++seen->n_calls;
    seen->n_steps = count;
    memcpy(seen->achieved, achieved, (size_t)count * sizeof(float));
    memcpy(seen->goals, goals, (size_t)count * sizeof(float));
    memcpy(seen->terminated, terminated_out, (size_t)count);
    for (int64_t i = 0; i < count; ++i) {
        rewards_out[i] = at[i] == goal[i] ? 1 : -fabsf(at[i] - goal[i]);
        if (seen->says_no) terminated_out[i] = 0;
        if (seen->sets_terminated) terminated_out[i] = (uint8_t)(at[i] == goal[i] ? 255 : 0);
    }
    return seen->answer;
}

static per_hindsight_options hindsight_options(calls* seen, int32_t strategy, double fraction) {
    per_hindsight_options options = default_hindsight_options();
    CHECK(options.strategy == PER_GOAL_FUTURE && options.fraction == 0.8 && options.reward == NULL);
    options.achieved_field = ACHIEVED;
    options.goal_field = GOAL;
    options.strategy = strategy;
    options.fraction = fraction;
    options.reward = reward;
    options.context = seen;
    memset(seen, 0, sizeof *seen);
    return options;
}

static void draw_plain(per_replay* replay, batch* out) {
    fill(out);
    CHECK_OK(per_replay_sample(replay, NULL, PLACES, &out->arrays, NULL));
}

static void draw_relabelled(per_replay* replay, const per_hindsight_options* hindsight, batch* out) {
    fill(out);
    CHECK_OK(sample_with_hindsight(replay, NULL, hindsight, PLACES, &out->arrays, NULL));
}

static void check_same(const batch* a, const batch* b) {
    CHECK(memcmp(a, b, offsetof(batch, fields)) == 0);
}

static void goals_of_each_strategy(void) {
    static batch out;
    static calls seen;
    static const int32_t strategies[3] = {PER_GOAL_FUTURE, PER_GOAL_FINAL, PER_GOAL_EPISODE};
    per_replay* replay = create(replay_options(100, 1));
    add_episode(replay, 0, 6, TRUNCATED);   /* achieves 1 to 6 */
    add_episode(replay, 20, 4, TERMINATED); /* 21 to 24 */
    add_episode(replay, 40, 5, GOES_ON);    /* 41 to 45 so far */
    for (int s = 0; s < 3; ++s) {
        const per_hindsight_options options = hindsight_options(&seen, strategies[s], 1);
        int earlier = 0, own = 0;
        draw_relabelled(replay, &options, &out);
        CHECK(seen.n_calls == 1 && seen.n_steps == PLACES);
        for (int i = 0; i < PLACES; ++i) {
            const float at = out.observation[i], goal = out.goal[i];
            const float first = at < 20 ? 1 : at < 40 ? 21 : 41, last = at < 20 ? 6 : at < 40 ? 24 : 45;
            CHECK(seen.achieved[i] == at + 1 && out.next[i] == at + 1 && seen.goals[i] == goal);
            CHECK(goal >= (strategies[s] == PER_GOAL_FUTURE ? at + 1 : first) && goal <= last);
            if (strategies[s] == PER_GOAL_FINAL) CHECK(goal == last);
            CHECK(seen.terminated[i] == (at == 23) && out.terminated[i] == (at == 23));
            CHECK(out.truncated[i] == (at == 5));
            CHECK(out.reward[i] == (goal == at + 1 ? 1 : -fabsf(goal - at - 1)));
            CHECK(out.discount[i] == (at == 23 ? 0 : 0.99f) && out.n_steps[i] == 1);
            earlier += goal < at + 1;
            own += goal == at + 1;
        }
        CHECK(own > 0 && (earlier > 0) == (strategies[s] == PER_GOAL_EPISODE));
    }
    per_replay_free(replay);
}

/* Like add_goal_step(), but the observation after the step is unknown. */
static void add_unknown_step(per_replay* replay, float observation, uint8_t truncated) {
    const float goal = -1, reward = 100;
    const uint8_t no_flag = 0;
    per_array fields[2] = {[ACHIEVED] = array_of(&observation, PER_FLOAT32), [GOAL] = array_of(&goal, PER_FLOAT32)};
    per_array next_fields[2] = {fields[ACHIEVED], array_of(NULL, PER_FLOAT32)};
    per_steps steps = steps_of(1, fields, next_fields, &reward, &no_flag, &truncated);
    steps.next_mask = array_of(&no_flag, PER_BOOL);
    CHECK_OK(per_replay_add(replay, &steps, NULL, NULL));
}

/* An unknown observation after the last step of an episode is not a goal. The step before it achieves the last goal,
   whether the episode is running or was truncated there, and whatever follows it. */
static void goals_that_nobody_knows(void) {
    static batch out;
    static calls seen;
    const per_hindsight_options hindsight = hindsight_options(&seen, PER_GOAL_FINAL, 1);
    per_replay* replay = create(replay_options(100, 1));
    add_goal_step(replay, 10, 100, 0, 0);
    add_goal_step(replay, 11, 100, 0, 0);
    add_unknown_step(replay, 12, 1);
    add_goal_step(replay, 20, 100, 0, 0);
    add_goal_step(replay, 21, 100, 0, 0);
    add_goal_step(replay, 22, 100, 0, 0);
    add_unknown_step(replay, 23, 0);
    draw_relabelled(replay, &hindsight, &out);
    for (int i = 0; i < PLACES; ++i) CHECK(out.goal[i] == (out.observation[i] < 20 ? 12 : 23));
    per_replay_free(replay);
}

/* An episode that wraps around the end of its lane has goals from both parts, whatever the lane before it in memory
   holds: all episodes there have one step. */
static void goals_on_both_sides_of_the_end_of_a_lane(void) {
    enum { ROWS = 8, STEPS = 12 };
    static batch out;
    static calls seen;
    const per_hindsight_options hindsight = hindsight_options(&seen, PER_GOAL_EPISODE, 1);
    per_replay_options options = replay_options(2 * ROWS, 2);
    uint8_t is_goal[200] = {0};
    options.store_next_observation = 1;
    per_replay* replay = create(options);
    for (int t = 0; t < STEPS; ++t) {
        const float observation[2] = {(float)t, (float)(100 + t)}, goal[2] = {-1, -1}, reward[2] = {0, 0};
        const float next[2] = {(float)t + 1, (float)(101 + t)};
        const uint8_t terminated[2] = {1, 0}, truncated[2] = {0, 0};
        per_array fields[2] = {[ACHIEVED] = array_of(observation, PER_FLOAT32), [GOAL] = array_of(goal, PER_FLOAT32)};
        per_array next_fields[2] = {[ACHIEVED] = array_of(next, PER_FLOAT32), [GOAL] = array_of(NULL, PER_FLOAT32)};
        const per_steps steps = steps_of(1, fields, next_fields, reward, terminated, truncated);
        CHECK_OK(per_replay_add(replay, &steps, NULL, NULL));
    }
    for (int draws = 0; draws < 20; ++draws) {
        draw_relabelled(replay, &hindsight, &out);
        for (int i = 0; i < PLACES; ++i)
            if (out.observation[i] >= 100 + ROWS) is_goal[(int)out.goal[i]] = 1;
    }
    /* Some 320 goals from the latest steps, each one of 8 equally likely: a goal is missing with probability 8
       (7/8)^320 < 1e-17. */
    for (int i = 0; i < 200; ++i) CHECK(is_goal[i] == (i > 100 + STEPS - ROWS && i <= 100 + STEPS));
    per_replay_free(replay);
}

/* The function gets the three steps of a window in one call; the first terminal step ends the window. */
static void windows_of_several_steps(void) {
    static batch out;
    static calls seen;
    per_replay_options options = replay_options(100, 1);
    per_hindsight_options hindsight = hindsight_options(&seen, PER_GOAL_FUTURE, 1);
    int i, k, sets, lengths[4] = {0, 0, 0, 0};
    options.n_step = 3;
    options.gamma = 0.5;
    per_replay* replay = create(options);
    add_episode(replay, 0, 6, TRUNCATED);
    for (sets = 0; sets < 2; ++sets) {
        int64_t step = 0;
        seen.sets_terminated = sets;
        draw_relabelled(replay, &hindsight, &out);
        for (i = 0; i < PLACES; ++i) {
            const float at = out.observation[i], goal = out.goal[i];
            const int m = at < 4 ? 3 : 6 - (int)at, to_goal = (int)(goal - at);
            const int length = sets && to_goal < m ? to_goal : m, reaches = sets && to_goal <= m;
            double sum = 0;
            for (k = 0; k < m; ++k, ++step) {
                CHECK(seen.achieved[step] == at + 1 + (float)k && seen.goals[step] == goal);
                if (k < length)
                    sum += pow(0.5, k) * (at + 1 + (float)k == goal ? 1 : -fabs((double)(at + 1 + (float)k - goal)));
            }
            CHECK(out.reward[i] == (float)sum && out.n_steps[i] == length);
            CHECK(out.discount[i] == (reaches ? 0 : (float)pow(0.5, length)));
            CHECK(out.gamma_m[i] == (float)pow(0.5, length));
            CHECK(out.next[i] == at + (float)length && out.terminated[i] == reaches);
            CHECK(out.truncated[i] == (length == m && at >= 3 && !reaches));
            lengths[length] += sets;
        }
        CHECK(seen.n_steps == step);
    }
    CHECK(lengths[1] > 0 && lengths[2] > 0 && lengths[3] > 0);
    per_replay_free(replay);
}

/* With fraction 0 a batch equals that of per_replay_sample(), and no reward is requested. */
static void none_or_some_are_relabelled(void) {
    static batch out, plain;
    static calls seen;
    per_hindsight_options hindsight = hindsight_options(&seen, PER_GOAL_FUTURE, 0);
    per_replay *replay = with_episode(replay_options(100, 1)), *twin = with_episode(replay_options(100, 1));
    int relabelled = 0;
    draw_relabelled(replay, &hindsight, &out);
    draw_plain(twin, &plain);
    CHECK(seen.n_calls == 0);
    check_same(&out, &plain);
    /* The drawn ids do not depend on relabelling. The chance that all 64 or none are relabelled is below 1e-6 at
       0.8. */
    hindsight.fraction = 0.8;
    draw_relabelled(replay, &hindsight, &out);
    draw_plain(twin, &plain);
    CHECK(memcmp(out.ids, plain.ids, sizeof out.ids) == 0 &&
          memcmp(out.weights, plain.weights, sizeof out.weights) == 0);
    for (int i = 0; i < PLACES; ++i) {
        relabelled += out.goal[i] != -1;
        if (out.goal[i] == -1) CHECK(out.reward[i] == 100);
    }
    CHECK(relabelled == seen.n_steps && relabelled > 0 && relabelled < PLACES);
    free_both(replay, twin);
}

static void a_reward_function_that_fails_changes_nothing(void) {
    static batch out, expected;
    static calls seen;
    per_replay_options options = replay_options(100, 1);
    per_hindsight_options hindsight = hindsight_options(&seen, PER_GOAL_FUTURE, 1);
    options.beta_steps = 10;
    per_replay *replay = with_episode(options), *twin = with_episode(options);
    fill(&out);
    fill(&expected);
    CHECK_OK(per_replay_sample(replay, NULL, 8, &out.arrays, NULL));
    CHECK_OK(per_replay_sample(twin, NULL, 8, &out.arrays, NULL));
    const per_replay_statistics before = stats_of(replay);
    seen.answer = -7;
    CHECK(sample_with_hindsight(replay, NULL, &hindsight, PLACES, &out.arrays, NULL) == PER_ERROR_CALLBACK);
    CHECK(strstr(per_last_error(), "-7") != NULL && strcmp(per_status_name(12), "PER_ERROR_CALLBACK") == 0);
    check_same_statistics(replay, &before);
    seen.answer = 0;
    draw_relabelled(replay, &hindsight, &out);
    CHECK_OK(sample_with_hindsight(twin, NULL, &hindsight, PLACES, &expected.arrays, NULL));
    check_same(&out, &expected);
    free_both(replay, twin);
}

/* A batch by id gets the goals that a draw of the same ids would get, and counts as a draw, except for beta. */
static void windows_by_id_get_goals_too(void) {
    static batch out, expected;
    static calls seen;
    static const int64_t with_dead[3] = {4, -1, 900};
    per_replay_options options = replay_options(100, 1);
    per_hindsight_options hindsight = hindsight_options(&seen, PER_GOAL_FUTURE, 0.8);
    options.n_step = 3;
    options.beta_steps = 10;
    per_replay *replay = with_episode(options), *twin = with_episode(options);
    seen.sets_terminated = 1;
    fill(&expected);
    for (int round = 0; round < 3; ++round) { /* three batches with different goals */
        per_sample_options given = default_sample_options();
        given.beta = 0.5;
        memset(&seen.goals, 0, sizeof seen.goals);
        fill(&expected);
        fill(&out);
        CHECK_OK(sample_with_hindsight(twin, &given, &hindsight, PLACES, &expected.arrays, NULL));
        CHECK_OK(get_windows_with_hindsight(replay, &given, &hindsight, PER_INVALID_ERROR, PLACES, expected.ids,
                                            &out.arrays, NULL));
        check_same(&out, &expected);
    }
    CHECK(stats_of(replay).samples == 3 && stats_of(replay).beta_step == 0 && stats_of(replay).last_batch_size == 0);

    /* Dead ids get no goal, and no rewards are requested for them. */
    hindsight.fraction = 1;
    hindsight.strategy = PER_GOAL_FINAL;
    seen.sets_terminated = 0;
    fill(&out);
    CHECK_OK(get_windows_with_hindsight(replay, NULL, &hindsight, PER_INVALID_SKIP, 3, with_dead, &out.arrays, NULL));
    CHECK(seen.n_steps == 3 && out.ids[0] == 4 && out.goal[0] == 20 && out.next[0] == 7 && out.n_steps[0] == 3);
    for (int i = 1; i < 3; ++i)
        CHECK(out.ids[i] == -1 && out.goal[i] == 0 && out.observation[i] == 0 && out.reward[i] == 0 &&
              out.n_steps[i] == 0 && out.weights[i] == 0);
    fill(&out);
    seen.n_calls = 0;
    CHECK_OK(
        get_windows_with_hindsight(replay, NULL, &hindsight, PER_INVALID_SKIP, 2, with_dead + 1, &out.arrays, NULL));
    CHECK(seen.n_calls == 0 && out.ids[0] == -1 && out.ids[1] == -1);

    /* A failed call does not count, and the last batch remains that of the draw before. */
    CHECK_OK(per_replay_sample(replay, NULL, 8, &out.arrays, NULL));
    const per_replay_statistics before = stats_of(replay);
    seen.answer = -7;
    CHECK_FAILS(get_windows_with_hindsight(replay, NULL, &hindsight, PER_INVALID_SKIP, 3, with_dead, &out.arrays, NULL),
                PER_ERROR_CALLBACK, "-7");
    if (!on_cuda())
        CHECK_REFUSED(
            get_windows_with_hindsight(replay, NULL, &hindsight, PER_INVALID_ERROR, 3, with_dead, &out.arrays, NULL),
            "ids[1] is -1");
    CHECK_REFUSED(get_windows_with_hindsight(replay, NULL, &hindsight, 2, 3, with_dead, &out.arrays, NULL),
                  "on_invalid is 2");
    CHECK_REFUSED(get_windows_with_hindsight(replay, NULL, &hindsight, 0, 3, NULL, &out.arrays, NULL), "ids is NULL");
    CHECK_OK(get_windows_with_hindsight(replay, NULL, &hindsight, 0, 0, NULL, &out.arrays, NULL));
    check_same_statistics(replay, &before);
    free_both(replay, twin);
}

static int32_t last_reward(void* context, int64_t count, const void* achieved, const void* goals, float* rewards_out,
                           uint8_t* terminated_out) {
    reward(context, count, achieved, goals, rewards_out, terminated_out);
    pthread_exit(context);
}

/* Draws a batch whose reward function ends the thread. */
static void* draw_and_end(void* replay) {
    static batch out;
    static calls seen;
    per_hindsight_options hindsight = hindsight_options(&seen, PER_GOAL_FUTURE, 1);
    hindsight.reward = last_reward;
    draw_relabelled((per_replay*)replay, &hindsight, &out);
    return NULL;
}

static void a_thread_that_ends_in_its_reward_function_makes_no_draw(void) {
    static batch out, expected;
    per_replay *replay = with_episode(replay_options(100, 1)), *twin = with_episode(replay_options(100, 1));
    pthread_t thread = start_thread(draw_and_end, replay);
    CHECK(join_thread(thread) != NULL);
    draw_plain(replay, &out);
    draw_plain(twin, &expected);
    check_same(&out, &expected);
    free_both(replay, twin);
}

/* The function's own buffer is not locked, and changes to it do not affect the batch. */
static int32_t meddling_reward(void* context, int64_t count, const void* achieved, const void* goals,
                               float* rewards_out, uint8_t* terminated_out) {
    static batch other;
    static calls unused;
    calls* seen = (calls*)context;
    per_replay* replay = seen->replay;
    const per_hindsight_options again = hindsight_options(&unused, PER_GOAL_FINAL, 1);
    draw_plain(replay, &other);
    CHECK_OK(sample_with_hindsight(replay, NULL, &again, PLACES, &other.arrays, NULL));
    CHECK_OK(change_gamma(replay, 0, NULL));
    add_episode(replay, 50, 200, TRUNCATED); /* overwrites all rows */
    CHECK_OK(per_replay_clear(replay, NULL));
    return reward(context, count, achieved, goals, rewards_out, terminated_out);
}

static void the_reward_function_may_use_the_buffer(void) {
    static batch out, expected;
    static calls seen;
    per_replay_options options = replay_options(30, 1);
    per_hindsight_options hindsight = hindsight_options(&seen, PER_GOAL_FUTURE, 0.7);
    options.n_step = 4;
    per_replay *replay = with_episode(options), *twin = with_episode(options);
    fill(&out);
    fill(&expected);
    seen.sets_terminated = 1;
    CHECK_OK(sample_with_hindsight(twin, NULL, &hindsight, PLACES, &expected.arrays, NULL));
    hindsight.reward = meddling_reward;
    seen.replay = replay;
    CHECK_OK(sample_with_hindsight(replay, NULL, &hindsight, PLACES, &out.arrays, NULL));
    check_same(&out, &expected);
    CHECK(stats_of(replay).samples == 3);
    free_both(replay, twin);
}

static void bad_arguments(void) {
    static batch out;
    static calls seen;
    const per_hindsight_options good = hindsight_options(&seen, PER_GOAL_FUTURE, 0.5);
    const int64_t pair = 2;
    per_field fields[4] = {field_of("observation", PER_FLOAT32, 0, NULL), field_of("goal", PER_FLOAT32, 0, NULL),
                           field_of("wide", PER_FLOAT32, 1, &pair), field_of("whole", PER_INT32, 0, NULL)};
    per_replay_options options = replay_options(50, 1);
    per_hindsight_options bad;
    set_fields(&options, fields, 4);
    per_replay* replay = create_replay(&options);
    fill(&out);
#define REFUSED(member, value, words)   \
    (bad = good, bad.member = (value)); \
    CHECK_REFUSED(sample_with_hindsight(replay, NULL, &bad, 4, &out.arrays, NULL), words)
    REFUSED(achieved_field, -1, "achieved_field is -1: allowed are 0 .. 3");
    REFUSED(goal_field, 4, "goal_field is 4: allowed are 0 .. 3");
    REFUSED(achieved_field, 1, "achieved_field is \"goal\": must be an observation");
    REFUSED(goal_field, 0, "goal_field and achieved_field are both \"observation\": must be two fields");
    REFUSED(goal_field, 2, "goal_field is \"wide\": must have the dtype and shape of \"observation\"");
    REFUSED(goal_field, 3, "goal_field is \"whole\": must have");
    REFUSED(strategy, 3, "strategy is 3: allowed are 0 .. 2");
    REFUSED(fraction, 1.5, "fraction is 1.5");
#undef REFUSED
    CHECK(sample_with_hindsight(replay, NULL, &good, 0, &out.arrays, NULL) == PER_ERROR_INVALID_ARGUMENT);
    CHECK(sample_with_hindsight(replay, NULL, &good, 4, &out.arrays, NULL) == PER_ERROR_EMPTY);
    CHECK(seen.n_calls == 0 && stats_of(replay).samples == 0);
    per_replay_free(replay);
}

static void loaders_refuse_hindsight(void) {
    static calls seen;
    const per_hindsight_options hindsight = hindsight_options(&seen, PER_GOAL_FINAL, 1);
    const per_sample_options sample = options_with_hindsight(NULL, &hindsight);
    per_replay* replay = create(replay_options(40, 1));
    per_loader* loader;
    per_loader_options options = default_loader_options();
    options.batch_size = 4;
    options.sample = &sample;
    options.device = test_device();
    CHECK_REFUSED(per_loader_create(replay, &options, &loader), "hindsight is not NULL");
    if (!on_cuda()) {
        per_shared_loader* shared_loader;
        per_shared_loader_options shared = default_shared_loader_options();
        shared.batch_size = 4;
        shared.readers = 1;
        shared.sample = &sample;
        CHECK_REFUSED(per_shared_loader_create(replay, &shared, &shared_loader), "hindsight is not NULL");
    }
    per_replay_free(replay);
}

/* A step with both flags is stored as terminated. If the function says that the episode goes on, it has neither. */
static void a_step_with_both_flags_is_terminated_or_neither(void) {
    static batch out;
    static calls seen;
    per_replay_options options = replay_options(40, 1);
    options.gamma = 0.5;
    per_replay* replay = create(options);
    add_goal_step(replay, 0, 0, 1, 1);     /* both flags */
    add_goal_step(replay, 10, 0, 0, 1);    /* one flag */
    for (int kind = 0; kind < 3; ++kind) { /* no rewards are requested; no step ends; both end */
        const per_hindsight_options hindsight = hindsight_options(&seen, PER_GOAL_FINAL, kind > 0);
        int has_ended;
        seen.says_no = kind == 1;
        seen.sets_terminated = kind == 2;
        draw_relabelled(replay, &hindsight, &out);
        for (int i = 0; i < PLACES; ++i) {
            const int both = out.observation[i] == 0;
            has_ended = kind == 2 || (kind == 0 && both);
            CHECK(out.terminated[i] == has_ended && out.discount[i] == (has_ended ? 0.0f : 0.5f));
            CHECK(out.truncated[i] == (!both && kind < 2));
        }
    }
    per_replay_free(replay);
}

/* The goal may be an observation field. With n_step > T, new goals are written only to observations that the sequence
   uses. */
static void goals_of_sequences_are_in_the_observations_that_there_are(void) {
    enum { STEPS = 6, N = 3, ENTRIES = 1 + N };
    static const per_field fields[2] = {{"observation", NULL, 0, PER_FLOAT32, PER_ROLE_DEFAULT, 0, NULL, 0, 0, 0},
                                        {"goal", NULL, 0, PER_FLOAT32, PER_ROLE_OBSERVATION, 0, NULL, 0, 0, 0}};
    static float achieved[PLACES * ENTRIES], goals[PLACES * ENTRIES];
    static calls seen;
    const per_hindsight_options hindsight = hindsight_options(&seen, PER_GOAL_FINAL, 1);
    int64_t ids[PLACES];
    per_replay_options options = replay_options(40, 1);
    set_fields(&options, fields, 2);
    options.n_step = N;
    options.sequence_length = 1;
    per_replay* replay = create_replay(&options);
    for (int t = 0; t < STEPS; ++t) {
        const float observation = (float)(10 + t), next = observation + 1, goal = -1, zero = 0;
        const uint8_t terminated = t == STEPS - 1, truncated = 0;
        per_array given[2] = {[ACHIEVED] = array_of(&observation, PER_FLOAT32)};
        per_array following[2] = {[ACHIEVED] = array_of(&next, PER_FLOAT32)};
        given[GOAL] = following[GOAL] = array_of(&goal, PER_FLOAT32);
        const per_steps steps = steps_of(1, given, following, &zero, &terminated, &truncated);
        CHECK_OK(per_replay_add(replay, &steps, NULL, NULL));
    }
    CHECK(live_of(replay) == STEPS);
    per_batch batch = default_batch();
    void* arrays[2] = {[ACHIEVED] = achieved, [GOAL] = goals};
    batch.fields = arrays;
    batch.ids = ids;
    memset(goals, 0x55, sizeof goals);
    CHECK_OK(sample_with_hindsight(replay, NULL, &hindsight, PLACES, &batch, NULL));
    for (int i = 0; i < PLACES; ++i) {
        const int64_t window = STEPS - ids[i] < N ? STEPS - ids[i] : N;
        for (int64_t k = 0; k < ENTRIES; ++k) {
            const int is_there = k == 0 || k == window;
            CHECK(goals[i * ENTRIES + k] == (float)(is_there ? 10 + STEPS : 0));
            CHECK(achieved[i * ENTRIES + k] == (float)(is_there ? 10 + ids[i] + k : 0));
        }
    }
    per_replay_free(replay);
}

int main(void) {
    a_thread_that_ends_in_its_reward_function_makes_no_draw(); /* must run first: before any exception is thrown */
    goals_of_each_strategy();
    goals_that_nobody_knows();
    goals_on_both_sides_of_the_end_of_a_lane();
    windows_of_several_steps();
    none_or_some_are_relabelled();
    a_reward_function_that_fails_changes_nothing();
    windows_by_id_get_goals_too();
    the_reward_function_may_use_the_buffer();
    bad_arguments();
    loaders_refuse_hindsight();
    a_step_with_both_flags_is_terminated_or_neither();
    goals_of_sequences_are_in_the_observations_that_there_are();
    return 0;
}

/*
 * per_replay_compute_capacity() gives the smallest capacity that keeps the given number of transitions or sequences
 * live. Buffers of that capacity are filled with episodes of many lengths and checked after every step. With one row
 * less in each lane some episodes leave too few.
 */
#include "replay_check.h"

enum { MOST_ENVS = 3, LONG = 80 };

/* A long episode, one of `second` steps, n_others short ones, and the long one again. announces: each step announces
   the observation after it. */
typedef struct filling {
    int64_t first, second, others, n_others;
    int announces;
} filling;

static int64_t capacity_for(const per_replay_options* options, int64_t transitions, int64_t episode_length) {
    int64_t capacity = -1;
    CHECK_OK(per_replay_compute_capacity(options, transitions, episode_length, &capacity));
    CHECK(capacity % options->n_envs == 0);
    return capacity;
}

/* A step of all environments; every observation differs from the previous one. */
static per_status add_step_of_all(per_replay* replay, int64_t n, int64_t t, int ends, int announces) {
    float observations[MOST_ENVS], next[MOST_ENVS], rewards[MOST_ENVS] = {0.0f};
    uint8_t flags[MOST_ENVS];
    call given;
    for (int64_t i = 0; i < n; ++i) {
        observations[i] = (float)t;
        next[i] = (float)(t + 1);
        flags[i] = (uint8_t)ends;
    }
    fill_call(&given, 1, observations, ends || announces ? next : NULL, rewards, NULL, flags);
    return per_replay_add(replay, &given.steps, NULL, NULL);
}

/* The least number of live transitions after any step, from the end of the first episode on. */
static int64_t fewest_live(const per_replay_options* options, filling filled) {
    per_replay* replay = create_replay(options);
    int64_t t = 0, fewest = INT64_MAX;
    for (int64_t episode = 0; episode < filled.n_others + 3; ++episode) {
        const int is_first = episode == 0 || episode == filled.n_others + 2;
        const int64_t length = is_first ? filled.first : episode == 1 ? filled.second : filled.others;
        int64_t live;
        for (int64_t step = 1; step <= length; ++step) {
            CHECK_OK(add_step_of_all(replay, options->n_envs, t++, step == length, filled.announces));
            CHECK_OK(per_replay_get_live_ids(replay, 0, NULL, &live));
            if ((episode > 0 || step == length) && live < fewest) fewest = live;
        }
    }
    per_replay_free(replay);
    return fewest;
}

/* The least number over fillings with episodes of at least `least` steps. */
static int64_t fewest_of_all(const per_replay_options* options, int64_t least) {
    const int64_t stride = options->sequence_stride != 0 ? options->sequence_stride : 1 + options->sequence_length;
    const int64_t rows = options->capacity / options->n_envs;
    const int64_t most_others = least == 0 ? 0 : rows / least + 1;
    int64_t fewest = INT64_MAX;
    filling filled;
    CHECK(rows < LONG);
    for (filled.announces = options->store_next_observation; filled.announces < 2; ++filled.announces)
        for (filled.n_others = 0; filled.n_others <= most_others; ++filled.n_others)
            for (int64_t shift = 0; shift < stride; ++shift)
                for (int64_t more = 0; more < stride; ++more)
                    for (int64_t longer = 0; longer <= (least == 0 ? 0 : least + stride); ++longer) {
                        filled.first = LONG + shift;
                        filled.others = least == 0 ? LONG : least + more;
                        filled.second = filled.others + longer;
                        int64_t live = fewest_live(options, filled);
                        if (live < fewest) fewest = live;
                    }
    return fewest;
}

static void check_smallest(per_replay_options options, int64_t transitions, int64_t episode_length) {
    per_replay* none;
    options.capacity = capacity_for(&options, transitions, episode_length);
    int64_t fewest = fewest_of_all(&options, episode_length);
    CHECK(fewest >= transitions);
    options.capacity -= options.n_envs;
    if (per_replay_create(&options, &none) != PER_OK) {
        CHECK(strstr(per_last_error(), "a lane has") != NULL || strstr(per_last_error(), "capacity is 0") != NULL);
        return;
    }
    per_replay_free(none);
    fewest = fewest_of_all(&options, episode_length);
    CHECK(fewest < transitions);
}

static void single_transitions(void) {
    static const int64_t lengths[] = {0, 1, 2, 5}, counts[] = {1, 4, 11};
    per_replay_options options = replay_options(0, 1);
    for (options.n_envs = 1; options.n_envs <= MOST_ENVS; options.n_envs += 2)
        for (options.n_step = 1; options.n_step <= 3; options.n_step += 2)
            for (options.frame_stack = 1; options.frame_stack <= 4; options.frame_stack += 3)
                for (options.store_next_observation = 0; options.store_next_observation < 2;
                     ++options.store_next_observation)
                    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; ++i)
                        for (size_t j = 0; j < sizeof counts / sizeof *counts; ++j)
                            check_smallest(options, counts[j], lengths[i]);
}

static void sequences(void) {
    static const struct {
        int64_t length, burn_in, stride, n_step, frame_stack, transitions, episode_length;
    } cases[] = {{3, 0, 0, 1, 1, 5, 4}, {2, 1, 1, 2, 1, 6, 3}, {4, 2, 2, 1, 2, 5, 7}, {3, 2, 3, 3, 1, 4, 3},
                 {1, 0, 1, 1, 1, 7, 2}, {4, 0, 3, 1, 1, 3, 0}, {2, 2, 4, 1, 3, 4, 9}};
    per_replay_options options = replay_options(0, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        options.sequence_length = cases[i].length;
        options.burn_in = cases[i].burn_in;
        options.sequence_stride = cases[i].stride;
        options.n_step = cases[i].n_step;
        options.frame_stack = cases[i].frame_stack;
        options.n_envs = i % 2 == 0 ? 1 : 2;
        options.store_next_observation = i == 4;
        check_smallest(options, cases[i].transitions, cases[i].episode_length);
    }
}

/* By hand: t = 500, (t - 1) / 10 = 49; 2 (500 + 49 + 3 + 4). A stack of one field counts like one of all. */
static void formula_of_the_header(void) {
    per_field field = field_of("observation", PER_UINT8, 0, NULL);
    per_replay_options options = replay_options(0, 2);
    options.n_step = 3;
    options.frame_stack = 4;
    CHECK(capacity_for(&options, 1000, 10) == 1112);
    CHECK(capacity_for(&options, 999, 10) == 1112);
    field.stack = 5;
    options.fields = &field;
    CHECK(capacity_for(&options, 1000, 10) == 1114);
    options.fields = NULL;
    options.n_fields = 0;
    options.capacity = -1; /* ignored */
    CHECK(capacity_for(&options, 1000, 10) == 1112);
    CHECK(capacity_for(&options, 1000, 0) == 1014);
    CHECK(capacity_for(&options, 1000, INT64_MAX) == 1014);
}

/* K steps in each environment, wherever episodes end in them, with overwrite 0. */
static void rollouts_fit(void) {
    enum { K = 12 };
    int64_t live;
    for (int64_t length = 1; length <= K + 1; ++length)
        for (int64_t first = 1; first <= length; ++first) {
            per_replay_options options = replay_options(0, 2);
            options.overwrite = 0;
            options.capacity = capacity_for(&options, K * options.n_envs, length);
            per_replay* replay = create_replay(&options);
            for (int64_t t = 0; t < K; ++t)
                CHECK_OK(
                    add_step_of_all(replay, options.n_envs, t, t >= first - 1 && (t - first + 1) % length == 0, 1));
            CHECK_OK(per_replay_get_live_ids(replay, 0, NULL, &live));
            CHECK(live == K * options.n_envs);
            per_replay_free(replay);
        }
}

static void bad_arguments(void) {
    per_replay_options options = replay_options(100, 1), bad;
    int64_t capacity = -7;
    CHECK_REFUSED(per_replay_compute_capacity(&options, 0, 1, &capacity), "transitions is 0");
    CHECK_REFUSED(per_replay_compute_capacity(&options, 1, -1, &capacity),
                  "episode_length is -1: allowed are 0 .. 9223372036854775807");
    CHECK_REFUSED(per_replay_compute_capacity(&options, (INT64_C(1) << 40) + 1, 1, &capacity),
                  "transitions is 1099511627777");
    CHECK_REFUSED(per_replay_compute_capacity(&options, INT64_C(1) << 40, 1, &capacity),
                  "transitions is 1099511627776: must be less");
    bad = options;
    bad.n_step = 65;
    CHECK_REFUSED(per_replay_compute_capacity(&bad, 1, 1, &capacity), "n_step is 65");
    bad = options;
    bad.n_fields = 300;
    CHECK_REFUSED(per_replay_compute_capacity(&bad, 1, 1, &capacity), "n_fields is 300");
    bad = options;
    bad.sequence_length = INT64_C(1) << 40;
    CHECK_REFUSED(per_replay_compute_capacity(&bad, INT64_C(1) << 40, 1, &capacity), "transitions is");
    bad.sequence_length = 4;
    bad.burn_in = 3;
    CHECK_REFUSED(per_replay_compute_capacity(&bad, 1, 3, &capacity),
                  "episode_length is 3: must be more than burn_in, 3");
    CHECK(capacity == -7);
}

int main(void) {
    single_transitions();
    sequences();
    formula_of_the_header();
    rollouts_fit();
    bad_arguments();
    return 0;
}

/*
 * The same seed and the same calls give the same goals: those of tests/golden/hindsight.csv, which a model wrote that
 * shares nothing with the library (make_hindsight.py says what its lines mean).
 */
#include "replay_check.h"

enum { B = 16 };

static char line[4096];

static per_replay* filled(uint64_t seed, int64_t n, int64_t step) {
    static const float own_goals[64] = {0};
    float observation[64], next[64], reward[64], priorities[64];
    uint8_t terminated[64] = {0}, truncated[64] = {0};
    per_replay_options options = replay_options(60, 1);
    options.seed = seed;
    set_goal_fields(&options);
    per_replay* replay = create_replay(&options);
    for (int64_t t = 0; t < n; ++t) {
        observation[t] = reward[t] = (float)t;
        next[t] = (float)t + 1;
        priorities[t] = t == step;
    }
    truncated[n - 1] = 1;
    per_array given[2] = {array_of(observation, PER_FLOAT32), array_of(own_goals, PER_FLOAT32)};
    per_array next_given[2] = {array_of(next, PER_FLOAT32), array_of(NULL, PER_FLOAT32)};
    per_steps steps = steps_of(n, given, next_given, reward, terminated, truncated);
    steps.priorities = array_of(priorities, PER_FLOAT32);
    CHECK_OK(per_replay_add(replay, &steps, NULL, NULL));
    return replay;
}

int main(void) {
    static const char* const strategies[3] = {"future", "final", "episode"};
    FILE* file = fopen(PER_GOLDEN_HINDSIGHT, "r");
    int n_lines = 0;
    CHECK(file != NULL);
    for (; fgets(line, sizeof line, file) != NULL; ++n_lines) {
        const uint64_t seed = strtoull(strtok(line, ","), NULL, 10);
        const char* const strategy = strtok(NULL, ",");
        const int64_t n = atoi(strtok(NULL, ",")), step = atoi(strtok(NULL, ","));
        const int64_t draws = atoi(strtok(NULL, ","));
        const double k = atof(strtok(NULL, ","));
        per_replay* const replay = filled(seed, n, step);
        float goals[B];
        int64_t ids[B];
        void* fields[2] = {NULL, goals};
        CHECK(strcmp(strtok(NULL, ","), "->") == 0);
        per_hindsight_options options = default_hindsight_options();
        options.achieved_field = 0;
        options.goal_field = 1;
        while (strcmp(strategies[options.strategy], strategy) != 0) ++options.strategy;
        options.fraction = k / (k + 1);
        options.reward = no_reward;
        per_batch batch = default_batch();
        batch.fields = fields;
        batch.ids = ids;
        for (int i = 0; i < draws; ++i) CHECK_OK(per_replay_sample(replay, NULL, 5, &batch, NULL));
        CHECK_OK(sample_with_hindsight(replay, NULL, &options, B, &batch, NULL));
        for (int i = 0; i < B; ++i) {
            const float expected = (float)atoi(strtok(NULL, ",\n"));
            CHECK(ids[i] == step && goals[i] == (expected == -1 ? 0 : expected));
        }
        CHECK(strtok(NULL, ",\n") == NULL);
        per_replay_free(replay);
    }
    CHECK(n_lines == 6);
    fclose(file);
    return 0;
}

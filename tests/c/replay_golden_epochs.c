/*
 * The same seed and the same calls give the same epochs: those of tests/golden/epochs.csv, which a model wrote that
 * shares nothing with the library (make_epochs.py says what its lines mean).
 */
#include "replay_check.h"

static char line[4096];

static per_replay* filled(uint64_t seed, int64_t n, int64_t draws) {
    static rows drawn;
    per_replay_options options = replay_options(50, 1);
    options.seed = seed;
    per_replay* replay = create_replay(&options);
    add_run(replay, 0, n);
    for (int64_t t = 0; t < draws; ++t) draw(replay, 5, &drawn);
    return replay;
}

int main(void) {
    static rows out;
    FILE* file = fopen(PER_GOLDEN_EPOCHS, "r");
    per_replay* replay = NULL;
    per_epochs* walk = NULL;
    int n_lines = 0;
    CHECK(file != NULL);
    fill_rows(&out);
    for (; fgets(line, sizeof line, file) != NULL; ++n_lines) {
        const uint64_t seed = strtoull(strtok(line, ","), NULL, 10);
        const int64_t n = atoi(strtok(NULL, ",")), draws = atoi(strtok(NULL, ","));
        const int epoch = atoi(strtok(NULL, ","));
        int64_t place = 0, count;
        CHECK(strcmp(strtok(NULL, ","), "->") == 0);
        if (epoch == 0) {
            per_epochs_free(walk);
            per_replay_free(replay);
            replay = filled(seed, n, draws);
            CHECK_OK(per_epochs_create(replay, 3, 4, 0, NULL, &walk));
        }
        for (; place < n; place += count) {
            CHECK_OK(synchronized(replay, per_epochs_next(walk, &out.batch, &count, NULL)));
            CHECK(count == (n - place < 4 ? n - place : 4));
            for (int64_t i = 0; i < count; ++i) CHECK(out.ids[i] == atoi(strtok(NULL, ",\n")));
        }
        CHECK(strtok(NULL, ",\n") == NULL);
    }
    CHECK(n_lines == 12);
    fclose(file);
    per_epochs_free(walk);
    per_replay_free(replay);
    return 0;
}

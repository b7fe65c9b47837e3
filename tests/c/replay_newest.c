/*
 * With `newest` k the last k rows of a batch are the live transitions with the largest ids, newest first, with weight
 * 1; the others are the draw of batch_size - k.
 */
#include "replay_check.h"

enum { B = 12, MOST = 400 };

/* Ten transitions 0 .. 9 of priorities 1, 1, 7, 1, 1, 1, 1, 1, 0, 2, whose sum is 16. */
static per_replay* filled(per_replay_options* options) {
    static const int64_t ids[3] = {2, 8, 9};
    static const float priorities[3] = {7, 0, 2};
    options->seed = 11;
    options->alpha = 1;
    per_replay* replay = create_filled(options, 10);
    CHECK_OK(write_priorities(replay, 3, ids, priorities, NULL));
    return replay;
}

static void newest_follow_the_drawn(int32_t scheme) {
    static const float probabilities[3] = {2.0f / 16, 0, 1.0f / 16}, priorities[3] = {2, 0, 1};
    static rows with, without;
    per_replay_options own = replay_options(20, 1);
    own.keep_times_sampled = 1;
    own.scheme = scheme;
    per_replay *replay = filled(&own), *twin = filled(&own);
    per_sample_options options = default_sample_options();
    CHECK(options.newest == 0);
    options.newest = 3;
    int32_t times_sampled[8];
    fill_rows(&with);
    with.batch.times_sampled = times_sampled;
    CHECK_OK(per_replay_sample(replay, &options, 8, &with.batch, NULL));
    draw(twin, 5, &without);
    for (int i = 0; i < 5; ++i)
        CHECK(with.ids[i] == without.ids[i] && with.observation[i] == without.observation[i] &&
              with.weights[i] == without.weights[i] && with.probabilities[i] == without.probabilities[i]);
    for (int i = 0; i < 3; ++i) {
        const int64_t id = 9 - i;
        int32_t uses = 1;
        for (int j = 0; j < 5; ++j) uses += with.ids[j] == id;
        CHECK(with.ids[5 + i] == id && with.observation[5 + i] == (float)id && with.next[5 + i] == (float)id + 1);
        CHECK(with.priorities[5 + i] == priorities[i] && with.weights[5 + i] == 1 && times_sampled[5 + i] == uses);
        if (scheme != PER_WITHOUT_REPLACEMENT) CHECK(with.probabilities[5 + i] == probabilities[i]);
    }
    /* It counts as one draw, and the newest take no random numbers. */
    CHECK(stats_of(replay).samples == 1 && stats_of(replay).beta_step == 1);
    check_same_draw(replay, twin, 9, &with);
    free_both(replay, twin);
}

/* A uniform draw with beta 0: all weights are 1, so the effective size is the batch size. */
static void statistics_are_those_of_the_whole_batch(void) {
    static rows drawn;
    per_replay_options own = replay_options(20, 1);
    own.prioritization = PER_UNIFORM;
    own.scheme = PER_SYSTEMATIC;
    per_replay* replay = filled(&own);
    per_sample_options options = default_sample_options();
    options.newest = 2;
    options.beta = 0;
    draw_with(replay, &options, 12, &drawn); /* 0 .. 9 once each, and 9 and 8 again: ages are 9 .. 0, 0 and 1 */
    const per_replay_statistics statistics = stats_of(replay);
    CHECK(statistics.last_batch_size == 12 && statistics.last_max_age == 9);
    CHECK(statistics.last_mean_age == 46.0 / 12 && statistics.last_effective_size == 12);
    CHECK(statistics.last_duplicates == 2.0 / 12);
    per_replay_free(replay);
}

static int newer(const void* a, const void* b) {
    const int64_t one = *(const int64_t*)a, other = *(const int64_t*)b;
    return (one < other) - (one > other);
}

/* Compares with the sorted list of all live ids, for every k up to a whole batch. */
static void check_newest(per_replay* replay) {
    static int64_t ids[MOST];
    int64_t live = 0;
    CHECK_OK(per_replay_get_live_ids(replay, MOST, ids, &live));
    CHECK(live > 0 && live <= MOST);
    qsort(ids, (size_t)live, sizeof *ids, newer);
    per_sample_options options = default_sample_options();
    for (int64_t k = 1; k < B && k <= live; ++k) {
        options.newest = (int32_t)k;
        int64_t found[B];
        per_batch arrays = default_batch();
        arrays.ids = found;
        CHECK_OK(per_replay_sample(replay, &options, B, &arrays, NULL));
        CHECK(memcmp(found + B - k, ids, (size_t)k * sizeof *ids) == 0);
    }
}

/* Lanes at very different paces, with ends, sequences, an age limit and rows that were cleared. */
static void newest_of_many_environments(int64_t sequence_length, int64_t n_step, int64_t max_age) {
    enum { ENVS = 7 };
    per_replay_options own = replay_options(ENVS * 40, ENVS);
    own.sequence_length = sequence_length;
    own.n_step = n_step;
    own.freshness.max_age = max_age;
    per_replay* replay = create_replay(&own);
    uint32_t random = 5;
    for (int t = 0; t < 1500; ++t) {
        random = random * 1664525u + 1013904223u;
        const int64_t env = random >> 24 < 200 ? 3 : random >> 16 & 255 ? (random >> 8) % 5 : 6;
        add_full(replay, env, (float)t, 0, (random >> 5) % 11 == 0 ? TERMINATED : GOES_ON, (float)t + 1);
        if (t == 700) CHECK_OK(per_replay_clear(replay, NULL));
        if (t % 97 == 96 && live_of(replay) > 0) check_newest(replay);
    }
    per_replay_free(replay);
}

static void too_few_live_transitions_change_nothing(void) {
    per_replay_options own = replay_options(20, 1);
    per_replay* replay = create_filled(&own, 3);
    per_sample_options options = default_sample_options();
    int64_t ids[B];
    float weights[B];
    per_batch arrays = default_batch();
    arrays.ids = ids;
    arrays.weights = weights;
    const per_replay_statistics before = stats_of(replay);
    options.newest = 4;
    CHECK_BAD(per_replay_sample(replay, &options, 8, &arrays, NULL), PER_ERROR_INVALID_ARGUMENT,
              "newest is 4: only 3 transitions are live", "or draws had newest above what is live");
    for (int i = 0; on_cuda() && i < 8; ++i) CHECK(ids[i] == -1 && weights[i] == 0);
    check_same_statistics(replay, &before);
    options.newest = 3;
    CHECK_OK(per_replay_sample(replay, &options, 8, &arrays, NULL));
    CHECK(ids[5] == 2 && ids[6] == 1 && ids[7] == 0);
    per_replay_free(replay);
}

static void what_has_no_newest_rows_says_so(void) {
    per_replay_options own = replay_options(20, 1);
    per_replay* replay = filled(&own);
    per_sample_options options = default_sample_options();
    per_batch arrays = default_batch();
    int64_t ids[B] = {0};
    arrays.ids = ids;
    options.newest = 8;
    CHECK_REFUSED(per_replay_sample(replay, &options, 8, &arrays, NULL), "newest is 8: allowed are 0 .. 7");
    options.newest = -1;
    CHECK_REFUSED(per_replay_sample(replay, &options, 8, &arrays, NULL), "newest is -1: allowed are 0 .. 7");
    options.newest = 1;
    CHECK_REFUSED(per_replay_get_windows(replay, &options, PER_INVALID_ERROR, 1, ids, &arrays, NULL),
                  "newest is 1: allowed for named rows is 0");
    per_source source = {.replay = replay, .share = 1};
    CHECK_REFUSED(per_mixture_sample(&source, 1, &options, 8, &arrays, NULL, NULL),
                  "newest is 1: allowed in a mixture is 0");
    per_loader_options loading = default_loader_options();
    loading.batch_size = 8;
    loading.sample = &options;
    loading.device = own.device;
    per_loader* loader;
    CHECK_REFUSED(per_loader_create(replay, &loading, &loader), "newest is 1: allowed in a loader is 0");
    per_replay_free(replay);
    own.scheme = PER_WITHOUT_REPLACEMENT;
    own.max_times_sampled = 3;
    replay = filled(&own);
    CHECK_FAILS(per_replay_sample(replay, &options, 8, &arrays, NULL), PER_ERROR_UNSUPPORTED,
                "newest is 1: allowed is 0, as max_times_sampled of the buffer is 3");
    per_replay_free(replay);
}

int main(void) {
    for (int32_t scheme = PER_STRATIFIED; scheme <= PER_WITHOUT_REPLACEMENT; ++scheme) newest_follow_the_drawn(scheme);
    statistics_are_those_of_the_whole_batch();
    newest_of_many_environments(0, 1, -1);
    newest_of_many_environments(0, 3, 17);
    newest_of_many_environments(4, 2, -1);
    too_few_live_transitions_change_nothing();
    what_has_no_newest_rows_says_so();
    return 0;
}

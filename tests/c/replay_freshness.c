/*
 * Freshness: P(i) in proportion to p_i^alpha 2^(-age_i / half_life), compared with the formula in double precision over
 * histories of many half-lives, and with the frequencies of draws; max_age; and errors by name.
 */
#include "replay_check.h"
#include "settings.h"
#include "struct_calls.h"

enum { ROWS = 400, N_DRAWS = 200000, BATCH = 1000, N_RATED = 300 };

typedef struct expected {
    int64_t n;
    int64_t ids[2 * ROWS];
    double p[2 * ROWS]; /* probabilities */
} expected;

static per_replay_options fresh_options(int64_t n_envs, double half_life, int64_t max_age, int32_t age) {
    per_replay_options options = replay_options(ROWS * n_envs, n_envs);
    options.store_next_observation = 1;
    options.freshness.half_life = half_life;
    options.freshness.max_age = max_age;
    options.freshness.age = age;
    return options;
}

static void set_version(per_replay* replay, int64_t version) {
    CHECK_OK(change_version(replay, version, NULL));
}

static int is_near(double value, double expected, double error) {
    return fabs(value - expected) <= error;
}

/* Priorities and versions by id, of all that was ever added. */
static float given[1 << 16];
static int64_t version_of[1 << 16];
static int64_t n_added;

/* Adds `length` steps of each environment, with priorities over twenty doublings. */
static void add_rated(per_replay* replay, int64_t n_envs, int64_t length, int64_t version, uint64_t* state) {
    static float values[4096], priorities[4096];
    call steps;
    for (int64_t i = 0; i < length * n_envs; ++i) {
        priorities[i] = ldexpf(1 + (float)(next_random(state) % 1000) / 1000, (int)(next_random(state) % 20) - 10);
        given[n_added] = priorities[i];
        version_of[n_added++] = version;
    }
    fill_call(&steps, length, values, values, values, NULL, NULL);
    steps.steps.priorities = array_of(priorities, PER_FLOAT32);
    CHECK_OK(per_replay_add(replay, &steps.steps, NULL, NULL));
}

/* Updates N_RATED of the latest `n` transitions, some twice. If `other` is not NULL, the update is one of a mixture, and
 * every third entry is for `other`. */
static void rate_again(per_replay* replay, per_replay* other, int64_t n, uint64_t* state) {
    int64_t ids[N_RATED];
    float priorities[N_RATED];
    int32_t source_of[N_RATED];
    const per_source sources[] = {{.replay = other, .share = 0.5}, {.replay = replay, .share = 0.5}};
    for (int i = 0; i < N_RATED; ++i) {
        ids[i] = n_added - 1 - (int64_t)(next_random(state) % (uint64_t)n) % n_added;
        priorities[i] = (float)(1 + next_random(state) % 30);
        source_of[i] = other == NULL || i % 3 != 0;
        if (source_of[i] == 1)
            given[ids[i]] = priorities[i]; /* the last entry for an id wins */
        else
            ids[i] %= ROWS;
    }
    if (other == NULL) {
        CHECK_OK(write_priorities(replay, N_RATED, ids, priorities, NULL));
    } else {
        per_priorities update = priorities_given(N_RATED, ids);
        update.priorities = priorities;
        CHECK_OK(per_mixture_update_priorities(sources, 2, &update, source_of, NULL));
    }
}

/* The law, with an age of 0 for `now`: a number of a row, or a version. */
static void law_of(per_replay* replay, const per_replay_options* options, double alpha, int64_t now, expected* out) {
    double total = 0;
    CHECK_OK(per_replay_get_live_ids(replay, 2 * ROWS, out->ids, &out->n));
    for (int64_t i = 0; i < out->n; ++i) {
        const int64_t id = out->ids[i];
        const int64_t born = options->freshness.age == PER_AGE_STEPS ? id / options->n_envs : version_of[id];
        const double p = given[id];
        out->p[i] = pow(p, alpha) * exp2(-(double)(now - born) / options->freshness.half_life);
        total += out->p[i];
    }
    for (int64_t i = 0; i < out->n; ++i)
        out->p[i] = (1 - options->uniform_fraction) * out->p[i] / total + options->uniform_fraction / (double)out->n;
    CHECK(is_near(stats_of(replay).total, total, 1e-6 * total));
}

/* Masses are rounded up to whole units, of which the largest has about 2^46: so even small P are within 2^-30. */
static void check_law(per_replay* replay, const per_replay_options* options, double alpha, int64_t now) {
    static expected law;
    static float probabilities[2 * ROWS], weights[2 * ROWS];
    per_sample_options raw = default_sample_options();
    per_batch batch = default_batch();
    law_of(replay, options, alpha, now, &law);
    raw.normalize_weights = PER_NONE;
    raw.beta = 1;
    batch.probabilities = probabilities;
    batch.weights = weights;
    CHECK_OK(per_replay_get_windows(replay, &raw, PER_INVALID_ERROR, law.n, law.ids, &batch, NULL));
    for (int64_t i = 0; i < law.n; ++i) {
        CHECK(probabilities[i] > 0);
        CHECK(is_near(probabilities[i], law.p[i], 1e-6 * law.p[i] + 0x1p-30));
        if (law.p[i] > 1e-6)
            CHECK(is_near(weights[i], 1 / ((double)law.n * law.p[i]), 3e-3 / ((double)law.n * law.p[i])));
    }
}

/* Ages in steps, over 100 half-lives and more: the leaves are rebased some ten times. Some updates are of transitions
 * that have been overwritten or wait for their windows, and with several environments some are those of a mixture. */
static void law_in_steps(int64_t n_envs, double half_life, int32_t normalize) {
    per_replay_options options = fresh_options(n_envs, half_life, -1, PER_AGE_STEPS);
    uint64_t state = 3;
    int64_t rows = 0;
    options.normalize_weights = normalize;
    options.uniform_fraction = n_envs == 2 ? 0.25 : 0;
    options.n_step = n_envs == 2 ? 3 : 1;
    per_replay* const replay = create_replay(&options);
    per_replay* const other = create_replay(&options);
    n_added = 0;
    add_rated(other, n_envs, ROWS, 0, &state);
    n_added = 0;
    while ((double)rows < 300 * half_life) {
        const int64_t length = 1 + (int64_t)(next_random(&state) % 90);
        add_rated(replay, n_envs, length, 0, &state);
        rows += length;
        rate_again(replay, n_envs > 1 && rows % 2 == 0 ? other : NULL, rows % 3 == 0 ? 3 * ROWS : 40, &state);
        check_law(replay, &options, options.alpha, rows - 1);
    }
    per_replay_free(other);
    per_replay_free(replay);
}

/* The same in versions, with updates and a new alpha, and versions that jump by 200 half-lives. */
static void law_in_versions(void) {
    per_replay_options options = fresh_options(2, 2, -1, PER_AGE_VERSIONS);
    per_replay* const replay = create_replay(&options);
    uint64_t state = 4;
    int64_t version = 0;
    double alpha = options.alpha;
    n_added = 0;
    for (int round = 0; round < 60; ++round) {
        set_version(replay, version += round % 20 == 19 ? 400 : (int64_t)(next_random(&state) % 4));
        add_rated(replay, 2, 1 + (int64_t)(next_random(&state) % 60), version, &state);
        rate_again(replay, NULL, 50, &state);
        if (round == 30) {
            CHECK_OK(change_alpha(replay, alpha = 1, NULL));
        }
        check_law(replay, &options, alpha, version);
        CHECK(stats_of(replay).version == version);
    }
    per_replay_free(replay);
}

/* The same across episodes. Their final observations take rows without a version of their own. Alpha changes often. */
static void law_in_versions_across_episodes(void) {
    enum { MOST = 40 };
    per_replay_options options = fresh_options(1, 2, -1, PER_AGE_VERSIONS);
    options.store_next_observation = 0;
    per_replay* const replay = create_replay(&options);
    uint64_t state = 7;
    int64_t version = 0;
    float observation = 0;
    for (int round = 0; round < 80; ++round) {
        int64_t ids[MOST];
        float priorities[MOST];
        const int64_t length = 1 + (int64_t)(next_random(&state) % MOST);
        set_version(replay, version += (int64_t)(next_random(&state) % 3));
        for (int64_t i = 0; i < length; ++i, ++observation) {
            const int ends = next_random(&state) % 5 == 0;
            ids[i] = add_full(replay, 0, observation, 0, ends ? TRUNCATED : GOES_ON, observation + (ends ? 0.5f : 1));
            given[ids[i]] = priorities[i] = (float)(1 + next_random(&state) % 30);
            version_of[ids[i]] = version;
        }
        CHECK_OK(write_priorities(replay, length, ids, priorities, NULL));
        const double alpha = round % 3 == 0 ? 1 : 0.5;
        CHECK_OK(change_alpha(replay, alpha, NULL));
        check_law(replay, &options, alpha, version);
    }
    per_replay_free(replay);
}

/* Old transitions keep their shares among themselves, however late it is: time alone changes nothing. */
static void time_alone_changes_no_share(void) {
    per_replay_options options = fresh_options(1, 1, -1, PER_AGE_VERSIONS);
    per_replay* const replay = create_replay(&options);
    uint64_t state = 5;
    n_added = 0;
    add_rated(replay, 1, 100, 0, &state);
    set_version(replay, INT32_MAX);
    options.freshness.half_life = INFINITY; /* of the formula: all are equally old */
    static expected law;
    static float probabilities[2 * ROWS];
    per_batch batch = default_batch();
    double total = 0;
    CHECK_OK(per_replay_get_live_ids(replay, 2 * ROWS, law.ids, &law.n));
    batch.probabilities = probabilities;
    CHECK_OK(per_replay_get_windows(replay, NULL, PER_INVALID_ERROR, law.n, law.ids, &batch, NULL));
    for (int64_t i = 0; i < law.n; ++i) total += pow((double)given[law.ids[i]], options.alpha);
    for (int64_t i = 0; i < law.n; ++i)
        CHECK(is_near(probabilities[i], pow((double)given[law.ids[i]], options.alpha) / total, 1e-6));
    per_replay_free(replay);
}

/*
 * Chi-square of N_DRAWS independent draws against the formula; transitions that are expected less than 10 times form
 * one class. Seed 11. The bound is the mean plus 6 standard deviations of the distribution: by its Wilson-Hilferty
 * approximation a false alarm has a probability below 1e-7.
 */
static void draws_follow_the_law(void) {
    per_replay_options options = fresh_options(1, 60, -1, PER_AGE_STEPS);
    static expected law;
    static int64_t ids[BATCH];
    static double counts[2 * ROWS];
    uint64_t state = 6;
    double chi_square = 0, rest = 0, rest_expected = 0, classes = 0;
    const int n_draws = on_cuda() ? N_DRAWS / 20 : N_DRAWS;
    options.scheme = PER_INDEPENDENT;
    options.seed = 11;
    per_replay* const replay = create_replay(&options);
    n_added = 0;
    for (int i = 0; i < 50; ++i) add_rated(replay, 1, 60, 0, &state);
    law_of(replay, &options, options.alpha, n_added - 1, &law);
    memset(counts, 0, sizeof counts);
    for (int i = 0; i < n_draws / BATCH; ++i) {
        per_batch batch = default_batch();
        batch.ids = ids;
        CHECK_OK(per_replay_sample(replay, NULL, BATCH, &batch, NULL));
        for (int k = 0; k < BATCH; ++k) counts[ids[k] - law.ids[0]] += 1;
    }
    for (int64_t i = 0; i < law.n; ++i) {
        const double mean = law.p[i] * n_draws;
        if (mean < 10) {
            rest += counts[i];
            rest_expected += mean;
            continue;
        }
        chi_square += (counts[i] - mean) * (counts[i] - mean) / mean;
        classes += 1;
    }
    if (rest_expected > 10) {
        chi_square += (rest - rest_expected) * (rest - rest_expected) / rest_expected;
        classes += 1;
    }
    CHECK(classes > 50);
    CHECK(chi_square < classes - 1 + 6 * sqrt(2 * (classes - 1)));
    per_replay_free(replay);
}

static per_shard_summary summary_of(per_replay* replay, int32_t measured_scale, int64_t measured_reference) {
    per_shard_summary summary;
    CHECK_OK(per_replay_summarize(replay, measured_scale, measured_reference, &summary, sizeof summary));
    return summary;
}

/*
 * Leaves of 1 are 2^(birth / 8 - reference) in a lane of 64 rows: masses at scale 36 are ceil(2^(birth / 8)), and stay if
 * reference and scale rise by as much. At the reference 164 and the scale 132 all leaves are least, 2^-126.
 */
static void a_reference_is_raised(void) {
    per_replay_options options = fresh_options(1, 8, -1, PER_AGE_STEPS);
    options.capacity = 64;
    options.normalize_weights = PER_BUFFER_MAX;
    per_replay* const replay = create_replay(&options);
    uint64_t total = 0;
    for (int t = 0; t < 64; ++t) {
        add_full(replay, 0, (float)t, 0, GOES_ON, (float)(t + 1));
        total += (uint64_t)ceil(exp2(t / 8.0));
    }
    CHECK_OK(per_replay_set_scale(replay, 36, 0));
    CHECK(summary_of(replay, PER_SCALE_AUTOMATIC, 0).total_mass == total);
    for (int32_t raised = 0; raised <= 64; raised += 32) {
        per_shard_summary summary = summary_of(replay, 36 + raised, 36 + raised);
        CHECK(summary.measured_scale == 36 + raised && summary.measured_reference == 36 + raised);
        CHECK(summary.measured_low == total && summary.measured_high == 0);
        CHECK(summary.largest_leaf == ldexpf((float)exp2(7.875), -36 - raised));
        CHECK_OK(per_replay_set_scale(replay, 36 + raised, 36 + raised));
        summary = summary_of(replay, 0, 36);
        CHECK(summary.reference == 36 + raised && summary.scale == 36 + raised && summary.is_scale_fixed == 1);
        CHECK(summary.measured_reference == summary.reference); /* not below it */
        CHECK(summary.total_mass == total && summary.smallest_mass == 1);
    }
    CHECK(summary_of(replay, 132, 164).measured_low == 64 << 6);
    CHECK_FAILS(per_replay_set_scale(replay, 178, 164), PER_ERROR_INVALID_ARGUMENT,
                "scale is 178: allowed are -120 .. 177");
    CHECK(summary_of(replay, PER_SCALE_AUTOMATIC, 0).reference == 100);
    CHECK_OK(per_replay_set_scale(replay, 132, 164));
    CHECK(summary_of(replay, PER_SCALE_AUTOMATIC, 0).total_mass == 64 << 6);
    CHECK(summary_of(replay, PER_SCALE_AUTOMATIC, 0).smallest_mass == 1 << 6);
    CHECK_OK(per_replay_set_scale(replay, PER_SCALE_AUTOMATIC, 0)); /* 2^-126 has 2^45 units */
    CHECK(summary_of(replay, PER_SCALE_AUTOMATIC, 0).scale == 171);
    CHECK(summary_of(replay, PER_SCALE_AUTOMATIC, 0).reference == 164);
    per_replay_free(replay);

    options = fresh_options(1, 0, -1, PER_AGE_STEPS);
    per_replay* const plain = create_replay(&options);
    CHECK_FAILS(per_replay_set_scale(plain, 0, 36), PER_ERROR_INVALID_ARGUMENT,
                "reference is 36: must be 0 without half_life");
    CHECK(summary_of(plain, 0, 0).measured_reference == 0);
    per_replay_free(plain);
}

/* When the end of an episode makes several rows live, the latest decides whether the reference is raised: at 32
 * half-lives. */
static void rows_that_become_live_together_raise_the_reference(int32_t max_times_sampled) {
    for (int last = 31; last <= 34; ++last) {
        per_replay_options options = fresh_options(1, 1, -1, PER_AGE_STEPS);
        options.n_step = 4;
        options.keep_times_sampled = max_times_sampled > 0;
        options.max_times_sampled = max_times_sampled;
        options.scheme = PER_WITHOUT_REPLACEMENT;
        per_replay* const replay = create_replay(&options);
        for (int t = 0; t <= last; ++t)
            add_full(replay, 0, (float)t, 0, t < last ? GOES_ON : TERMINATED, (float)(t + 1));
        CHECK(live_of(replay) == last + 1);
        CHECK(summary_of(replay, PER_SCALE_AUTOMATIC, 0).reference == (last < 32 ? 36 : 68));
        per_replay_free(replay);
    }
}

static void max_age_in_steps(void) {
    per_replay_options options = fresh_options(2, 0, 9, PER_AGE_STEPS);
    per_replay* const replay = create_replay(&options);
    int64_t ids[2 * ROWS], count;
    for (int t = 0; t < 30; ++t) {
        add_full(replay, 0, (float)t, 0, GOES_ON, (float)(t + 1));
        CHECK(live_of(replay) == (t < 10 ? t + 1 : 10)); /* the newest, of age 0, to that of age 9 */
    }
    for (int t = 0; t < 12; ++t) add_full(replay, 1, (float)t, 0, GOES_ON, (float)(t + 1));
    CHECK_OK(per_replay_get_live_ids(replay, 2 * ROWS, ids, &count));
    CHECK(count == 20 && ids[0] == 2 * 20 && ids[9] == 2 * 29 && ids[10] == 2 * 2 + 1 && ids[19] == 2 * 11 + 1);
    per_replay_free(replay);
}

/* Rows too old before their windows are complete are never drawn; a priority for them is stale. */
static void max_age_in_versions(void) {
    per_replay_options options = fresh_options(1, 0, 1, PER_AGE_VERSIONS);
    options.n_step = 3;
    per_replay* const replay = create_replay(&options);
    const float one = 1;
    int64_t ids[2 * ROWS], count;
    for (int t = 0; t < 6; ++t) add_full(replay, 0, (float)t, 0, GOES_ON, (float)(t + 1));
    CHECK(live_of(replay) == 4);
    set_version(replay, 1);
    CHECK(live_of(replay) == 4);
    for (int t = 6; t < 8; ++t) add_full(replay, 0, (float)t, 0, GOES_ON, (float)(t + 1));
    CHECK(live_of(replay) == 6);
    set_version(replay, 2); /* ids 0 .. 5 have version 0: all that are live */
    CHECK(live_of(replay) == 0);
    set_version(replay, 3); /* ids 6 and 7 have version 1, and wait */
    add_full(replay, 0, 8, 0, GOES_ON, 9);
    add_full(replay, 0, 9, 0, TERMINATED, 10);
    CHECK_OK(per_replay_get_live_ids(replay, 2 * ROWS, ids, &count));
    CHECK(count == 2 && ids[0] == 8 && ids[1] == 9);
    ids[0] = 7;
    CHECK_OK(write_priorities(replay, 1, ids, &one, NULL));
    CHECK(stats_of(replay).stale_updates == 1 && live_of(replay) == 2);
    per_replay_free(replay);
}

/* A transition that became too old is never live again, even if a larger n_step makes it wait for its window again. */
static void a_change_of_n_step_revives_nothing(void) {
    per_replay_options options = fresh_options(1, 0, 0, PER_AGE_VERSIONS);
    options.store_next_observation = 0;
    options.capacity = 20;
    per_replay* const replay = create_replay(&options);
    int64_t ids[2 * ROWS], count;
    for (int t = 0; t < 10; ++t) add_full(replay, 0, (float)t, 0, GOES_ON, (float)(t + 1));
    set_version(replay, 1);
    CHECK_OK(change_n_step(replay, 5, NULL));
    for (int t = 10; t < 14; ++t) add_full(replay, 0, (float)t, 0, GOES_ON, (float)(t + 1));
    CHECK(live_of(replay) == 0);
    CHECK_OK(change_n_step(replay, 1, NULL));
    CHECK_OK(per_replay_get_live_ids(replay, 2 * ROWS, ids, &count));
    CHECK(count == 4 && ids[0] == 10 && ids[3] == 13);
    per_replay_free(replay);
}

static void check_refused(per_replay_options options, const char* text) {
    per_replay* replay;
    CHECK_FAILS(per_replay_create(&options, &replay), PER_ERROR_INVALID_ARGUMENT, text);
}

static void errors_name_the_option(void) {
    const per_replay_options fine = fresh_options(1, 10, 20, PER_AGE_STEPS);
    per_replay_options options = fine;
    per_replay_settings settings = unchanged_settings();
    per_sample_options by_rank = default_sample_options();
    per_shard_summary summary;
    per_batch batch = default_batch();
    int64_t id;
    const double bad[] = {NAN, -1, 0.009, 2e12, INFINITY};
    for (int i = 0; i < 5; ++i) {
        options.freshness.half_life = bad[i];
        check_refused(options, "half_life is");
    }
    options = fine;
    options.freshness.max_age = -2;
    check_refused(options, "max_age is -2: allowed are -1 ..");
    options.freshness.max_age = 0;
    check_refused(options, "max_age is 0: must be at least 1");
    options = fine;
    options.freshness.age = 2;
    check_refused(options, "age is 2: allowed are 0 .. 1");
    options = fine;
    options.freshness.reserved = 1;
    check_refused(options, "freshness.reserved is 1");
    options = fine;
    options.prioritization = PER_RANK;
    check_refused(options, "prioritization is PER_RANK (1): must be PER_PROPORTIONAL (0) where half_life is given");
    options.prioritization = PER_UNIFORM;
    check_refused(options, "prioritization is PER_UNIFORM (2): must be PER_PROPORTIONAL (0) where half_life is given");

    per_replay* replay = create_replay(&fine);
    add_full(replay, 0, 0, 0, GOES_ON, 1);
    by_rank.prioritization = PER_RANK;
    batch.ids = &id;
    CHECK_FAILS(per_replay_sample(replay, &by_rank, 1, &batch, NULL), PER_ERROR_INVALID_ARGUMENT,
                "prioritization is PER_RANK (1): must be PER_PROPORTIONAL (0) where half_life is given");
    CHECK_OK(per_replay_summarize(replay, PER_SCALE_AUTOMATIC, 0, &summary, sizeof summary));
    CHECK(summary.reference == 36);
    CHECK_FAILS(per_replay_summarize(replay, 0, 37, &summary, sizeof summary), PER_ERROR_INVALID_ARGUMENT,
                "measured_reference is 37: allowed are 36 .. 1125899906842660, in steps of 32");
    CHECK_FAILS(per_replay_set_scale(replay, 0, 4), PER_ERROR_INVALID_ARGUMENT,
                "reference is 4: allowed are 36 .. 1125899906842660, in steps of 32");
    CHECK_FAILS(change_version(replay, 1, NULL), PER_ERROR_INVALID_ARGUMENT,
                "version is 1: only a buffer whose age is PER_AGE_VERSIONS (1) has versions");
    per_replay_free(replay);

    options = fresh_options(1, 10, -1, PER_AGE_VERSIONS);
    replay = create_replay(&options);
    set_version(replay, 5);
    set_version(replay, 5);
    settings.version = 4;
    settings.gamma = 0.5;
    CHECK_FAILS(per_replay_change_settings(replay, &settings, NULL), PER_ERROR_INVALID_ARGUMENT,
                "version is 4: allowed are 5 .. 2147483647");
    CHECK(stats_of(replay).version == 5 && stats_of(replay).gamma == 0.99);
    per_replay_free(replay);
}

int main(void) {
    law_in_steps(1, 40, PER_BATCH_MAX);
    law_in_steps(2, 7.5, PER_BUFFER_MAX);
    law_in_versions();
    law_in_versions_across_episodes();
    time_alone_changes_no_share();
    draws_follow_the_law();
    a_reference_is_raised();
    rows_that_become_live_together_raise_the_reference(0);
    rows_that_become_live_together_raise_the_reference(3);
    max_age_in_steps();
    max_age_in_versions();
    a_change_of_n_step_revives_nothing();
    errors_name_the_option();
    return 0;
}

/*
 * A mixture's rows are those that its buffers would have drawn, and its weights follow from the definition in
 * per/mixture.h, computed here. Shares are exact in the long run. A call that fails changes none of the buffers, and a
 * call that waits for one buffer holds none of the others.
 */
#define _POSIX_C_SOURCE 200809L
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checkpoints.h"
#include "posix_check.h"
#include "saved_bytes.h"
#include "thread_check.h"

enum { SOURCES = 3, B = 40 };

static const double shares[SOURCES] = {0.5, 0.3, 0.2};
static const int64_t lives[SOURCES] = {57, 40, 120};

/* Buffer k of a mixture: all but the arrays of batches differs from buffer to buffer. */
static per_replay* buffer_of(int k, int64_t sequence_length) {
    per_replay_options options = replay_options(200, 1);
    options.seed = 5 + (uint64_t)k;
    options.alpha = 0.4 + 0.2 * k;
    options.beta = 0.3 + 0.1 * k;
    options.beta_steps = 10;
    options.n_step = 2;
    options.sequence_length = sequence_length;
    options.sequence_stride = sequence_length > 0 ? 1 : 0;
    per_replay* replay = create_replay(&options);
    const int64_t n = lives[k] + (sequence_length > 0 ? sequence_length - 1 : 0) + 2;
    float observations[200], rewards[200], priorities[200];
    for (int64_t t = 0; t < n; ++t) {
        observations[t] = 1000.0f * (float)k + (float)t;
        rewards[t] = (float)(t % 5);
        priorities[t] = (float)(t % 7 + k);
    }
    call given;
    fill_call(&given, n, observations, NULL, rewards, NULL, NULL);
    given.steps.priorities = array_of(priorities, PER_FLOAT32);
    CHECK_OK(per_replay_add(replay, &given.steps, NULL, NULL));
    return replay;
}

static void make_sources(per_source* sources, per_replay** twins, int64_t sequence_length) {
    for (int k = 0; k < SOURCES; ++k) {
        sources[k] = (per_source){.replay = buffer_of(k, sequence_length), .share = shares[k] * 8};
        twins[k] = buffer_of(k, sequence_length);
    }
}

static void free_sources(const per_source* sources, per_replay* const* twins) {
    for (int k = 0; k < SOURCES; ++k) free_both(sources[k].replay, twins[k]);
}

typedef struct mixed {
    rows of_rows;
    int32_t source_of[MANY];
} mixed;

/* rows for sequences too: 8 steps of an observation each, and no next observations. */
static void fill_mixed(mixed* out, int64_t sequence_length) {
    fill_rows(&out->of_rows);
    memset(out->source_of, 0, sizeof out->source_of);
    if (sequence_length > 0) out->of_rows.batch.next_fields = NULL;
}

/* The weights and probabilities by definition, from those of the buffers alone; beta NAN: that of each buffer. */
static void check_weights(const mixed* drawn, const double* alone, const double* betas, int64_t n_live,
                          int32_t normalize_weights) {
    double weights[B], largest = 0;
    for (int i = 0; i < B; ++i) {
        const int k = drawn->source_of[i];
        const double p = shares[k] * alone[i];
        CHECK(fabs(drawn->of_rows.probabilities[i] - p) <= 1e-6 * p);
        weights[i] = pow((double)n_live * p, -betas[k]);
    }
    /* With different betas (N P)^-beta of the row of least P need not be the largest: the definition divides each row's
       by (N min P)^-beta with its own beta, so that no weight is above 1. */
    double least = INFINITY;
    for (int i = 0; i < B; ++i) least = fmin(least, shares[drawn->source_of[i]] * alone[i]);
    for (int i = 0; i < B; ++i) {
        largest = pow((double)n_live * least, -betas[drawn->source_of[i]]);
        const double expected = normalize_weights == PER_NONE ? weights[i] : weights[i] / largest;
        CHECK(fabs(drawn->of_rows.weights[i] - expected) <= 2e-6 * expected);
    }
}

/* TD errors of two critics, or priorities, that follow from the id. The result points to memory of the next call. */
static per_priorities values_given(int64_t count, const int64_t* ids, int by_errors, int64_t sequence_length) {
    static float values[2 * B * 8];
    per_priorities given = priorities_given(count, ids);
    const int64_t width = by_errors && sequence_length > 0 ? sequence_length : 1;
    given.n_critics = by_errors ? 2 : 1;
    given.n_steps = by_errors ? sequence_length : 0;
    for (int64_t critic = 0; critic < given.n_critics; ++critic)
        for (int64_t i = 0; i < count; ++i)
            for (int64_t t = 0; t < width; ++t)
                values[(critic * count + i) * width + t] = (float)((ids[i] + 3 * t) % 11 + critic) + 0.5f;
    *(by_errors ? &given.td_errors : &given.priorities) = values;
    return given;
}

static void rows_are_those_of_the_buffers(int64_t sequence_length, const per_sample_options* options) {
    static mixed drawn;
    static rows of_twin;
    per_source sources[SOURCES];
    per_replay* twins[SOURCES];
    double betas[SOURCES], alone[B];
    int64_t totals[SOURCES] = {0}, n_live = 0;
    make_sources(sources, twins, sequence_length);
    for (int k = 0; k < SOURCES; ++k) n_live += live_of(twins[k]);
    for (int round = 1; round <= (on_cuda() ? 2 : 3); ++round) {
        fill_mixed(&drawn, sequence_length);
        CHECK_OK(per_mixture_sample(sources, SOURCES, options, B, &drawn.of_rows.batch, drawn.source_of, NULL));
        int64_t first = 0;
        for (int k = 0; k < SOURCES; ++k) {
            int64_t n = 0;
            while (first + n < B && drawn.source_of[first + n] == k) ++n;
            totals[k] += n;
            CHECK(fabs((double)totals[k] - shares[k] * B * round) < 1);
            betas[k] = isnan(options->beta) ? stats_of(twins[k]).beta : options->beta;
            per_sample_options of_part = *options;
            of_part.normalize_weights = PER_NONE;
            fill_rows(&of_twin);
            if (sequence_length > 0) of_twin.batch.next_fields = NULL;
            CHECK_OK(per_replay_sample(twins[k], &of_part, n, &of_twin.batch, NULL));
            const int64_t steps = sequence_length > 0 ? sequence_length : 1;
            const int64_t seen = sequence_length > 0 ? sequence_length + 2 : 1;
            const rows* const all = &drawn.of_rows;
#define CHECK_PART(member, width) \
    CHECK(memcmp(all->member + first * (width), of_twin.member, (size_t)(n * (width)) * sizeof of_twin.member[0]) == 0)
            CHECK_PART(observation, seen);
            CHECK_PART(next, 1);
            CHECK_PART(reward, steps);
            CHECK_PART(discount, steps);
            CHECK_PART(gamma_m, steps);
            CHECK_PART(n_steps, steps);
            CHECK_PART(terminated, steps);
            CHECK_PART(truncated, steps);
            CHECK_PART(priorities, 1);
            CHECK_PART(ids, 1);
            for (int64_t i = 0; i < n; ++i) alone[first + i] = of_twin.probabilities[i];
            first += n;
        }
        CHECK(first == B);
        check_weights(&drawn, alone, betas, n_live, options->normalize_weights);

        /* An update in another order. */
        int64_t ids[B], own_ids[B];
        int32_t source_of[B];
        for (int i = 0; i < B; ++i) {
            ids[i] = drawn.of_rows.ids[(i * 7) % B];
            source_of[i] = drawn.source_of[(i * 7) % B];
        }
        const int by_errors = round != 2;
        per_priorities given = values_given(B, ids, by_errors, sequence_length);
        CHECK_OK(per_mixture_update_priorities(sources, SOURCES, &given, source_of, NULL));
        for (int k = 0; k < SOURCES; ++k) {
            int64_t n = 0;
            for (int i = 0; i < B; ++i)
                if (source_of[i] == k) own_ids[n++] = ids[i];
            given = values_given(n, own_ids, by_errors, sequence_length);
            CHECK_OK(per_replay_update_priorities(twins[k], &given, NULL));
        }
    }
    for (int k = 0; k < SOURCES; ++k) check_same_saves(sources[k].replay, twins[k]);
    free_sources(sources, twins);
}

static void all_kinds_of_draws(int64_t sequence_length) {
    const double fractions[] = {0.0, 0.25}, betas[] = {NAN, 0.7};
    int i = 0;
    for (int32_t scheme = PER_STRATIFIED; scheme <= PER_WITHOUT_REPLACEMENT; ++scheme)
        for (int32_t prioritization = PER_PROPORTIONAL; prioritization <= PER_UNIFORM; ++prioritization)
            for (int k = 0; k < 2; ++k, ++i) {
                per_sample_options options = default_sample_options();
                options.scheme = scheme;
                options.prioritization = prioritization;
                options.uniform_fraction = fractions[k];
                options.beta = betas[(i / 2) % 2];
                options.normalize_weights = (i / 4) % 2 ? PER_NONE : PER_BATCH_MAX;
                options.n_step_min = sequence_length == 0 && i % 3 == 0 ? 1 : 0;
                options.n_step = options.n_step_min != 0 ? 2 : 0;
                rows_are_those_of_the_buffers(sequence_length, &options);
            }
}

/* 33 rows in equal shares: 17 and 16, 16 and 17, and so on. A share of 0 gets none. */
static void halves_take_turns(void) {
    static mixed drawn;
    per_source sources[SOURCES];
    per_replay* twins[SOURCES];
    make_sources(sources, twins, 0);
    sources[0].share = sources[2].share = 1;
    sources[1].share = 0;
    for (int round = 0; round < 6; ++round) {
        fill_mixed(&drawn, 0);
        CHECK_OK(per_mixture_sample(sources, SOURCES, NULL, 33, &drawn.of_rows.batch, drawn.source_of, NULL));
        for (int i = 0; i < 33; ++i) CHECK(drawn.source_of[i] == (i < 17 - round % 2 ? 0 : 2));
    }
    CHECK(stats_of(sources[1].replay).samples == 0 && stats_of(sources[0].replay).samples == 6);
    /* Also if it is owed rows from the time when it had a share. */
    sources[1].carry = (int64_t)5 << 32;
    sources[0].carry = -sources[1].carry;
    fill_mixed(&drawn, 0);
    CHECK_OK(per_mixture_sample(sources, SOURCES, NULL, 33, &drawn.of_rows.batch, drawn.source_of, NULL));
    for (int i = 0; i < 33; ++i) CHECK(drawn.source_of[i] != 1 && drawn.of_rows.weights[i] > 0);
    CHECK(sources[1].carry == (int64_t)5 << 32);
    free_sources(sources, twins);
}

/* After any number of batches of changing sizes, a source with share s has had s times their rows, give or take less
   than one row for each source. */
static void shares_are_exact_in_the_long_run(void) {
    static mixed drawn;
    per_source sources[SOURCES];
    per_replay* twins[SOURCES];
    int64_t totals[SOURCES] = {0}, total = 0;
    make_sources(sources, twins, 0);
    const double uneven[SOURCES] = {1.0, 0.013, 3.7};
    for (int k = 0; k < SOURCES; ++k) sources[k].share = uneven[k];
    for (int round = 0; round < rounds(1500); ++round) {
        const int64_t n = round % 5 == 0 ? 1 : 1 + (round * 37) % 29;
        fill_mixed(&drawn, 0);
        CHECK_OK(per_mixture_sample(sources, SOURCES, NULL, n, &drawn.of_rows.batch, drawn.source_of, NULL));
        for (int64_t i = 0; i < n; ++i) ++totals[drawn.source_of[i]];
        total += n;
        int64_t owed = 0;
        for (int k = 0; k < SOURCES; ++k) {
            CHECK(fabs((double)totals[k] - uneven[k] / 4.713 * (double)total) < SOURCES);
            owed += sources[k].carry;
        }
        CHECK(owed == 0);
    }
    /* Carries that no draw has left, but that are allowed, stay so. */
    for (int k = 0; k < SOURCES; ++k) sources[k].carry = (int64_t)1 << 40;
    for (int64_t n = 1; n < 5; ++n) {
        CHECK_OK(per_mixture_sample(sources, SOURCES, NULL, n, &drawn.of_rows.batch, drawn.source_of, NULL));
        for (int k = 0; k < SOURCES; ++k) CHECK(llabs(sources[k].carry) <= (int64_t)1 << 40);
    }
    free_sources(sources, twins);
}

/* The others divide the share of an empty source, and nothing is owed to it. */
static void an_empty_source_gives_way(void) {
    static mixed drawn;
    per_source sources[SOURCES];
    per_replay* twins[SOURCES];
    int64_t totals[SOURCES] = {0};
    make_sources(sources, twins, 0);
    CHECK_OK(per_replay_clear(sources[1].replay, NULL));
    for (int k = 0; k < SOURCES; ++k) sources[k].when_empty = PER_EMPTY_OTHERS;
    sources[1].carry = (int64_t)3 << 32;
    for (int round = 1; round <= 3; ++round) {
        fill_mixed(&drawn, 0);
        CHECK_OK(per_mixture_sample(sources, SOURCES, NULL, B, &drawn.of_rows.batch, drawn.source_of, NULL));
        for (int i = 0; i < B; ++i) ++totals[drawn.source_of[i]];
        const double n[SOURCES] = {0.5 / 0.7 * B * round, 0, 0.2 / 0.7 * B * round};
        for (int k = 0; k < SOURCES; ++k) CHECK(fabs((double)totals[k] - n[k]) < 1);
        CHECK(sources[1].carry == (int64_t)3 << 32 && stats_of(sources[1].replay).samples == 0);
        /* P is that of the shares of this batch. */
        rows of_twin;
        fill_rows(&of_twin);
        per_sample_options options = default_sample_options();
        options.normalize_weights = PER_NONE;
        int64_t n_of_first = 0;
        while (drawn.source_of[n_of_first] == 0) ++n_of_first;
        CHECK_OK(per_replay_sample(twins[0], &options, n_of_first, &of_twin.batch, NULL));
        for (int64_t i = 0; i < n_of_first; ++i) {
            const double p = 0.5 / 0.7 * (double)of_twin.probabilities[i];
            CHECK(drawn.of_rows.ids[i] == of_twin.ids[i]);
            CHECK(fabs((double)drawn.of_rows.probabilities[i] - p) <= 1e-6 * p);
        }
    }
    /* It has its share again once it has rows; and a source that may not be empty is an error if it is. */
    per_source full[2] = {sources[1], sources[2]};
    CHECK_OK(per_replay_clear(full[1].replay, NULL));
    if (!on_cuda()) {
        CHECK_FAILS(per_mixture_sample(full, 2, NULL, B, &drawn.of_rows.batch, drawn.source_of, NULL), PER_ERROR_EMPTY,
                    "sources[0].replay: no transition is live");
        full[0] = sources[0];
        full[1].when_empty = PER_EMPTY_ERROR;
        CHECK_FAILS(per_mixture_sample(full, 2, NULL, B, &drawn.of_rows.batch, drawn.source_of, NULL), PER_ERROR_EMPTY,
                    "sources[1].replay: no transition is live");
    }
    full[0] = sources[0];
    full[1] = sources[1];
    full[1].carry = full[0].carry = 0;
    full[1].replay = twins[1];
    CHECK_OK(per_mixture_sample(full, 2, NULL, B, &drawn.of_rows.batch, drawn.source_of, NULL));
    for (int i = 0; i < B; ++i) CHECK(drawn.source_of[i] == (i < B * 5 / 8 ? 0 : 1));
    free_sources(sources, twins);
}

/* ------------------------------------------------------------------ errors */

static void check_unchanged(const per_source* sources, const bytes* before) {
    for (int k = 0; k < SOURCES; ++k) {
        CHECK(sources[k].carry == 0);
        check_saved_as(&before[k], sources[k].replay);
    }
}

static void failed_calls_change_nothing(void) {
    static mixed drawn;
    per_source sources[SOURCES], changed[SOURCES];
    per_replay* twins[SOURCES];
    bytes before[SOURCES];
    make_sources(sources, twins, 0);
    for (int k = 0; k < SOURCES; ++k) before[k] = saved(sources[k].replay);
    fill_mixed(&drawn, 0);
    per_batch* const batch = &drawn.of_rows.batch;
    per_sample_options options = default_sample_options();

#define CHECK_SOURCES(status, text, ...)                                                                            \
    do {                                                                                                            \
        memcpy(changed, sources, sizeof sources);                                                                   \
        __VA_ARGS__;                                                                                                \
        CHECK_FAILS(per_mixture_sample(changed, SOURCES, &options, B, batch, drawn.source_of, NULL), status, text); \
        check_unchanged(sources, before);                                                                           \
    } while (0)
#define CHECK_BAD_SOURCES(text, ...) CHECK_SOURCES(PER_ERROR_INVALID_ARGUMENT, text, __VA_ARGS__)
    CHECK_BAD_SOURCES("sources[1].replay is NULL", changed[1].replay = NULL);
    CHECK_BAD_SOURCES("sources[2].replay is that of sources[0]", changed[2].replay = changed[0].replay);
    CHECK_BAD_SOURCES("sources[1].share is -1", changed[1].share = -1);
    CHECK_BAD_SOURCES("sources[1].share is nan", changed[1].share = NAN);
    CHECK_BAD_SOURCES("sources[1].share is inf", changed[1].share = INFINITY);
    CHECK_BAD_SOURCES("the shares of all sources add up to 0", for (int k = 0; k < SOURCES; ++k) changed[k].share = 0);
    CHECK_BAD_SOURCES("the shares of all sources add up to inf",
                      for (int k = 0; k < SOURCES; ++k) changed[k].share = 1.7e308);
    CHECK_BAD_SOURCES("sources[2].carry is 1099511627777", changed[2].carry = ((int64_t)1 << 40) + 1);
    CHECK_BAD_SOURCES("sources[0].reserved is 1", changed[0].reserved = 1);
    CHECK_BAD_SOURCES("sources[1].when_empty is 2: allowed are 0 .. 1", changed[1].when_empty = 2);

    per_replay_options other = replay_options(100, 1);
    per_replay* odd = create_filled(&other, 50);
    CHECK_BAD_SOURCES("n_step is 9", options.n_step = 9);
    options.n_step = 2; /* only the first source has returns of 2 steps */
    CHECK_BAD_SOURCES("sources[1].replay: n_step is 2: allowed is 1", changed[1].replay = odd);
    options.n_step = 0;
    other.sequence_length = 4;
    per_replay* with_sequences = create_filled(&other, 50);
    other.sequence_length = 0;
    other.max_times_sampled = 3;
    other.keep_times_sampled = 1;
    other.scheme = PER_WITHOUT_REPLACEMENT;
    per_replay* used_up = create_filled(&other, 50);
    other = replay_options(100, 1);
    set_goal_fields(&other);
    per_replay* with_goal = create_replay(&other);
    per_field field = field_of("observation", PER_FLOAT64, 0, NULL);
    set_fields(&other, &field, 1);
    per_replay* of_doubles = create_replay(&other);
    CHECK_BAD_SOURCES("sources[1].replay has 2 fields, and that of sources[0] has 1", changed[1].replay = with_goal);
    CHECK_BAD_SOURCES("field 0 of sources[1].replay, \"observation\", differs", changed[1].replay = of_doubles);
    batch->next_fields = NULL;
    CHECK_BAD_SOURCES("sequence_length of sources[1].replay is 4, and of sources[0].replay 0",
                      changed[1].replay = with_sequences);
    CHECK_SOURCES(PER_ERROR_UNSUPPORTED, "max_times_sampled of sources[2].replay is 3", changed[2].replay = used_up);
    other = replay_options(100, 1);
    per_replay* empty = create_replay(&other);
    if (on_cuda()) { /* only the device knows: the other rows are drawn */
        memcpy(changed, sources, sizeof sources);
        for (int k = 0; k < 2; ++k) changed[k].replay = twins[k];
        changed[2].replay = empty;
        CHECK_FAILS(per_mixture_sample(changed, SOURCES, NULL, B, batch, drawn.source_of, NULL), PER_ERROR_EMPTY, "");
        for (int i = 0; i < B; ++i) {
            const int is_drawn = drawn.source_of[i] != 2;
            CHECK((drawn.of_rows.ids[i] >= 0) == is_drawn && (drawn.of_rows.weights[i] > 0) == is_drawn);
            CHECK((drawn.of_rows.probabilities[i] > 0) == is_drawn);
        }
    } else {
        CHECK_SOURCES(PER_ERROR_EMPTY, "sources[2].replay: no transition is live: no step was added yet",
                      changed[2].replay = empty);
        set_rate_limit(&other, 1, 100, 60);
        per_replay* limited = create_filled(&other, 50);
        CHECK_SOURCES(PER_ERROR_BUSY, "sources[2].replay: ", changed[2].replay = limited);
        per_replay_free(limited);
        /* Source 2 gets 8 rows, and has 3 of positive priority. */
        for (int64_t id = 3; id < 49; ++id) {
            const float zero = 0;
            CHECK_OK(write_priorities(odd, 1, &id, &zero, NULL));
        }
        options.scheme = PER_WITHOUT_REPLACEMENT;
        CHECK_BAD_SOURCES("sources[2].replay: batch_size is 8", changed[2].replay = odd);
        options.scheme = -1;
    }

    CHECK_REFUSED(per_mixture_sample(sources, 0, NULL, B, batch, NULL, NULL), "n_sources is 0: allowed are 1 .. 32");
    CHECK_REFUSED(per_mixture_sample(sources, 33, NULL, B, batch, NULL, NULL), "n_sources is 33");
    CHECK_REFUSED(per_mixture_sample(NULL, 1, NULL, B, batch, NULL, NULL), "sources is NULL");
    CHECK_REFUSED(per_mixture_sample(sources, SOURCES, NULL, 0, batch, NULL, NULL), "batch_size is 0");
    CHECK_REFUSED(per_mixture_sample(sources, SOURCES, NULL, B, NULL, NULL, NULL), "batch is NULL");
    CHECK_MISALIGNED(per_mixture_sample(sources, SOURCES, NULL, B, batch, MISALIGNED(drawn.source_of), NULL),
                     "sources_out");
    CHECK_BAD_SOURCES("ids is NULL", batch->ids = NULL);
    batch->ids = drawn.of_rows.ids;
    const uint64_t key[2] = {1, 2};
    CHECK_BAD_SOURCES("key is not NULL", options.key = key);
    options.key = NULL;
    const per_hindsight_options hindsight = default_hindsight_options();
    CHECK_BAD_SOURCES("hindsight is not NULL", options.hindsight = &hindsight);
    options.hindsight = NULL;
    CHECK_SOURCES(PER_ERROR_UNSUPPORTED, "PER_BUFFER_MAX", options.normalize_weights = PER_BUFFER_MAX);
    CHECK_BAD_SOURCES("normalize_weights is 3", options.normalize_weights = 3);
    options.normalize_weights = -1;
    CHECK_BAD_SOURCES("beta is -1", options.beta = -1);
    options.beta = NAN;

    int64_t ids[2] = {0, 1};
    int32_t source_of[2] = {0, 1};
    float values[2] = {1, 2};
    per_priorities given = priorities_given(2, ids);
    given.priorities = values;
#define CHECK_BAD_UPDATE(text, change, back)                                                           \
    do {                                                                                               \
        change;                                                                                        \
        CHECK_REFUSED(per_mixture_update_priorities(sources, SOURCES, &given, source_of, NULL), text); \
        check_unchanged(sources, before);                                                              \
        back;                                                                                          \
    } while (0)
    CHECK_REFUSED(per_mixture_update_priorities(sources, SOURCES, &given, NULL, NULL), "source_of is NULL");
    CHECK_MISALIGNED(per_mixture_update_priorities(sources, SOURCES, &given, MISALIGNED(source_of), NULL), "source_of");
    if (!on_cuda()) {
        CHECK_BAD_UPDATE("source_of[1] is 3: allowed are 0 .. 2", source_of[1] = 3, source_of[1] = 1);
        CHECK_BAD_UPDATE("source_of[0] is -1", source_of[0] = -1, source_of[0] = 0);
        CHECK_BAD_UPDATE("sources[1].replay: ids[1] is 10000: never issued", ids[1] = 10000, ids[1] = 1);
        CHECK_BAD_UPDATE("sources[1].replay: priorities[1] is -2", values[1] = -2, values[1] = 2);
    }
    check_unchanged(sources, before);
    if (on_cuda()) { /* source 0 counts what is for none, and the others are not reached by it */
        source_of[0] = 3;
        CHECK_FAILS(per_mixture_update_priorities(sources, SOURCES, &given, source_of, NULL),
                    PER_ERROR_INVALID_ARGUMENT, "ids named no row that could be had");
        check_saved_as(&before[2], sources[2].replay);
        CHECK(stats_of(sources[0].replay).updates == stats_of(twins[0]).updates);
        CHECK(stats_of(sources[0].replay).rejected_updates == 1);
        CHECK(stats_of(sources[1].replay).updates == stats_of(twins[1]).updates + 1);
        CHECK(stats_of(sources[1].replay).rejected_updates == 0);
    }

    per_replay* const others[] = {odd, with_sequences, used_up, with_goal, of_doubles, empty};
    for (int i = 0; i < 6; ++i) per_replay_free(others[i]);
    for (int k = 0; k < SOURCES; ++k) free(before[k].data);
    free_sources(sources, twins);
}

/* ------------------------------------------------------------ waits */

static per_source waiting_sources[SOURCES];
static int is_over, n_mixed;

static void* mix(void* unused) {
    static mixed drawn;
    (void)unused;
    do {
        fill_mixed(&drawn, 0);
        __atomic_add_fetch(&n_mixed, 1, __ATOMIC_SEQ_CST);
        CHECK_OK(per_mixture_sample(waiting_sources, SOURCES, NULL, 4, &drawn.of_rows.batch, NULL, NULL));
    } while (!__atomic_load_n(&is_over, __ATOMIC_SEQ_CST));
    return NULL;
}

static pthread_t start_mixing(void) {
    is_over = n_mixed = 0;
    pthread_t mixer = start_thread(mix, NULL);
    while (__atomic_load_n(&n_mixed, __ATOMIC_SEQ_CST) == 0) sched_yield();
    return mixer;
}

static void stop_mixing(pthread_t mixer) {
    __atomic_store_n(&is_over, 1, __ATOMIC_SEQ_CST);
    join_thread(mixer);
}

/* In both orders of their creation, in which fork() takes the locks of handles, and of their addresses. */
static void a_fork_and_a_draw_do_not_wait_for_each_other(void) {
    for (int turn = 0; turn < 2; ++turn) {
        pthread_t mixer = start_mixing();
        for (int i = 0; i < 200; ++i) {
            pid_t child = fork();
            if (child == 0) _exit(0);
            CHECK(child > 0 && waitpid(child, NULL, 0) == child);
        }
        stop_mixing(mixer);
        const per_source first = waiting_sources[0];
        waiting_sources[0] = waiting_sources[SOURCES - 1];
        waiting_sources[SOURCES - 1] = first;
    }
}

static pthread_t mixer_of_save;

/* The mixer waits for the buffer that is being saved. All others, and fork(), are free. */
static int64_t use_the_others(void* saved, const void* bytes, int64_t size) {
    (void)bytes;
    if (__atomic_load_n(&n_mixed, __ATOMIC_SEQ_CST) > 0) return size;
    mixer_of_save = start_mixing();
    pause_ns(20000000); /* the mixer is waiting by then */
    for (int k = 0; k < SOURCES; ++k) {
        int64_t live = 0;
        if (waiting_sources[k].replay != (per_replay*)saved)
            CHECK_OK(per_replay_get_live_ids(waiting_sources[k].replay, 0, NULL, &live));
    }
    if (!on_cuda()) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        CHECK(child > 0 && waitpid(child, NULL, 0) == child);
    }
    return size;
}

static void a_save_of_one_buffer_leaves_the_others_free(void) {
    for (int k = 0; k < SOURCES; ++k) {
        n_mixed = 0;
        CHECK_OK(save_to(waiting_sources[k].replay, use_the_others, waiting_sources[k].replay));
        stop_mixing(mixer_of_save);
    }
}

static void calls_that_wait_hold_nothing(void) {
    per_replay* twins[SOURCES];
    make_sources(waiting_sources, twins, 0);
    alarm(120); /* a deadlock ends the test */
    if (!on_cuda()) a_fork_and_a_draw_do_not_wait_for_each_other();
    a_save_of_one_buffer_leaves_the_others_free();
    alarm(0);
    free_sources(waiting_sources, twins);
}

int main(void) {
    all_kinds_of_draws(0);
    all_kinds_of_draws(4);
    halves_take_turns();
    shares_are_exact_in_the_long_run();
    an_empty_source_gives_way();
    failed_calls_change_nothing();
    calls_that_wait_hold_nothing();
    return 0;
}

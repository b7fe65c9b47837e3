/*
 * The expected number of draws of each transition is counted here from the ids of all batches. With max_times_sampled
 * none is drawn more often than that, whatever is called in between, until its row is overwritten.
 */
#include "replay_check.h"

enum { CAPACITY = 40, MOST_IDS = 8192 };

typedef struct counted_rows {
    rows of;
    int32_t times_sampled[MANY];
} counted_rows;

static void fill_counted(counted_rows* out) {
    fill_rows(&out->of);
    memset(out->times_sampled, 0xA5, sizeof out->times_sampled);
    out->of.batch.times_sampled = out->times_sampled;
}

/* Number of draws of each transition, by id. */
static int32_t uses[MOST_IDS];

static uint64_t random_state = 1;
static int64_t random_below(int64_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((random_state >> 33) % (uint64_t)n);
}

static per_replay* counting(int32_t max_times_sampled, int32_t prioritization, int32_t max_priority) {
    per_replay_options options = replay_options(CAPACITY, 1);
    options.keep_times_sampled = max_times_sampled == 0;
    options.max_times_sampled = max_times_sampled;
    options.prioritization = prioritization;
    options.max_priority = max_priority;
    options.normalize_weights = PER_BUFFER_MAX;
    if (max_times_sampled > 0) options.scheme = PER_WITHOUT_REPLACEMENT;
    memset(uses, 0, sizeof uses);
    return create_replay(&options);
}

static void add_steps(per_replay* replay, int64_t n) {
    for (; n > 0; --n) add_full(replay, 0, 0, 0, GOES_ON, 0);
}

/* The ids of the live transitions, and their number. */
static int64_t live_ids_of(per_replay* replay, int64_t* ids_out) {
    int64_t count = -1;
    CHECK_OK(per_replay_get_live_ids(replay, CAPACITY, ids_out, &count));
    CHECK(count == live_of(replay));
    return count;
}

/* Draws a batch, counts it, and compares. */
static void draw_counted(per_replay* replay, const per_sample_options* options, int64_t batch_size, int32_t most) {
    static counted_rows out;
    fill_counted(&out);
    CHECK_OK(per_replay_sample(replay, options, batch_size, &out.of.batch, NULL));
    for (int64_t i = 0; i < batch_size; ++i) ++uses[out.of.ids[i]];
    for (int64_t i = 0; i < batch_size; ++i) {
        CHECK(out.times_sampled[i] == uses[out.of.ids[i]]);
        CHECK(most == 0 || uses[out.of.ids[i]] <= most);
    }
}

/* Calls that do not draw report the counts and do not change them. */
static void read_counted(per_replay* replay) {
    static counted_rows out;
    int64_t ids[CAPACITY], count = live_ids_of(replay, ids), i;
    per_epochs* walk;
    if (count == 0) return;
    fill_counted(&out);
    CHECK_OK(per_replay_get_windows(replay, NULL, PER_INVALID_ERROR, count, ids, &out.of.batch, NULL));
    for (i = 0; i < count; ++i) CHECK(out.times_sampled[i] == uses[ids[i]]);
    fill_counted(&out);
    out.of.batch.weights = out.of.batch.probabilities = NULL;
    CHECK_OK(per_replay_get(replay, count, ids, &out.of.batch, NULL));
    for (i = 0; i < count; ++i) CHECK(out.times_sampled[i] == uses[ids[i]]);
    CHECK_OK(per_epochs_create(replay, 1, count, 0, NULL, &walk));
    fill_counted(&out);
    CHECK_OK(synchronized(replay, per_epochs_next(walk, &out.of.batch, &count, NULL)));
    for (i = 0; i < count; ++i) CHECK(out.times_sampled[i] == uses[out.of.ids[i]]);
    per_epochs_free(walk);
    ids[0] = -1;
    fill_counted(&out);
    CHECK_OK(per_replay_get_windows(replay, NULL, PER_INVALID_SKIP, 1, ids, &out.of.batch, NULL));
    CHECK(out.times_sampled[0] == 0);
}

static void counts_are_those_of_the_ids_drawn(void) {
    const int32_t of_calls[] = {PER_STRATIFIED, PER_INDEPENDENT, PER_SYSTEMATIC, PER_WITHOUT_REPLACEMENT};
    const int32_t prioritizations[] = {PER_PROPORTIONAL, PER_RANK, PER_UNIFORM};
    for (int k = 0; k < 3; ++k) {
        per_replay* replay = counting(0, prioritizations[k], PER_MAX_EVER);
        for (int i = 0; i < rounds(400); ++i) {
            add_steps(replay, 1 + random_below(5));
            int64_t live = live_of(replay);
            per_sample_options options = default_sample_options();
            options.scheme = of_calls[random_below(4)];
            options.uniform_fraction = (double)random_below(3) / 4;
            draw_counted(replay, &options,
                         1 + random_below(options.scheme == PER_WITHOUT_REPLACEMENT ? live : 3 * live), 0);
            if (random_below(8) == 0) read_counted(replay);
        }
        per_replay_free(replay);
    }
}

/* A transition at many positions of a batch is counted once for each. (The largest count is 2^31 - 1.) */
static void one_transition_is_counted_at_each_place(void) {
    static counted_rows out;
    per_replay* replay = counting(0, PER_PROPORTIONAL, PER_MAX_EVER);
    add_steps(replay, 1);
    draw_counted(replay, NULL, 7, 0);
    CHECK(uses[0] == 7);
    fill_counted(&out);
    CHECK_OK(per_replay_sample(replay, NULL, many(), &out.of.batch, NULL));
    for (int64_t i = 0; i < many(); ++i) CHECK(out.times_sampled[i] == 7 + many());
    per_replay_free(replay);
}

/* A used-up transition is not live: it is in no draw, epoch or shard summary, and its updates are stale. */
static void check_used_up(per_replay* replay, int64_t oldest, int64_t end, int32_t most) {
    int64_t ids[CAPACITY], count = live_ids_of(replay, ids), id, i, expected = 0;
    for (id = oldest; id < end; ++id) {
        const int64_t stale = stats_of(replay).stale_updates;
        const float priority = 1 + (float)(id % 5);
        int is_live = 0;
        for (i = 0; i < count; ++i) is_live |= ids[i] == id;
        CHECK(is_live == (uses[id] < most));
        expected += uses[id] < most;
        CHECK_OK(write_priorities(replay, 1, &id, &priority, NULL));
        CHECK(stats_of(replay).stale_updates == stale + !is_live);
        CHECK(priority_of(replay, id) == (is_live ? priority : 0));
    }
    CHECK(count == expected);
}

static void none_is_drawn_more_often_than_allowed(int32_t most, int32_t prioritization, int32_t max_priority) {
    static counted_rows out;
    per_replay* replay = counting(most, prioritization, max_priority);
    int64_t end = 0, oldest = 0;
    const per_replay_options described = describe_replay(replay);
    CHECK(described.keep_times_sampled == 1 && described.max_times_sampled == most);
    for (int i = 0; i < rounds(600); ++i) {
        const int64_t n = random_below(4);
        add_steps(replay, n);
        end += n;
        /* The announced observation takes a row, too. */
        if (end - oldest > CAPACITY - 1) oldest = end - (CAPACITY - 1);
        int64_t live = live_of(replay);
        if (live > 0) draw_counted(replay, NULL, 1 + random_below(live), most);
        switch (random_below(30)) {
            case 0:
                CHECK_OK(change_alpha(replay, (double)random_below(3) / 2, NULL));
                break;
            case 1:
                /* The newest rows die, and become live again unless they were used up. */
                CHECK_OK(change_n_step(replay, 4, NULL));
                add_steps(replay, 2);
                CHECK_OK(change_n_step(replay, 1, NULL));
                end += 2;
                if (end - oldest > CAPACITY - 1) oldest = end - (CAPACITY - 1);
                break;
            case 2:
                CHECK_OK(per_replay_clear(replay, NULL));
                oldest = end;
                break;
            default:
                break;
        }
        if (random_below(10) == 0) {
            check_used_up(replay, oldest, end, most);
            read_counted(replay);
        }
    }
    /* Draws everything that is left. */
    while (live_of(replay) > 0) draw_counted(replay, NULL, 1, most);
    fill_counted(&out);
    CHECK_FAILS(per_replay_sample(replay, NULL, 1, &out.of.batch, NULL), PER_ERROR_EMPTY, "");
    add_steps(replay, 2);
    fill_counted(&out);
    CHECK_BAD(per_replay_sample(replay, NULL, 3, &out.of.batch, NULL), PER_ERROR_INVALID_ARGUMENT, "batch_size is 3",
              "draws without replacement had batch_size above what can be drawn");
    /* The failed call was not a draw. */
    draw_counted(replay, NULL, 2, most);
    per_replay_free(replay);
}

static int32_t failing_reward(void* context, int64_t count, const void* achieved, const void* goals, float* rewards_out,
                              uint8_t* terminated_out) {
    (void)context, (void)count, (void)achieved, (void)goals, (void)rewards_out, (void)terminated_out;
    return 1;
}

static void a_reward_that_fails_has_used_what_it_was_asked_for(void) {
    static const per_field fields[2] = {{"observation", NULL, 0, PER_FLOAT32, PER_ROLE_DEFAULT, 0, NULL, 0, 0, 0},
                                        {"goal", NULL, 0, PER_FLOAT32, PER_ROLE_PLAIN, 0, NULL, 0, 0, 0}};
    per_replay_options options = replay_options(CAPACITY, 1);
    const float number = 1;
    const uint8_t ends = 1;
    const per_array numbers[2] = {array_of(&number, PER_FLOAT32), array_of(&number, PER_FLOAT32)};
    int64_t id = -1;
    set_fields(&options, fields, 2);
    options.max_times_sampled = 1;
    options.scheme = PER_WITHOUT_REPLACEMENT;
    options.rate_limit.samples_per_insert = 1;
    options.rate_limit.samples_tolerance = 2;
    per_replay* replay = create_replay(&options);
    const per_steps steps = steps_of(1, numbers, numbers, &number, &ends, &ends);
    CHECK_OK(per_replay_add(replay, &steps, NULL, NULL));
    per_hindsight_options hindsight = relabelling(0, 1, failing_reward, NULL);
    hindsight.fraction = 1;
    per_batch batch = default_batch();
    batch.ids = &id;
    CHECK_FAILS(sample_with_hindsight(replay, NULL, &hindsight, 1, &batch, NULL), PER_ERROR_CALLBACK, "reward");
    CHECK(stats_of(replay).samples == 0 && live_of(replay) == 0);
    /* The rate limiter counts the failed draw, as it has used up its transition. Otherwise the third add would wait for
       a draw, but no transition is left. */
    for (int i = 0; i < 3; ++i) CHECK_OK(per_replay_add(replay, &steps, NULL, NULL));
    CHECK_FAILS(per_replay_add(replay, &steps, NULL, NULL), PER_ERROR_BUSY, "");
    per_replay_free(replay);
}

static void what_does_not_fit_is_refused(void) {
    static counted_rows out;
    per_replay_options options = replay_options(CAPACITY, 1);
    per_replay* replay = (per_replay*)&options;
    per_coordinator* coordinator = (per_coordinator*)&options;
    per_loader_options of_loader = default_loader_options();
    per_loader* loader = NULL;
    const int64_t id = 0;
    options.max_times_sampled = 1;
    CHECK_REFUSED(per_replay_create(&options, &replay),
                  "scheme is PER_STRATIFIED (0): must be PER_WITHOUT_REPLACEMENT (3) where max_times_sampled is given");
    options.scheme = PER_WITHOUT_REPLACEMENT;
    options.rate_limit.samples_per_insert = 1.5;
    options.rate_limit.samples_tolerance = 10;
    CHECK_REFUSED(per_replay_create(&options, &replay),
                  "samples_per_insert is 1.5: must be at most max_times_sampled, 1");
    options.rate_limit.samples_per_insert = 1;
    CHECK_FAILS(per_coordinator_create(&options, 1, NULL, &coordinator), PER_ERROR_UNSUPPORTED, "samples_per_insert");
    options.rate_limit.samples_per_insert = 0;
    options.rate_limit.samples_tolerance = 0;
    CHECK_FAILS(per_coordinator_create(&options, 1, NULL, &coordinator), PER_ERROR_UNSUPPORTED, "max_times_sampled 1");

    replay = create_replay(&options);
    add_steps(replay, 3);
    per_sample_options of_call = default_sample_options();
    of_call.scheme = PER_INDEPENDENT;
    fill_counted(&out);
    CHECK_REFUSED(per_replay_sample(replay, &of_call, 1, &out.of.batch, NULL),
                  "scheme is PER_INDEPENDENT (1): must be PER_WITHOUT_REPLACEMENT");
    of_loader.batch_size = 1;
    of_loader.sample = &of_call;
    of_loader.device = test_device();
    CHECK_REFUSED(per_loader_create(replay, &of_loader, &loader),
                  "scheme is PER_INDEPENDENT (1): must be PER_WITHOUT_REPLACEMENT");
    /* Windows have no scheme. */
    CHECK_OK(per_replay_get_windows(replay, &of_call, PER_INVALID_ERROR, 1, &id, &out.of.batch, NULL));
    CHECK(live_of(replay) == 3);
    per_replay_free(replay);

    options = replay_options(CAPACITY, 1);
    replay = create_replay(&options);
    add_steps(replay, 3);
    fill_counted(&out);
    CHECK_REFUSED(per_replay_sample(replay, NULL, 1, &out.of.batch, NULL),
                  "times_sampled is not NULL: keep_times_sampled of the buffer is 0");
    CHECK_REFUSED(per_replay_get_windows(replay, NULL, PER_INVALID_ERROR, 1, &id, &out.of.batch, NULL),
                  "times_sampled is not NULL");
    out.of.batch.weights = out.of.batch.probabilities = NULL;
    CHECK_REFUSED(per_replay_get(replay, 1, &id, &out.of.batch, NULL), "times_sampled is not NULL");
    CHECK(stats_of(replay).samples == 0);
    per_replay_free(replay);
}

int main(void) {
    counts_are_those_of_the_ids_drawn();
    one_transition_is_counted_at_each_place();
    none_is_drawn_more_often_than_allowed(1, PER_PROPORTIONAL, PER_MAX_EVER);
    none_is_drawn_more_often_than_allowed(3, PER_PROPORTIONAL, PER_MAX_NOW);
    none_is_drawn_more_often_than_allowed(2, PER_RANK, PER_MAX_EVER);
    none_is_drawn_more_often_than_allowed(2, PER_UNIFORM, PER_MAX_EVER);
    a_reward_that_fails_has_used_what_it_was_asked_for();
    what_does_not_fit_is_refused();
    return 0;
}

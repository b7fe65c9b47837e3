/*
 * If nothing is added or updated in between, a loader hands out the batches that per_replay_sample() draws,
 * bit-identical and in that order, with the beta of their turn. If it is stopped, batches drawn ahead count as draws,
 * but do not advance beta.
 */
#include "loader_check.h"

enum { BATCH = 32, BATCHES = 40 };

static int64_t n_batches(void) {
    return on_cuda() ? 8 : BATCHES;
}

static per_replay* filled(double beta_steps) {
    per_replay_options options = replay_options(300, 2);
    options.seed = 5;
    options.n_step = 3;
    options.beta_steps = (int64_t)beta_steps;
    per_replay* replay = create_replay(&options);
    for (int t = 0; t < (on_cuda() ? 60 : 200); ++t)
        add_full(replay, t % 2, (float)t, (float)(t % 7), t % 11 == 0 ? TRUNCATED : GOES_ON, (float)t + 2);
    return replay;
}

static void hands_out_what_sample_draws(int64_t slots) {
    per_replay *replay = filled(25), *twin = filled(25);
    per_loader* loader = create_loader(replay, BATCH, slots, NULL);
    static rows expected;
    for (int i = 0; i < n_batches(); ++i) {
        check_next(loader, twin, BATCH);
        CHECK(stats_of(replay).beta_step == i + 1 && stats_of(replay).beta == stats_of(twin).beta);
    }
    CHECK(stats_of(replay).samples == n_batches() + slots);
    per_loader_free(loader);
    CHECK(stats_of(replay).beta_step == n_batches());

    for (int i = 0; i < slots; ++i) { /* batches that the loader drew and did not hand out */
        const per_sample_options* none = NULL;
        draw_with(twin, none, BATCH, &expected);
    }
    draw(replay, BATCH, &expected);
    {
        static rows of_twin;
        draw(twin, BATCH, &of_twin);
        CHECK(memcmp(expected.ids, of_twin.ids, sizeof expected.ids) == 0);
    }
    free_both(replay, twin);
}

static void options_of_its_own(void) {
    per_replay *replay = filled(25), *twin = filled(25);
    static rows expected;
    per_sample_options options = default_sample_options();
    options.beta = 0.75;
    options.n_step = 2;
    options.scheme = PER_WITHOUT_REPLACEMENT;
    options.normalize_weights = PER_NONE;
    per_loader* loader = create_loader(replay, BATCH, 2, &options);
    options.beta = 99; /* it was copied */
    for (int i = 0; i < 5; ++i) {
        per_batch batch;
        const int64_t slot = take(loader, &batch);
        options.beta = 0.75;
        draw_with(twin, &options, BATCH, &expected);
        check_batch(&batch, &expected, BATCH);
        CHECK_OK(per_loader_release(loader, slot, NULL));
    }
    CHECK(stats_of(replay).beta_step == 0); /* an explicit beta does not advance it */
    free_loader(loader, replay, twin);
}

/* Beta counts the batches handed out, also for draws without a loader. */
static void samples_between_use_the_beta_after_what_was_handed_out(void) {
    per_replay *replay = filled(100), *twin = filled(100);
    per_loader* loader = create_loader(replay, BATCH, 3, NULL);
    static rows drawn;
    per_batch batch;
    int64_t slot = take(loader, &batch);
    CHECK(stats_of(replay).beta_step == 1);
    draw(twin, BATCH, &drawn);
    CHECK(stats_of(replay).beta == stats_of(twin).beta);
    draw(replay, BATCH, &drawn);
    CHECK(stats_of(replay).beta_step == 2);
    CHECK_OK(per_loader_release(loader, slot, NULL));
    free_loader(loader, replay, twin);
}

int main(void) {
    hands_out_what_sample_draws(1);
    hands_out_what_sample_draws(3);
    hands_out_what_sample_draws(8);
    options_of_its_own();
    samples_between_use_the_beta_after_what_was_handed_out();
    return 0;
}

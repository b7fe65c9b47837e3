/* A loaded buffer has every option and every statistic of the saved one. Each has a value other than its default. */
#include "saved_bytes.h"

static per_replay_options described(per_replay* replay) {
    per_replay_options options = describe_replay(replay);
    options.fields = NULL; /* each buffer has its own */
    return options;
}

int main(void) {
    static rows drawn;
    per_replay_options options = replay_options(30, 1);
    const int64_t late = -1;
    const float priority = 7;
    options.seed = 77;
    options.n_step = 2;
    options.frame_stack = 1;
    options.beta_steps = 50;
    options.gamma = 0.5;
    options.alpha = 0.7;
    options.beta = 0.3;
    options.beta_final = 0.9;
    options.epsilon = 0.25;
    options.sequence_eta = 0.5;
    options.uniform_fraction = 0.125;
    options.prioritization = PER_RANK;
    options.scheme = PER_SYSTEMATIC;
    options.normalize_weights = PER_NONE;
    options.max_priority = PER_MAX_NOW;
    options.on_invalid = PER_INVALID_SKIP;
    options.on_gap = PER_GAP_ERROR;
    options.autoreset = PER_AUTORESET_NEXT_STEP;
    options.critics = PER_CRITICS_MAX;
    options.gather_threads = on_cuda() ? 1 : 3;
    options.on_nan = PER_NAN_ERROR;
    per_replay* replay = create_replay(&options);
    for (float t = 0; t < 6; ++t) add_full(replay, 0, t, 1, t == 5 ? TRUNCATED : GOES_ON, t + 1);
    add_full(replay, 0, 6, 1, GOES_ON, 7); /* the reset step is dropped */
    for (float t = 20; t < 24; ++t) add_full(replay, 0, t, 1, GOES_ON, t + 1);
    CHECK_OK(per_replay_cut(replay, 0, NULL, NULL));
    draw(replay, 8, &drawn);
    CHECK_OK(write_priorities(replay, 1, drawn.ids, &priority, NULL));
    CHECK_OK(write_priorities(replay, 1, &late, &priority, NULL));
    per_replay* loaded = reloaded(replay);
    const per_replay_options before_saving = described(replay), after_loading = described(loaded);
    CHECK(memcmp(&before_saving, &after_loading, sizeof before_saving) == 0);
    per_replay_statistics before = stats_of(replay), after = stats_of(loaded);
    CHECK(before.episodes == 2 && before.cuts == 1 && before.dropped == 1 && before.stale_updates == 1);
    before.memory_bytes = after.memory_bytes = before.huge_page_bytes = after.huge_page_bytes = 0;
    CHECK(memcmp(&before, &after, sizeof before) == 0);
    free_both(loaded, replay);
    return 0;
}

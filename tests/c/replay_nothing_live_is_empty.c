/* Drawing from a buffer without live transitions is PER_ERROR_EMPTY, writes nothing (on CUDA: no row), and is not a
   draw. */
#include "replay_check.h"

static void check_empty(per_replay* replay) {
    static rows drawn, untouched;
    const per_replay_statistics before = stats_of(replay);
    void *const fields[1] = {drawn.observation}, *const next_fields[1] = {drawn.next};
    fill_rows(&drawn);
    memset(drawn.observation, 0x5A, sizeof drawn.observation);
    memset(drawn.ids, 0x5A, sizeof drawn.ids);
    drawn.batch.fields = fields;
    drawn.batch.next_fields = next_fields;
    memcpy(&untouched, &drawn, sizeof drawn);
    CHECK_FAILS(per_replay_sample(replay, NULL, 32, &drawn.batch, NULL), PER_ERROR_EMPTY, "live");
    if (on_cuda()) {
        for (int i = 0; i < 32; ++i) CHECK(drawn.ids[i] == -1 && drawn.observation[i] == 0 && drawn.weights[i] == 0);
        CHECK(drawn.ids[32] == untouched.ids[32]);
    } else {
        CHECK(memcmp(&untouched, &drawn, sizeof drawn) == 0);
    }
    check_same_statistics(replay, &before);
}

/* The message says "transition" or "sequence". */
static void sequences_are_named(void) {
    per_replay_options options = replay_options(20, 1);
    per_epochs* walk = NULL;
    options.sequence_length = 4;
    per_replay* replay = create_replay(&options);
    CHECK_FAILS(per_epochs_create(replay, 1, 8, 0, NULL, &walk), PER_ERROR_EMPTY,
                "no sequence is live: no step was added yet");
    add_step(replay, 0, 0, 0);
    per_batch batch = default_batch();
    CHECK_FAILS(
        per_replay_sample(replay, NULL, 8, &batch, NULL), PER_ERROR_EMPTY,
        on_cuda() ? "no live sequence" : "no sequence is live (steps added: 1, n_step: 1): a sequence is live once");
    CHECK_FAILS(per_epochs_create(replay, 1, 8, 0, NULL, &walk), PER_ERROR_EMPTY,
                "no sequence is live (steps added: 1");
    per_replay_free(replay);
}

int main(void) {
    per_replay_options options = replay_options(20, 1);
    static rows drawn, of_twin;
    sequences_are_named();
    options.n_step = 2;
    options.seed = 5;
    options.beta_steps = 10;
    per_replay *replay = create_replay(&options), *twin = create_replay(&options);

    check_empty(replay);
    add_step(replay, 0, 0, 0);
    add_step(replay, 0, 1, 0);
    check_empty(replay); /* there are rows, but none with a complete window */
    if (!on_cuda()) {
        per_epochs* walk = NULL;
        const char* const words =
            "no transition is live (steps added: 2, n_step: 2): a transition is live once n_step steps of its episode";
        per_batch batch = default_batch();
        CHECK_FAILS(per_replay_sample(replay, NULL, 32, &batch, NULL), PER_ERROR_EMPTY, words);
        CHECK_FAILS(per_epochs_create(replay, 1, 8, 0, NULL, &walk), PER_ERROR_EMPTY, words);
    }
    add_step(replay, 0, 2, 0);
    for (int t = 0; t < 3; ++t) add_step(twin, 0, (float)t, 0);
    draw(replay, 32, &drawn);
    draw(twin, 32, &of_twin);
    CHECK(memcmp(drawn.ids, of_twin.ids, sizeof drawn.ids) == 0);
    CHECK(memcmp(drawn.weights, of_twin.weights, sizeof drawn.weights) == 0);

    CHECK_OK(per_replay_clear(replay, NULL));
    CHECK_OK(per_replay_clear(twin, NULL));
    check_empty(replay);
    add_unknown_end(replay, 0, 3, 0, TRUNCATED); /* a step that is never live */
    check_empty(replay);
    add_unknown_end(twin, 0, 3, 0, TRUNCATED);
    for (int t = 0; t < 9; ++t) {
        add_step(replay, 0, (float)t, 0);
        add_step(twin, 0, (float)t, 0);
    }
    draw(replay, 32, &drawn);
    draw(twin, 32, &of_twin);
    CHECK(memcmp(drawn.ids, of_twin.ids, sizeof drawn.ids) == 0);
    free_both(replay, twin);
    return 0;
}

/*
 * What a loader draws depends on the order of the consumer's calls alone: creating it asks for `slots` batches, handing one
 * out asks for the next, and updates, adds and settings after that wait for these draws. Compared with a buffer without a
 * loader that draws so many batches ahead by hand. Batches are large, so that a call that did not wait would overtake the
 * draw.
 */
#include "loader_check.h"

enum { BATCH = MANY, STEPS = 3000, ROUNDS = 60, MOST_SLOTS = 5 };

static per_replay* filled(void) {
    per_replay_options options = replay_options(STEPS + 100, 1);
    per_replay* replay;
    int t;
    options.seed = 9;
    options.n_step = 2;
    replay = create_replay(&options);
    for (t = 0; t < STEPS; ++t) add_full(replay, 0, (float)t, 0, GOES_ON, (float)t + 1);
    return replay;
}

/* The same calls on both buffers; `ids` are those of the batch just handed out. */
static void change(per_replay* replay, int round, const int64_t* ids) {
    static float priorities[BATCH];
    int i;
    for (i = 0; i < BATCH; ++i) priorities[i] = (float)((ids[i] * 7 + round) % 100);
    switch (round % 6) {
        case 0:
        case 1:
            CHECK_OK(per_replay_set_priorities(replay, BATCH, ids, priorities, NULL));
            break;
        case 2:
            CHECK_OK(per_replay_update_priorities(replay, BATCH, ids, 1, priorities, NULL));
            break;
        case 3:
            add_full(replay, 0, (float)(STEPS + round), 0, GOES_ON, (float)(STEPS + round) + 1);
            break;
        case 4:
            CHECK_OK(per_replay_set_alpha(replay, 0.5 + 0.01 * round, NULL));
            break;
        default:
            CHECK_OK(per_replay_cut(replay, 0, NULL, NULL));
            CHECK_OK(per_replay_set_gamma(replay, 0.9 - 0.001 * round, NULL));
    }
}

static void follows_the_order_of_calls(int slots) {
    static rows ahead[MOST_SLOTS]; /* of the buffer without a loader, by number modulo slots */
    per_replay *replay = filled(), *twin = filled();
    per_loader* loader = create_loader(replay, BATCH, slots, NULL);
    int round;
    for (round = 0; round < slots; ++round) draw(twin, BATCH, &ahead[round]);
    for (round = 0; round < ROUNDS; ++round) {
        rows* expected = &ahead[round % slots];
        static int64_t ids[BATCH];
        per_batch batch;
        const int64_t slot = take(loader, &batch);
        change(replay, round, batch.ids); /* at once, while the next draw may still be waiting */
        check_batch(&batch, expected, BATCH);
        memcpy(ids, expected->ids, sizeof ids);
        draw(twin, BATCH, expected);
        change(twin, round, ids);
        CHECK_OK(per_loader_release(loader, slot, NULL));
    }
    per_loader_free(loader);
    per_replay_free(replay);
    per_replay_free(twin);
}

/* While two batches are out there is no memory for the next draw: the release asks for it. */
static void release_asks_where_handing_out_could_not(void) {
    static rows expected;
    per_replay *replay = filled(), *twin = filled();
    per_loader* loader = create_loader(replay, BATCH, 2, NULL);
    per_batch batch;
    static int64_t ids[BATCH];
    int64_t first, second, third;
    draw(twin, BATCH, &expected);
    first = take(loader, &batch); /* asks for the third */
    memcpy(ids, batch.ids, sizeof ids);
    second = take(loader, &batch);
    CHECK(stats_of(replay).samples == 3);
    change(replay, 0, ids);
    CHECK_OK(per_loader_release(loader, first, NULL)); /* asks for the fourth */
    CHECK(stats_of(replay).samples == 4);
    change(replay, 1, ids);

    draw(twin, BATCH, &expected);
    check_batch(&batch, &expected, BATCH);
    CHECK_OK(per_loader_release(loader, second, NULL));
    draw(twin, BATCH, &expected);
    third = take(loader, &batch);
    check_batch(&batch, &expected, BATCH);
    CHECK_OK(per_loader_release(loader, third, NULL));
    change(twin, 0, ids);
    draw(twin, BATCH, &expected);
    take(loader, &batch);
    check_batch(&batch, &expected, BATCH);
    per_loader_free(loader);
    per_replay_free(replay);
    per_replay_free(twin);
}

int main(void) {
    follows_the_order_of_calls(1);
    follows_the_order_of_calls(3);
    follows_the_order_of_calls(MOST_SLOTS);
    release_asks_where_handing_out_could_not();
    return 0;
}

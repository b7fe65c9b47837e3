/*
 * The draws of a loader depend only on the order of the consumer's calls: creation requests `slots` batches, handing
 * one out requests the next, and later updates, adds and settings wait for these draws. The reference is a buffer
 * without a loader that draws as many batches ahead by hand. Batches are so large that a call which did not wait would
 * overtake the draw.
 */
#include "loader_check.h"

enum { ROUNDS = 60, MOST_SLOTS = 5 };

static int64_t batch_size, n_steps; /* for the first fill */

static per_replay* filled(void) {
    per_replay_options options = replay_options(n_steps + 100, 1);
    options.seed = 9;
    options.n_step = 2;
    return create_filled(&options, n_steps);
}

/* Makes the same calls on both buffers; `ids` are those of the batch just handed out. */
static void change(per_replay* replay, int round, const int64_t* ids) {
    static float priorities[MANY];
    for (int i = 0; i < batch_size; ++i) priorities[i] = (float)((ids[i] * 7 + round) % 100);
    switch (round % 6) {
        case 0:
        case 1:
            CHECK_OK(write_priorities(replay, batch_size, ids, priorities, NULL));
            break;
        case 2:
            CHECK_OK(write_td_errors(replay, batch_size, ids, 1, priorities, NULL));
            break;
        case 3:
            add_full(replay, 0, (float)(n_steps + round), 0, GOES_ON, (float)(n_steps + round) + 1);
            break;
        case 4:
            CHECK_OK(change_alpha(replay, 0.5 + 0.01 * round, NULL));
            break;
        default:
            CHECK_OK(per_replay_cut(replay, 0, NULL, NULL));
            CHECK_OK(change_gamma(replay, 0.9 - 0.001 * round, NULL));
    }
}

static void follows_the_order_of_calls(int slots) {
    static rows ahead[MOST_SLOTS]; /* batches of the buffer without a loader, by number modulo slots */
    per_replay *replay = filled(), *twin = filled();
    per_loader* loader = create_loader(replay, batch_size, slots, NULL);
    for (int round = 0; round < slots; ++round) draw(twin, batch_size, &ahead[round]);
    for (int round = 0; round < (on_cuda() ? 18 : ROUNDS); ++round) {
        rows* expected = &ahead[round % slots];
        static int64_t ids[MANY];
        per_batch batch;
        const int64_t slot = take(loader, &batch);
        change(replay, round, batch.ids); /* immediately, while the next draw may still be waiting */
        check_batch(&batch, expected, batch_size);
        memcpy(ids, expected->ids, sizeof ids);
        draw(twin, batch_size, expected);
        change(twin, round, ids);
        CHECK_OK(per_loader_release(loader, slot, NULL));
    }
    free_loader(loader, replay, twin);
}

/* While two batches are out there is no memory for the next draw: the release requests it. */
static void release_asks_where_handing_out_could_not(void) {
    static rows expected;
    per_replay *replay = filled(), *twin = filled();
    per_loader* loader = create_loader(replay, batch_size, 2, NULL);
    per_batch batch;
    static int64_t ids[MANY];
    draw(twin, batch_size, &expected);
    int64_t first = take(loader, &batch); /* requests the third */
    memcpy(ids, batch.ids, (size_t)batch_size * sizeof *ids);
    int64_t second = take(loader, &batch);
    CHECK(stats_of(replay).samples == 3);
    change(replay, 0, ids);
    CHECK_OK(per_loader_release(loader, first, NULL)); /* requests the fourth */
    CHECK(stats_of(replay).samples == 4);
    change(replay, 1, ids);

    draw(twin, batch_size, &expected);
    check_batch(&batch, &expected, batch_size);
    CHECK_OK(per_loader_release(loader, second, NULL));
    draw(twin, batch_size, &expected);
    int64_t third = take(loader, &batch);
    check_batch(&batch, &expected, batch_size);
    CHECK_OK(per_loader_release(loader, third, NULL));
    change(twin, 0, ids);
    draw(twin, batch_size, &expected);
    take(loader, &batch);
    check_batch(&batch, &expected, batch_size);
    free_loader(loader, replay, twin);
}

int main(void) {
    batch_size = large_batch();
    n_steps = on_cuda() ? 100 : 3000;
    follows_the_order_of_calls(1);
    follows_the_order_of_calls(3);
    follows_the_order_of_calls(MOST_SLOTS);
    release_asks_where_handing_out_could_not();
    return 0;
}

/*
 * Values that a message calls allowed are accepted, and all others refused, if the bound follows from the buffer or
 * from another argument.
 */
#define _POSIX_C_SOURCE 200809L
#include "replay_check.h"

static per_replay_options sequences_of(int64_t length, int64_t burn_in) {
    per_replay_options options = replay_options(60, 2);
    options.sequence_length = length;
    options.burn_in = burn_in;
    return options;
}

static void channels(void) {
    per_replay* replay = create_plain(20, 2);
    per_channel* channel = NULL;
    per_writer* writer = NULL;
    FILE* const file = tmpfile();
    char path[40];
    per_channel_options of_channel = default_channel_options();
    of_channel.moved_by = 2;
    CHECK_REFUSED(per_channel_create(replay, &of_channel, &channel), "moved_by is 2");
    /* An ordinary file, by its path. */
    CHECK(file != NULL);
    sprintf(path, "/proc/self/fd/%d", fileno(file));
    CHECK_FAILS(per_writer_attach(path, -1, NULL, 0, 0, &writer), PER_ERROR_CORRUPT_FILE, path);
    fclose(file);
    per_replay_free(replay);
}

/* The error for a capacity that is too small gives the smallest that is enough. */
static void least_capacities(void) {
    per_replay_options options = sequences_of(3, 2);
    per_replay* replay = NULL;
    options.n_step = 4;
    options.capacity = 2 * (5 + 3 + 2) - 2; /* for each lane burn_in + length, n_step - 1, and 2 next observations */
    CHECK_REFUSED(per_replay_create(&options, &replay), "; the least capacity is 20");
    options.capacity = 20;
    CHECK_OK(per_replay_create(&options, &replay));
    per_replay_free(replay);
}

static per_status get_reward(per_replay* replay, int64_t id) {
    float reward;
    per_batch batch;
    CHECK_OK(per_batch_init(&batch, sizeof batch));
    batch.reward = &reward;
    return per_replay_get(replay, 1, &id, &batch, NULL);
}

/* The error for an id that was never issued gives those that were, and for an overwritten row the oldest one left. */
static void ids(void) {
    per_replay* replay = create_plain(20, 2);
    CHECK_REFUSED(get_reward(replay, 1), "ids[0] is 1: never issued; no step was added yet");
    for (int t = 0; t < 16; ++t) CHECK(add_step(replay, 0, (float)t, 0) == 2 * t);
    CHECK_REFUSED(get_reward(replay, 1), "ids[0] is 1: never issued; no step of environment 1 was added yet");
    CHECK(add_step(replay, 1, 0, 0) == 1);
    CHECK_REFUSED(get_reward(replay, 3), "ids[0] is 3: never issued; the latest of environment 1 is 1");
    CHECK_REFUSED(get_reward(replay, 32), "ids[0] is 32: never issued; ids so far are 0 .. 30");
    CHECK_OK(get_reward(replay, 30));
    /* A lane has ten rows. */
    CHECK_REFUSED(get_reward(replay, 10),
                  "ids[0] is 10: overwritten; the oldest row of environment 0 still stored is 12");
    CHECK_OK(get_reward(replay, 12));
    CHECK_OK(per_replay_clear(replay, NULL));
    CHECK_REFUSED(get_reward(replay, 12), "ids[0] is 12: cleared; no step was added since");
    CHECK(add_step(replay, 0, 0, 0) == 32);
    CHECK_REFUSED(get_reward(replay, 12), "ids[0] is 12: cleared; the oldest row of environment 0 still stored is 32");
    per_replay_free(replay);
}

int main(void) {
    least_capacities();
    ids();
    channels();
    return 0;
}

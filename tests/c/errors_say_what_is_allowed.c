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

/* per_replay_compute_capacity(): each lane has room for its share of the requested transitions. */
static void capacities(void) {
    per_replay_options options = replay_options(0, 2);
    int64_t capacity = -7;
    CHECK_OK(per_replay_compute_capacity(&options, 10, 0, &capacity));
    CHECK(capacity == 2 * (5 + 1 + 1)); /* t = 5 in each lane, plus n_step and stack */
    CHECK_OK(per_replay_compute_capacity(&options, 10, 2, &capacity));
    CHECK(capacity == 2 * (5 + (5 - 1) / 2 + 1 + 1)); /* and two final observations */
    CHECK_OK(per_replay_compute_capacity(&options, 10, INT64_MAX, &capacity));
    CHECK(capacity == 2 * (5 + 1 + 1));
    CHECK_REFUSED(per_replay_compute_capacity(&options, 10, -1, &capacity),
                  "episode_length is -1: allowed are 0 .. 9223372036854775807");
    options = sequences_of(3, 2);
    CHECK_OK(per_replay_compute_capacity(&options, 4, 3, &capacity));
    CHECK(capacity > 0);
    CHECK_REFUSED(per_replay_compute_capacity(&options, 4, 2, &capacity),
                  "episode_length is 2: must be more than burn_in, 2");
}

static void environments(void) {
    per_replay* replay = create_plain(20, 2);
    const int64_t env = 2;
    CHECK_REFUSED(per_replay_cut(replay, 1, &env, NULL), "env_ids[0] is 2: allowed are 0 .. 1");
    per_replay_free(replay);
}

static void steps_of_errors(void) {
    const per_replay_options options = sequences_of(3, 1);
    per_replay* replay = create_replay(&options);
    const float td_errors[5] = {0};
    const int64_t id = add_step(replay, 0, 0, 0);
    CHECK_REFUSED(write_sequence_errors(replay, 1, &id, 1, 5, td_errors, NULL),
                  "n_steps is 5: allowed are 3 and, with the burn-in, 4 or 0");
    CHECK_REFUSED(write_sequence_errors(replay, 1, &id, 1, 2, td_errors, NULL),
                  "n_steps is 2: allowed are 3 and, with the burn-in, 4 or 0");
    per_replay_free(replay);
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

int main(void) {
    capacities();
    channels();
    environments();
    steps_of_errors();
    return 0;
}

/* Channels for tests, over buffers with the one field of replay_check.h. */
#ifndef CHANNEL_CHECK_H
#define CHANNEL_CHECK_H

#include "replay_check.h"

static inline per_channel* create_channel_moved_by(int32_t moved_by, per_replay* replay, int64_t n_envs,
                                                   const int64_t* env_ids, int64_t slots, int32_t when_full) {
    per_channel_options options = default_channel_options();
    per_channel* channel = NULL;
    options.n_envs = n_envs;
    options.env_ids = env_ids;
    options.slots = slots;
    options.when_full = when_full;
    options.moved_by = moved_by;
    CHECK_OK(per_channel_create(replay, &options, &channel));
    CHECK(channel != NULL);
    return channel;
}

static inline per_channel* create_channel(per_replay* replay, int64_t n_envs, const int64_t* env_ids, int64_t slots,
                                          int32_t when_full) {
    return create_channel_moved_by(PER_MOVED_BY_THREAD, replay, n_envs, env_ids, slots, when_full);
}

/* Moves up to max_steps steps and returns their number. */
static inline int64_t moved(per_channel* channel, int64_t max_steps) {
    int64_t steps = -1;
    CHECK_OK(per_channel_move(channel, max_steps, &steps));
    CHECK(steps >= 0 && steps <= max_steps);
    return steps;
}

static inline const char* path_of(per_channel* channel) {
    const char* path = NULL;
    CHECK_OK(per_channel_get_address(channel, &path, NULL));
    return path;
}

static inline per_writer* attach(const char* path) {
    per_writer* writer = NULL;
    CHECK_OK(per_writer_attach(path, -1, NULL, 0, 0, &writer));
    CHECK(writer != NULL);
    return writer;
}

static inline void free_channel(per_writer* writer, per_channel* channel, per_replay* replay) {
    per_writer_free(writer);
    per_channel_free(channel);
    per_replay_free(replay);
}

static inline int32_t descriptor_of(per_channel* channel) {
    int32_t descriptor = -1;
    CHECK_OK(per_channel_get_address(channel, NULL, &descriptor));
    return descriptor;
}

static inline per_channel_statistics channel_stats(per_channel* channel) {
    per_channel_statistics statistics;
    CHECK_OK(per_channel_get_statistics(channel, &statistics, sizeof statistics));
    return statistics;
}

/* One step of a channel with one environment. Observation, reward and next observation identify it. */
static inline per_status write_step(per_writer* writer, float observation, float next, int ends, int64_t timeout_ms) {
    const uint8_t no = 0, terminated = (uint8_t)(ends != 0);
    const per_array field = array_of(&observation, PER_FLOAT32), next_field = array_of(&next, PER_FLOAT32);
    const per_steps steps = steps_of(1, &field, &next_field, &observation, &terminated, &no);
    return per_writer_add(writer, &steps, timeout_ms);
}

#endif

/* Calls of per/files.h with some of their options set, for tests in C and in C++. */
#ifndef CHECKPOINTS_H
#define CHECKPOINTS_H

#include <per.h>

static inline per_status save_to(per_replay* replay, int64_t (*write)(void* context, const void* bytes, int64_t size),
                                 void* context) {
    per_save_options options;
    per_save_options_init(&options, sizeof options);
    options.write = write;
    options.context = context;
    return per_replay_save(replay, NULL, &options);
}

static inline per_status checkpoint_within(per_replay* replay, const char* directory, int64_t timeout_ms,
                                           int64_t* bytes_written_out) {
    per_save_options options;
    per_save_options_init(&options, sizeof options);
    options.timeout_ms = timeout_ms;
    return per_replay_checkpoint(replay, directory, &options, bytes_written_out);
}

static inline per_status load_on(const char* path, int32_t device, int32_t device_index, per_replay** replay_out) {
    per_load_options options;
    per_load_options_init(&options, sizeof options);
    options.device = device;
    options.device_index = device_index;
    return per_replay_load(path, &options, replay_out);
}

static inline per_status load_from(int64_t (*read)(void* context, void* bytes_out, int64_t size), void* context,
                                   int32_t device, int32_t device_index, per_replay** replay_out) {
    per_load_options options;
    per_load_options_init(&options, sizeof options);
    options.device = device;
    options.device_index = device_index;
    options.read = read;
    options.context = context;
    return per_replay_load(NULL, &options, replay_out);
}

#endif

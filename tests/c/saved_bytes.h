/* Saves in memory. */
#ifndef SAVED_BYTES_H
#define SAVED_BYTES_H

#include "checkpoints.h"
#include "replay_check.h"

/* Zeros are an empty file. */
typedef struct bytes {
    unsigned char* data;
    int64_t size, n_read;
} bytes;

static inline int64_t append(void* context, const void* data, int64_t size) {
    bytes* const to = context;
    to->data = realloc(to->data, (size_t)(to->size + size));
    CHECK(to->data != NULL);
    memcpy(to->data + to->size, data, (size_t)size);
    to->size += size;
    return size;
}

static inline int64_t read_on(void* context, void* data_out, int64_t size) {
    bytes* const from = context;
    const int64_t left = from->size - from->n_read, n = size < left ? size : left;
    memcpy(data_out, from->data + from->n_read, (size_t)n);
    from->n_read += n;
    return n;
}

/* The caller must free data. */
static inline bytes saved(per_replay* replay) {
    bytes all = {NULL, 0, 0};
    CHECK_OK(save_to(replay, append, &all));
    return all;
}

/* Saving the buffer gives these bytes. */
static inline void check_saved_as(const bytes* expected, per_replay* replay) {
    const bytes now = saved(replay);
    CHECK(now.size == expected->size && memcmp(now.data, expected->data, (size_t)now.size) == 0);
    free(now.data);
}

static inline void check_same_saves(per_replay* replay, per_replay* twin) {
    const bytes expected = saved(twin);
    check_saved_as(&expected, replay);
    free(expected.data);
}

/* A buffer on the tested device, loaded from a save of the given one. */
static inline per_replay* reloaded(per_replay* replay) {
    bytes file = saved(replay);
    per_replay* loaded = NULL;
    CHECK_OK(load_from(read_on, &file, test_device(), 0, &loaded));
    free(file.data);
    return loaded;
}

#endif

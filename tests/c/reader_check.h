/* Shared loaders and their readers for tests, over buffers with the one field of replay_check.h. */
#ifndef READER_CHECK_H
#define READER_CHECK_H

#include "loader_check.h"

static inline per_shared_loader* share_batches(per_replay* replay, int64_t batch_size, int64_t readers, int64_t slots,
                                               const per_sample_options* sample) {
    per_shared_loader_options options = default_shared_loader_options();
    per_shared_loader* loader = NULL;
    options.batch_size = batch_size;
    options.readers = readers;
    options.slots = slots;
    options.sample = sample;
    CHECK_OK(per_shared_loader_create(replay, &options, &loader));
    CHECK(loader != NULL);
    return loader;
}

static inline const char* path_of_batches(per_shared_loader* loader) {
    const char* path = NULL;
    CHECK_OK(per_shared_loader_get_address(loader, &path, NULL));
    return path;
}

static inline int32_t descriptor_of_batches(per_shared_loader* loader) {
    int32_t descriptor = -1;
    CHECK_OK(per_shared_loader_get_address(loader, NULL, &descriptor));
    return descriptor;
}

static inline per_reader* attach_reader(const char* path) {
    per_reader* reader = NULL;
    CHECK_OK(per_reader_attach(path, -1, &reader));
    CHECK(reader != NULL);
    return reader;
}

static inline void free_shared(per_reader* reader, per_shared_loader* loader, per_replay* replay) {
    per_reader_free(reader);
    per_shared_loader_free(loader);
    per_replay_free(replay);
}

static inline per_shared_loader_statistics sharing_stats(per_shared_loader* loader) {
    per_shared_loader_statistics statistics;
    CHECK_OK(per_shared_loader_get_statistics(loader, &statistics, sizeof statistics));
    return statistics;
}

static inline per_status try_read(per_reader* reader, int64_t timeout_ms, per_batch* batch, int64_t* slot) {
    *batch = default_batch();
    return per_reader_next(reader, timeout_ms, batch, slot);
}

/* Waits for the next batch and returns its slot. */
static inline int64_t read_batch(per_reader* reader, per_batch* batch) {
    int64_t slot = -1;
    CHECK_OK(try_read(reader, -1, batch, &slot));
    return slot;
}

#endif

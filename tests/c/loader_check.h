/*
 * Loaders for tests, over buffers with the one field of replay_check.h: on the CPU, or on CUDA if the buffers are there
 * (device_check.h) or PER_TEST_LOADER_DEVICE is "cuda". The host must then be able to use device memory directly, and
 * the work of each call must be done when it returns.
 */
#ifndef LOADER_CHECK_H
#define LOADER_CHECK_H

#include "replay_check.h"

static inline int32_t loader_device(void) {
    const char* device = getenv("PER_TEST_LOADER_DEVICE");
    if (on_cuda()) return PER_CUDA;
    return device != NULL && strcmp(device, "cuda") == 0 ? PER_CUDA : PER_CPU;
}

static inline per_loader* create_loader_on(int32_t device, per_replay* replay, int64_t batch_size, int64_t slots,
                                           const per_sample_options* sample) {
    per_loader_options options = default_loader_options();
    per_loader* loader = NULL;
    options.batch_size = batch_size;
    options.slots = slots;
    options.sample = sample;
    options.device = device;
    CHECK_OK(per_loader_create(replay, &options, &loader));
    CHECK(loader != NULL);
    return loader;
}

static inline per_loader* create_loader(per_replay* replay, int64_t batch_size, int64_t slots,
                                        const per_sample_options* sample) {
    return create_loader_on(loader_device(), replay, batch_size, slots, sample);
}

/* twin: NULL if there is only one buffer. */
static inline void free_loader(per_loader* loader, per_replay* replay, per_replay* twin) {
    per_loader_free(loader);
    free_both(replay, twin);
}

/* Batches are so large that a call which did not wait for their draws would overtake them. */
static inline int64_t large_batch(void) {
    return on_cuda() ? 32 : MANY;
}

static inline per_status try_next(per_loader* loader, int64_t timeout_ms, per_batch* batch, int64_t* slot) {
    *batch = default_batch();
    return per_loader_next(loader, timeout_ms, batch, slot, NULL);
}

/* Waits for the next batch and returns its slot. */
static inline int64_t take(per_loader* loader, per_batch* batch) {
    int64_t slot = -1;
    CHECK_OK(try_next(loader, -1, batch, &slot));
    return slot;
}

static inline void check_same(const void* array, const void* expected, int64_t count, size_t size) {
    CHECK(array != NULL && memcmp(array, expected, (size_t)count * size) == 0);
}

/* Compares every array, bit for bit. */
static inline void check_batch(const per_batch* batch, const rows* expected, int64_t count) {
    check_same(batch->fields[0], expected->observation, count, sizeof(float));
    check_same(batch->next_fields[0], expected->next, count, sizeof(float));
    check_same(batch->reward, expected->reward, count, sizeof(float));
    check_same(batch->discount, expected->discount, count, sizeof(float));
    check_same(batch->n_steps, expected->n_steps, count, sizeof(int32_t));
    check_same(batch->terminated, expected->terminated, count, 1);
    check_same(batch->truncated, expected->truncated, count, 1);
    check_same(batch->weights, expected->weights, count, sizeof(float));
    check_same(batch->ids, expected->ids, count, sizeof(int64_t));
    check_same(batch->priorities, expected->priorities, count, sizeof(float));
    check_same(batch->probabilities, expected->probabilities, count, sizeof(float));
    check_same(batch->gamma_m, expected->gamma_m, count, sizeof(float));
    CHECK(batch->mask == NULL);
}

/* The next batch is the one that `twin`, a buffer without a loader, draws now. */
static inline void check_next(per_loader* loader, per_replay* twin, int64_t batch_size) {
    static rows expected;
    per_batch batch;
    const int64_t slot = take(loader, &batch);
    draw(twin, batch_size, &expected);
    check_batch(&batch, &expected, batch_size);
    CHECK_OK(per_loader_release(loader, slot, NULL));
}

#endif

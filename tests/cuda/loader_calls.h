// Loaders for tests on the simulated GPU, batches taken from them, and failing calls.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <vector>

#include "per.h"
#include "simulator.h"
#include "steered_simulator.h"

namespace per::test {

struct FreeLoader {
    void operator()(per_loader* loader) const { per_loader_free(loader); }
};
using LoaderHandle = std::unique_ptr<per_loader, FreeLoader>;

inline per_loader_options loader_options_of(int64_t batch_size, int32_t device, int64_t slots) {
    per_loader_options options;
    per_loader_options_init(&options, sizeof options);
    options.batch_size = batch_size;
    options.slots = slots;
    options.device = device;
    return options;
}

inline LoaderHandle create_loader(per_replay* replay, const per_loader_options& options) {
    per_loader* loader = nullptr;
    EXPECT_EQ(per_loader_create(replay, &options, &loader), PER_OK) << per_last_error();
    return LoaderHandle(loader);
}

// A batch that is out.
struct Taken {
    per_status status;
    per_batch batch;
    int64_t slot = -7;
};

inline Taken take(const LoaderHandle& loader, cudaStream_t stream, int64_t timeout_ms = -1) {
    Taken taken;
    per_batch_init(&taken.batch, sizeof taken.batch);
    taken.status = per_loader_next(loader.get(), timeout_ms, &taken.batch, &taken.slot, stream);
    return taken;
}

// Throws if there is no batch, which fails the test.
inline Taken take_batch(const LoaderHandle& loader, cudaStream_t stream) {
    const Taken taken = take(loader, stream);
    if (taken.status != PER_OK) throw std::runtime_error(per_last_error());
    return taken;
}

struct BatchArray {
    const void* first;
    std::size_t bytes;
};

// The arrays of a batch except those of its fields: of n transitions, or of n sequences if they have steps.
inline std::vector<BatchArray> arrays_besides_fields(const per_batch& batch, int64_t n, int64_t steps = 0) {
    const auto of_entries = static_cast<std::size_t>(n);
    const auto of_steps = static_cast<std::size_t>(n * std::max<int64_t>(steps, 1));
    std::vector<BatchArray> arrays = {{batch.reward, of_steps * 4},       {batch.discount, of_steps * 4},
                                      {batch.n_steps, of_steps * 4},      {batch.terminated, of_steps},
                                      {batch.truncated, of_steps},        {batch.gamma_m, of_steps * 4},
                                      {batch.weights, of_entries * 4},    {batch.ids, of_entries * 8},
                                      {batch.priorities, of_entries * 4}, {batch.probabilities, of_entries * 4}};
    if (steps != 0) arrays.push_back({batch.mask, of_steps});
    return arrays;
}

using Bytes = std::vector<std::vector<char>>;

// Copies arrays of host memory.
inline Bytes bytes_of(const std::vector<BatchArray>& arrays) {
    Bytes bytes;
    for (const BatchArray& array : arrays) {
        const char* const first = static_cast<const char*>(array.first);
        bytes.emplace_back(first, first + array.bytes);
    }
    return bytes;
}

// Enqueues copies of device arrays. They are complete once the stream has finished its work.
inline Bytes queue_read(const std::vector<BatchArray>& arrays, cudaStream_t stream,
                        cudaMemcpyKind kind = cudaMemcpyDeviceToDevice) {
    Bytes bytes;
    for (const BatchArray& array : arrays) {
        bytes.emplace_back(array.bytes, '\x77');
        cudaMemcpyAsync(bytes.back().data(), array.first, array.bytes, kind, stream);
    }
    return bytes;
}

// Repeats a call during which the runtime fails, until it succeeds. Returns the number of failures.
template <class Call>
int failures_until_success(const Call& call, int most_failures = 5) {
    per_status status = call();
    int n_failed = 0;
    for (; status != PER_OK && n_failed < most_failures; ++n_failed, status = call())
        expect_status(PER_ERROR_CUDA, status, "cudaErrorInvalidValue");
    EXPECT_EQ(status, PER_OK);
    return n_failed;
}

inline int failures_of_take(const LoaderHandle& loader, cudaStream_t stream, Taken& taken, int most_failures = 5) {
    const auto call = [&] {
        taken = take(loader, stream);
        return taken.status;
    };
    return failures_until_success(call, most_failures);
}

inline int failures_of_release(const LoaderHandle& loader, int64_t slot, cudaStream_t stream, int most_failures = 5) {
    return failures_until_success([&] { return per_loader_release(loader.get(), slot, stream); }, most_failures);
}

// Expects that, since the counters were reset, this thread has not waited, its releases have not interrupted the host,
// and no thread has allocated memory or busy-waited.
inline void expect_free_running_consumer() {
    EXPECT_EQ(simulator::counters_of_thread().host_waits, 0u);
    EXPECT_EQ(simulator::counters_of_thread().interrupts, 0u);
    EXPECT_EQ(simulator::counters().allocations, 0u);
    EXPECT_EQ(simulator::counters().spins, 0u);
}

// Expects creation to leave no loader if any call of the runtime fails; the buffer can then have another one.
inline void expect_no_loader_where_creation_fails(per_replay* replay, const per_loader_options& options) {
    int n_failed = 0;
    for (uint64_t n = 0; n < 60; ++n) {
        simulator::fail_call(n, n % 2 == 0 ? cudaErrorMemoryAllocation : cudaErrorInvalidValue);
        per_loader* loader = nullptr;
        const per_status status = per_loader_create(replay, &options, &loader);
        simulator::fail_call(0, 0);
        EXPECT_EQ(loader == nullptr, status != PER_OK);
        EXPECT_NE(status, PER_ERROR_BUSY);
        n_failed += status != PER_OK;
        per_loader_free(loader);
    }
    EXPECT_GT(n_failed, 10);
}

}  // namespace per::test

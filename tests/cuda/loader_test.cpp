// Loaders of buffers in host memory that hand out batches in the memory of a CUDA device, through per.h: their batches,
// waits of a consumer, captures, errors of the runtime, devices, forks.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "../cpp/replay_call.h"
#include "graph.h"
#include "loader_calls.h"
#include "per.h"
#include "simulator.h"

namespace per::test {
namespace {

constexpr int64_t batch_size = 16;
constexpr int64_t n_rows = 200;

Buffer filled(uint64_t seed, int64_t sequence_length = 0) {
    per_replay_options options = Buffer::options(n_rows + 100, 2);
    options.seed = seed;
    options.beta_steps = 30;
    options.sequence_length = sequence_length;
    Buffer buffer(options);
    for (int64_t i = 0; i < n_rows; ++i) {
        const auto serial = static_cast<float>(i);
        GivenStep step;
        step.observation = {0, serial};
        step.next = {0, serial + 1};
        step.reward = serial / 3;
        step.action = i;
        step.truncated = i % 23 == 22;
        buffer.step(step);
    }
    return buffer;
}

LoaderHandle loader_of(const Buffer& buffer, int32_t device, int64_t slots = 3) {
    return create_loader(buffer.get(), loader_options_of(batch_size, device, slots));
}

// All arrays of a batch.
std::vector<BatchArray> arrays_of(const per_batch& batch, int64_t steps = 0) {
    std::vector<BatchArray> arrays = arrays_besides_fields(batch, batch_size, steps);
    const std::size_t n = batch_size * static_cast<std::size_t>(steps == 0 ? 1 : steps);
    arrays.push_back({batch.fields[0], (steps == 0 ? n : n + 2 * batch_size) * 8});
    arrays.push_back({batch.fields[1], n * 8});
    if (steps == 0) arrays.push_back({batch.next_fields[0], n * 8});
    if (steps != 0) arrays.push_back({batch.fields[2], batch_size * 4});
    return arrays;
}

class CudaLoader : public TwoStreams {
 protected:
    // The same calls on a buffer with a loader on the device and on a twin with one on the CPU: batches are used on
    // alternating streams, priorities depend on them, and the host waits only at the end.
    void expect_those_of_the_cpu(uint64_t seed, int64_t slots, int64_t steps = 0) {
        simulator::options().seed = seed;
        Buffer buffer = filled(seed, steps), twin = filled(seed, steps);
        const LoaderHandle loader = loader_of(buffer, PER_CUDA, slots), plain = loader_of(twin, PER_CPU, slots);
        std::vector<Bytes> read(30), expected;
        for (std::size_t i = 0; i < read.size(); ++i) {
            const Taken plainly = take_batch(plain, nullptr);
            expected.push_back(bytes_of(arrays_of(plainly.batch, steps)));
            const std::vector<int64_t> ids(plainly.batch.ids, plainly.batch.ids + batch_size);
            std::vector<float> priorities;
            for (const int64_t id : ids)
                priorities.push_back(static_cast<float>((id * 7 + static_cast<int64_t>(i)) % 5));
            write_priorities(twin.get(), batch_size, ids.data(), priorities.data(), nullptr);
            ASSERT_EQ(per_loader_release(plain.get(), plainly.slot, nullptr), PER_OK);

            const cudaStream_t stream = streams_[i % 3 == 0];
            const Taken taken = take_batch(loader, stream);
            read[i] = queue_read(arrays_of(taken.batch, steps), stream, cudaMemcpyDeviceToHost);
            cudaMemsetAsync(taken.batch.ids, 0xEE, batch_size * sizeof(int64_t), stream);
            write_priorities(buffer.get(), batch_size, ids.data(), priorities.data(), nullptr);
            ASSERT_EQ(per_loader_release(loader.get(), taken.slot, stream), PER_OK) << per_last_error();
        }
        for (cudaStream_t stream : streams_) cudaStreamSynchronize(stream);
        ASSERT_EQ(read, expected);
        EXPECT_EQ(buffer.statistics().beta_step, twin.statistics().beta_step);
    }
};

TEST_F(CudaLoader, batches_are_those_of_a_loader_on_the_cpu_under_any_schedule) {
    for (uint64_t seed = 0; seed < 40; ++seed) {
        expect_those_of_the_cpu(seed, 1 + static_cast<int64_t>(seed % 3));
        ASSERT_FALSE(HasFailure()) << "seed " << seed;
    }
}

TEST_F(CudaLoader, batches_of_sequences_are_those_of_a_loader_on_the_cpu) {
    for (uint64_t seed = 0; seed < 5; ++seed) {
        expect_those_of_the_cpu(seed, 2, 5);
        ASSERT_FALSE(HasFailure()) << "seed " << seed;
    }
}

TEST_F(CudaLoader, the_consumer_waits_for_nothing_and_nothing_is_allocated) {
    Buffer buffer = filled(1);
    constexpr int slots = 3;
    const LoaderHandle loader = loader_of(buffer, PER_CUDA, slots);
    simulator::reset_counters();  // the first batches may have been drawn already
    for (int i = 0; i < 50 + slots; ++i) {
        const Taken taken = take_batch(loader, streams_[0]);
        cudaMemsetAsync(taken.batch.ids, 0xEE, 8, streams_[0]);
        const int64_t id = i;
        const float priority = 2;
        write_priorities(buffer.get(), 1, &id, &priority, nullptr);
        ASSERT_EQ(per_loader_release(loader.get(), taken.slot, streams_[0]), PER_OK);
    }
    expect_free_running_consumer();
    EXPECT_GE(simulator::counters().host_waits, 50u);  // waits of the drawing thread
}

TEST_F(CudaLoader, several_consumers_each_get_whole_batches_on_their_streams) {
    Buffer buffer = filled(3);
    const LoaderHandle loader = loader_of(buffer, PER_CUDA, 3);
    const auto consume = [&](cudaStream_t stream) {
        for (int i = 0; i < 60; ++i) {
            const Taken taken = take(loader, stream);
            ASSERT_EQ(taken.status, PER_OK);
            void* const* const fields = taken.batch.fields;
            std::vector<Observation> observations(batch_size);
            std::vector<int64_t> actions(batch_size);
            cudaMemcpyAsync(observations.data(), fields[0], batch_size * 8, cudaMemcpyDeviceToHost, stream);
            cudaMemcpyAsync(actions.data(), fields[1], batch_size * 8, cudaMemcpyDeviceToHost, stream);
            cudaMemsetAsync(fields[1], 0xEE, batch_size * 8, stream);
            ASSERT_EQ(per_loader_release(loader.get(), taken.slot, stream), PER_OK);
            cudaStreamSynchronize(stream);
            for (std::size_t k = 0; k < batch_size; ++k)
                ASSERT_EQ(observations[k], (Observation{0, static_cast<float>(actions[k])}));
        }
    };
    std::thread other(consume, streams_[1]);
    consume(streams_[0]);
    other.join();
    EXPECT_EQ(buffer.statistics().beta_step, 120);
}

// ---- captures

TEST_F(CudaLoader, calls_on_a_captured_stream_are_refused) {
    Buffer buffer = filled(1);
    const LoaderHandle loader = loader_of(buffer, PER_CUDA, 2);
    const Taken taken = take_batch(loader, streams_[0]);
    while_captured(streams_[0], [&] {
        const Taken none = take(loader, streams_[0]);
        expect_status(PER_ERROR_INVALID_ARGUMENT, none.status, "captured");
        EXPECT_EQ(none.batch.ids, nullptr);
        EXPECT_EQ(none.slot, -7);
        expect_status(PER_ERROR_INVALID_ARGUMENT, per_loader_release(loader.get(), taken.slot, streams_[0]),
                      "captured");
    });
    EXPECT_EQ(buffer.statistics().beta_step, 1);  // only the first was handed out
    EXPECT_EQ(per_loader_release(loader.get(), taken.slot, streams_[0]), PER_OK);
}

// The drawing thread waits for copies while the program captures.
TEST_F(CudaLoader, a_capture_elsewhere_is_not_spoilt) {
    Buffer buffer = filled(1);
    const LoaderHandle loader = loader_of(buffer, PER_CUDA, 1);
    int number = 0;
    while_captured(streams_[1], [&] {
        for (int i = 0; i < 10; ++i) {
            const Taken taken = take(loader, streams_[0]);
            EXPECT_EQ(taken.status, PER_OK) << per_last_error();
            EXPECT_EQ(per_loader_release(loader.get(), taken.slot, streams_[0]), PER_OK) << per_last_error();
        }
        EXPECT_EQ(cudaMemsetAsync(&number, 0, sizeof number, streams_[1]), cudaSuccess);
    });
}

// ---- errors of the runtime

// Any call may fail, on any thread: the batches are the same as without the failure.
TEST_F(CudaLoader, an_error_of_cuda_reaches_the_consumer_and_no_batch_is_lost) {
    Buffer buffer = filled(5), twin = filled(5);
    const LoaderHandle loader = loader_of(buffer, PER_CUDA), plain = loader_of(twin, PER_CPU);
    int n_failed = 0;
    for (uint64_t n = 0; n < 60; ++n) {
        Taken taken;
        simulator::fail_call(n % 20, cudaErrorInvalidValue);
        n_failed += failures_of_take(loader, streams_[0], taken);
        const Taken plainly = take_batch(plain, nullptr);
        simulator::fail_call(0, 0);
        const Bytes read = queue_read(arrays_of(taken.batch), streams_[0], cudaMemcpyDeviceToHost);
        cudaStreamSynchronize(streams_[0]);
        ASSERT_EQ(read, bytes_of(arrays_of(plainly.batch))) << "batch " << n;
        simulator::fail_call(n % 4, cudaErrorInvalidValue);
        n_failed += failures_of_release(loader, taken.slot, streams_[0]);
        ASSERT_EQ(per_loader_release(plain.get(), plainly.slot, nullptr), PER_OK);
    }
    EXPECT_GT(n_failed, 10);
    EXPECT_EQ(buffer.statistics().beta_step, 60);
}

TEST_F(CudaLoader, a_sticky_error_is_answered_by_every_call_and_free_works) {
    Buffer buffer = filled(1);
    LoaderHandle loader = loader_of(buffer, PER_CUDA);
    const Taken taken = take_batch(loader, streams_[0]);
    simulator::stick(cudaErrorIllegalAddress);
    for (int i = 0; i < 5; ++i) {
        expect_status(PER_ERROR_CUDA, take(loader, streams_[0]).status, "cudaErrorIllegalAddress");
        expect_status(PER_ERROR_CUDA, per_loader_release(loader.get(), taken.slot, streams_[0]),
                      "cudaErrorIllegalAddress");
    }
    EXPECT_EQ(per_loader_stop(loader.get()), PER_OK);
    loader.reset();
    simulator::stick(0);
    // The buffer stays usable, and may have another loader.
    std::vector<Row> rows;
    EXPECT_EQ(buffer.sample(8, rows), PER_OK);
    loader = loader_of(buffer, PER_CUDA);
    EXPECT_EQ(take(loader, streams_[0]).status, PER_OK);
}

TEST_F(CudaLoader, a_failing_call_of_creation_leaves_no_loader_and_no_leak) {
    Buffer buffer = filled(1);
    expect_no_loader_where_creation_fails(buffer.get(), loader_options_of(batch_size, PER_CUDA, 3));
}

// ---- devices, forks

TEST_F(CudaLoader, no_device_says_why) {
    Buffer buffer = filled(1);
    per_loader_options options = loader_options_of(batch_size, PER_CUDA, 3);
    per_loader* loader = nullptr;
    const auto create = [&] { return per_loader_create(buffer.get(), &options, &loader); };
    options.device_index = 1;
    expect_status(PER_ERROR_NO_DEVICE, create(), "device_index is 1");
    options.device_index = -1;
    expect_status(PER_ERROR_INVALID_ARGUMENT, create(), "device_index is -1");
    options.device_index = 0;
    options.device = 2;
    expect_status(PER_ERROR_INVALID_ARGUMENT, create(), "device is 2");
    options.device = PER_CPU;
    options.device_index = 1;
    expect_status(PER_ERROR_INVALID_ARGUMENT, create(), "device_index is 1");
    simulator::options().driver_version = 0;
    options = loader_options_of(batch_size, PER_CUDA, 3);
    expect_status(PER_ERROR_NO_DEVICE, create(), "no NVIDIA driver");
    simulator::options().driver_version = 12040;
    expect_status(PER_ERROR_NO_DEVICE, create(), "the driver of this machine is for CUDA 12.4;");
    EXPECT_EQ(loader, nullptr);
}

TEST_F(CudaLoader, the_current_device_is_restored) {
    Buffer buffer = filled(1);
    simulator::options().n_devices = 3;
    per_loader_options options = loader_options_of(batch_size, PER_CUDA, 3);
    options.device_index = 2;
    cudaSetDevice(1);
    LoaderHandle loader = create_loader(buffer.get(), options);
    expect_current_device(1);
    const Taken taken = take_batch(loader, nullptr);
    expect_current_device(1);
    ASSERT_EQ(per_loader_release(loader.get(), taken.slot, nullptr), PER_OK);
    expect_current_device(1);
    loader.reset();
    expect_current_device(1);
    cudaSetDevice(0);
}

TEST_F(CudaLoader, a_forked_child_may_only_free) {
    Buffer buffer = filled(1);
    LoaderHandle loader = loader_of(buffer, PER_CUDA);
    const Taken taken = take_batch(loader, streams_[0]);
    expect_in_child([&] {
        int n_right = 0;
        n_right += take(loader, streams_[0]).status == PER_ERROR_INVALID_ARGUMENT;
        n_right += per_loader_release(loader.get(), taken.slot, streams_[0]) == PER_ERROR_INVALID_ARGUMENT;
        std::vector<Row> rows;
        n_right += buffer.sample(8, rows) == PER_OK;
        // Must not take the simulator's lock: the loader's thread may have held it at the fork.
        const uint64_t allocations = simulator::counters_of_thread().allocations;
        loader.reset();
        n_right += simulator::counters_of_thread().allocations == allocations;
        return n_right == 4;
    });
    EXPECT_EQ(per_loader_release(loader.get(), taken.slot, streams_[0]), PER_OK);
    EXPECT_EQ(take(loader, streams_[0]).status, PER_OK);
}

}  // namespace
}  // namespace per::test

// Loaders of buffers on a CUDA device, through per.h: their batches and results equal those of a buffer on the CPU with
// a loader. Also waits of a consumer, captures, errors of the runtime, devices.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "graph.h"
#include "loader_calls.h"
#include "replay_twins.h"
#include "simulator.h"
#include "steered_simulator.h"

namespace per::test {
namespace {

constexpr int64_t batch_size = 6;

per_loader_options options_of(int32_t device, int64_t slots, const per_sample_options* sample = nullptr) {
    per_loader_options options = loader_options_of(batch_size, device, slots);
    options.sample = sample;
    return options;
}

// All arrays of a batch.
std::vector<BatchArray> arrays_of(const per_batch& batch) {
    constexpr std::size_t observation_bytes = 2 * TwinBatch::stack * sizeof(float);
    std::vector<BatchArray> arrays = {{batch.fields[0], batch_size * observation_bytes},
                                      {batch.next_fields[0], batch_size * observation_bytes},
                                      {batch.fields[1], batch_size * 8},
                                      {batch.fields[2], batch_size * 4}};
    for (const BatchArray& array : arrays_besides_fields(batch, batch_size)) arrays.push_back(array);
    return arrays;
}

class CudaDrawnLoader : public SteeredSimulator {};

// Everything between the batches is enqueued, too, on alternating streams: the host waits only at the end.
void expect_those_of_the_cpu(uint64_t seed, const per_replay_options& options, const per_sample_options* sample) {
    simulator::options().seed = seed;
    Twins twins(options);
    TwinWalk walk(seed);
    cudaStream_t streams[2] = {twins.stream, nullptr};
    cudaStreamCreateWithFlags(&streams[1], cudaStreamNonBlocking);
    twins.use(walk, 6);
    const int64_t slots = 1 + static_cast<int64_t>(seed % 3);
    LoaderHandle cpu = create_loader(twins.cpu.get(), options_of(PER_CPU, slots, sample));
    LoaderHandle gpu = create_loader(twins.gpu.get(), options_of(PER_CUDA, slots, sample));
    std::vector<Bytes> of_cpu, of_gpu;
    std::deque<std::vector<int64_t>> ids;
    std::deque<std::vector<float>> priorities;
    std::deque<TwinSteps> steps;
    for (uint64_t i = 0; i < 14; ++i) {
        const cudaStream_t stream = streams[walk.random() % 2];
        const Taken a = take_batch(cpu, nullptr), b = take_batch(gpu, stream);
        ids.emplace_back(a.batch.ids, a.batch.ids + batch_size);
        priorities.emplace_back();
        for (int64_t k = 0; k < batch_size; ++k)
            priorities.back().push_back(static_cast<float>(walk.random() % 1000) * 0.01f);
        of_cpu.push_back(bytes_of(arrays_of(a.batch)));
        of_gpu.push_back(queue_read(arrays_of(b.batch), stream));
        // The consumer writes over a part of the batch.
        cudaMemsetAsync(b.batch.ids, 0xEE, batch_size * sizeof(int64_t), stream);
        cudaMemsetAsync(b.batch.probabilities, 0xEE, batch_size * sizeof(float), stream);
        const auto set = [&](const ReplayHandle& replay, void* on) {
            return write_priorities(replay.get(), batch_size, ids.back().data(), priorities.back().data(), on);
        };
        expect_status(PER_OK, set(twins.cpu, nullptr));
        expect_status(PER_OK, set(twins.gpu, streams[walk.random() % 2]));
        if (i % 3 == 0) {
            steps.push_back(walk.next());
            expect_status(PER_OK, steps.back().add(twins.cpu.get(), nullptr));
            expect_status(PER_OK, steps.back().add(twins.gpu.get(), streams[walk.random() % 2]));
        }
        expect_status(PER_OK, per_loader_release(cpu.get(), a.slot, nullptr));
        expect_status(PER_OK, per_loader_release(gpu.get(), b.slot, stream));
    }
    for (const cudaStream_t stream : streams) cudaStreamSynchronize(stream);
    for (std::size_t i = 0; i < of_cpu.size(); ++i)
        for (std::size_t k = 0; k < of_cpu[i].size(); ++k)
            ASSERT_EQ(of_cpu[i][k], of_gpu[i][k]) << "batch " << i << ", array " << k;
    twins.expect_same();
    cpu.reset();
    gpu.reset();
    twins.use(walk, 3);
    twins.expect_same();
    cudaStreamDestroy(streams[1]);
}

TEST_F(CudaDrawnLoader, batches_and_what_follows_are_those_of_the_cpu_under_any_schedule) {
    for (uint64_t seed = 0; seed < 16; ++seed) {
        per_sample_options sample = sample_by(static_cast<int32_t>(seed % 3));
        sample.prioritization = seed % 4 == 3 ? int32_t{PER_RANK} : PER_PROPORTIONAL;
        expect_those_of_the_cpu(seed, twin_options(), seed % 5 == 0 ? nullptr : &sample);
        ASSERT_FALSE(HasFailure()) << "seed " << seed;
    }
}

// A draw of a graph counts for beta, in addition to the draws ahead of it.
TEST_F(CudaDrawnLoader, graphs_draw_with_the_beta_after_what_was_handed_out) {
    Twins twins(twin_options());
    twins.begin(1, 10);
    TwinBatch drawn(batch_size), expected(batch_size);
    const per_batch batch = drawn.batch(), of_cpu = expected.batch();
    const Graph graph(twins.stream, [&] {
        expect_status(PER_OK, per_replay_sample(twins.gpu.get(), nullptr, batch_size, &batch, twins.stream));
    });
    const LoaderHandle cpu = create_loader(twins.cpu.get(), options_of(PER_CPU, 3));
    const LoaderHandle gpu = create_loader(twins.gpu.get(), options_of(PER_CUDA, 3));
    for (int i = 0; i < 5; ++i) {
        const Taken a = take_batch(cpu, nullptr), b = take_batch(gpu, twins.stream);
        expect_status(PER_OK, per_loader_release(cpu.get(), a.slot, nullptr));
        expect_status(PER_OK, per_loader_release(gpu.get(), b.slot, twins.stream));
        twins.synchronize();  // waits for the requested draws, so that the launch follows them
        expect_status(PER_OK, per_replay_sample(twins.cpu.get(), nullptr, batch_size, &of_cpu, nullptr));
        graph.launch();
        twins.synchronize();
        EXPECT_TRUE(drawn == expected) << i;
        twins.expect_same();
    }
}

// ---- waits

TEST_F(CudaDrawnLoader, the_consumer_waits_for_nothing_and_nothing_is_allocated) {
    Twins twins(twin_options());
    twins.begin(1, 10);
    const per_sample_options sample = sample_options(PER_RANK);
    per_loader_options options = options_of(PER_CUDA, 1, &sample);
    options.batch_size = 4097;  // larger than the memory a buffer allocates at creation
    const LoaderHandle loader = create_loader(twins.gpu.get(), options);
    simulator::reset_counters();  // the first batch may have been drawn already
    for (int i = 0; i < 3; ++i) {
        const Taken taken = take_batch(loader, twins.stream);
        expect_status(PER_OK, per_loader_release(loader.get(), taken.slot, twins.stream));
    }
    expect_free_running_consumer();
    EXPECT_GE(simulator::counters().host_waits, 2u);  // waits of the drawing thread
}

TEST_F(CudaDrawnLoader, draws_that_fail_are_said_to_the_consumer_and_not_reported_again) {
    Twins twins(twin_options());
    const LoaderHandle loader = create_loader(twins.gpu.get(), options_of(PER_CUDA, 3));
    for (int i = 0; i < 5; ++i)
        expect_status(PER_ERROR_EMPTY, take(loader, twins.stream).status, "no transition is live");
    twins.synchronize();
    const per_sample_options sample = sample_by(PER_WITHOUT_REPLACEMENT);
    TwinWalk walk(3);
    per_loader_stop(loader.get());
    twins.add(walk.next(3));
    const int64_t live = statistics_of(twins.gpu.get()).live;
    ASSERT_GT(live, 0);
    per_loader_options options = options_of(PER_CUDA, 2, &sample);
    options.batch_size = live + 1;
    const LoaderHandle distinct = create_loader(twins.gpu.get(), options);
    expect_status(PER_ERROR_INVALID_ARGUMENT, take(distinct, twins.stream).status,
                  ("only " + std::to_string(live) + " transitions can be drawn").c_str());
    twins.synchronize();
    EXPECT_EQ(statistics_of(twins.gpu.get()).samples, 0);
}

// ---- captures

TEST_F(CudaDrawnLoader, calls_on_a_captured_stream_are_refused_and_captures_elsewhere_are_not_spoilt) {
    Twins twins(twin_options());
    twins.begin(1, 10);
    const int64_t beta_step = statistics_of(twins.gpu.get()).beta_step;
    const LoaderHandle loader = create_loader(twins.gpu.get(), options_of(PER_CUDA, 2));
    const Taken taken = take(loader, twins.stream);
    cudaStream_t captured;
    cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking);
    while_captured(captured, [&] {
        expect_status(PER_ERROR_INVALID_ARGUMENT, take(loader, captured).status, "captured");
        expect_status(PER_ERROR_INVALID_ARGUMENT, per_loader_release(loader.get(), taken.slot, captured), "captured");
        expect_status(PER_OK, per_loader_release(loader.get(), taken.slot, twins.stream));
        for (int i = 0; i < 5; ++i) {
            const Taken other = take(loader, twins.stream);
            expect_status(PER_OK, other.status);
            expect_status(PER_OK, per_loader_release(loader.get(), other.slot, twins.stream));
        }
    });
    cudaStreamDestroy(captured);
    EXPECT_EQ(statistics_of(twins.gpu.get()).beta_step, beta_step + 6);
}

// ---- errors of the runtime

// Any call may fail, on any thread: the consumer gets the error or the call succeeds, and later batches are right.
TEST_F(CudaDrawnLoader, an_error_of_cuda_reaches_the_consumer_and_the_batches_go_on) {
    simulator::options().seed = 0;
    Twins twins(twin_options());
    twins.begin(1, 10);
    const LoaderHandle loader = create_loader(twins.gpu.get(), options_of(PER_CUDA, 2));
    int n_failed = 0;
    for (uint64_t n = 0; n < 80; ++n) {
        Taken taken;
        simulator::fail_call(n % 26, cudaErrorInvalidValue);
        n_failed += failures_of_take(loader, twins.stream, taken, 8);
        simulator::fail_call(0, 0);
        // The row of each id, as in the twin on the CPU.
        const std::vector<int64_t> ids(taken.batch.ids, taken.batch.ids + batch_size);
        TwinBatch rows(batch_size);
        const per_batch batch = rows.batch(false);
        expect_status(PER_OK, per_replay_get(twins.cpu.get(), batch_size, ids.data(), &batch, nullptr));
        ASSERT_EQ(std::memcmp(taken.batch.fields[1], rows.action.data(), batch_size * 8), 0) << n;
        simulator::fail_call(n % 4, cudaErrorInvalidValue);
        n_failed += failures_of_release(loader, taken.slot, twins.stream, 8);
        simulator::fail_call(0, 0);
    }
    EXPECT_GT(n_failed, 10);
}

TEST_F(CudaDrawnLoader, a_sticky_error_is_answered_by_every_call_and_free_works) {
    Twins twins(twin_options());
    twins.begin(1, 10);
    LoaderHandle loader = create_loader(twins.gpu.get(), options_of(PER_CUDA, 3));
    const Taken taken = take_batch(loader, twins.stream);
    simulator::stick(cudaErrorIllegalAddress);
    for (int i = 0; i < 5; ++i) {
        expect_status(PER_ERROR_CUDA, take(loader, twins.stream).status, "cudaErrorIllegalAddress");
        expect_status(PER_ERROR_CUDA, per_loader_release(loader.get(), taken.slot, twins.stream),
                      "cudaErrorIllegalAddress");
    }
    expect_status(PER_ERROR_CUDA, per_loader_stop(loader.get()), "cudaErrorIllegalAddress");
    expect_status(PER_OK, per_loader_stop(loader.get()));
    expect_status(PER_ERROR_INVALID_ARGUMENT, take(loader, twins.stream).status, "stopped");
    loader.reset();
}

TEST_F(CudaDrawnLoader, a_failing_call_of_creation_leaves_no_loader) {
    Twins twins(twin_options());
    twins.begin(1, 10);
    expect_no_loader_where_creation_fails(twins.gpu.get(), options_of(PER_CUDA, 3));
}

// ---- devices

TEST_F(CudaDrawnLoader, batches_are_handed_out_where_the_buffer_is_and_the_current_device_is_restored) {
    simulator::options().n_devices = 3;
    cudaSetDevice(1);
    per_replay_options options = twin_options();
    options.device_index = 2;
    const ReplayHandle replay = create_replay(options, PER_CUDA);
    per_loader* none = nullptr;
    per_loader_options elsewhere = options_of(PER_CPU, 3);
    expect_status(PER_ERROR_INVALID_ARGUMENT, per_loader_create(replay.get(), &elsewhere, &none),
                  "device is PER_CPU: allowed for the loader of a replay on PER_CUDA 2 is that device");
    elsewhere.device = PER_CUDA;
    elsewhere.device_index = 1;
    expect_status(PER_ERROR_INVALID_ARGUMENT, per_loader_create(replay.get(), &elsewhere, &none),
                  "device_index is 1: allowed for the loader of a replay on PER_CUDA 2 is 2");
    EXPECT_EQ(none, nullptr);

    TwinWalk walk(1, true);
    TwinSteps steps = walk.next(5);
    expect_status(PER_OK, steps.add(replay.get(), nullptr));
    expect_status(PER_OK, per_replay_synchronize(replay.get(), nullptr));
    per_loader_options here = options_of(PER_CUDA, 3);
    here.device_index = 2;
    LoaderHandle loader = create_loader(replay.get(), here);
    expect_current_device(1);
    const Taken taken = take(loader, nullptr);
    expect_status(PER_OK, taken.status);
    expect_current_device(1);
    expect_status(PER_OK, per_loader_release(loader.get(), taken.slot, nullptr));
    expect_current_device(1);
    loader.reset();
    expect_current_device(1);
    cudaSetDevice(0);
}

}  // namespace
}  // namespace per::test

// Calls on a buffer on CUDA between the capture of a graph and its launches: each launch acts as if the captured calls
// were made then.
#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../c/checkpoints.h"
#include "graph.h"
#include "replay_twins.h"
#include "run_length.h"
#include "simulator.h"
#include "steered_simulator.h"

namespace per::test {
namespace {

// A graph has the addresses of its capture. Its updates would not maintain structures that are allocated later.
void expect_refused_after_a_capture(const per_sample_options& options, const char* text) {
    Twins twins(twin_options());
    twins.begin(2, 20);
    const std::vector<int64_t> ids = twins.sample(4);
    const std::vector<float> errors = {1e-4f, 50.0f, 2e-4f, 70.0f};
    const auto update = [&](per_replay* replay, void* stream) {
        EXPECT_EQ(write_td_errors(replay, 4, ids.data(), 1, errors.data(), stream), PER_OK);
    };
    Graph graph(twins.stream, [&] { update(twins.gpu.get(), twins.stream); });
    TwinBatch drawn(8);
    const per_batch batch = drawn.batch();
    expect_status(PER_ERROR_INVALID_ARGUMENT, per_replay_sample(twins.gpu.get(), &options, 8, &batch, twins.stream),
                  text);
    graph.launch();
    update(twins.cpu.get(), nullptr);
    twins.synchronize();
    twins.sample(8);
    twins.expect_same();
}

TEST(CudaReplayGraphs, a_graph_launched_beside_a_call_ends_and_is_reported_from_then_on) {
    if (is_short) GTEST_SKIP() << "ThreadSanitizer reports the race, which is the caller's";
    constexpr int64_t n = 600;  // the work of several blocks
    const uint64_t seed = std::exchange(simulator::options().seed, 0);
    {
        Twins twins(twin_options());
        twins.begin(2, 20);
        per_replay* const replay = twins.gpu.get();
        const std::vector<int64_t> drawn = twins.sample(8);
        std::vector<int64_t> ids;
        for (int64_t i = 0; i < n; ++i) ids.push_back(drawn[static_cast<std::size_t>(i % 8)]);
        const std::vector<float> priorities(n, 1.0f);
        const auto update = [&](cudaStream_t stream) {
            EXPECT_EQ(write_priorities(replay, n, ids.data(), priorities.data(), stream), PER_OK);
        };
        Graph graph(twins.stream, [&] { update(twins.stream); });
        cudaStream_t other;
        ASSERT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
        int n_polls = 0;
        simulator::meanwhile = [&] {
            if (++n_polls != 10) return;  // by then a block of the call has started
            simulator::meanwhile = nullptr;
            graph.launch();
        };
        update(other);
        simulator::meanwhile = nullptr;
        EXPECT_EQ(n_polls, 10);
        for (int i = 0; i < 2; ++i) {
            expect_status(PER_ERROR_INVALID_ARGUMENT, per_replay_synchronize(replay, other),
                          "launches of CUDA graphs must be ordered");
        }
        per_replay_statistics statistics;
        EXPECT_EQ(per_replay_get_statistics(replay, &statistics, sizeof statistics), PER_ERROR_INVALID_ARGUMENT);
        cudaStreamDestroy(other);
    }
    simulator::options().seed = seed;
}

TEST(CudaReplayGraphs, a_first_draw_by_rank_is_refused_after_a_capture) {
    expect_refused_after_a_capture(sample_options(PER_RANK), "PER_RANK allocates memory, which calls");
}

TEST(CudaReplayGraphs, a_first_draw_normalised_over_the_buffer_is_refused_after_a_capture) {
    expect_refused_after_a_capture(sample_options(of_buffer, PER_BUFFER_MAX),
                                   "PER_BUFFER_MAX allocates memory, which calls");
}

// A graph maintains the structures enabled before its capture.
TEST(CudaReplayGraphs, a_graph_keeps_up_what_draws_before_it_needed) {
    for (const bool by_rank : {false, true}) {
        per_sample_options options = sample_options();
        (by_rank ? options.prioritization : options.normalize_weights) = by_rank ? int32_t{PER_RANK} : PER_BUFFER_MAX;
        Twins twins(twin_options());
        twins.begin(2, 20);
        const std::vector<int64_t> ids = twins.sample(4, &options);
        std::vector<float> errors = {1e-4f, 50.0f, 2e-4f, 70.0f};
        Graph graph(twins.stream, [&] {
            EXPECT_EQ(write_td_errors(twins.gpu.get(), 4, ids.data(), 1, errors.data(), twins.stream), PER_OK);
        });
        for (int i = 0; i < 5; ++i) {
            errors[0] *= 0.5f;
            graph.launch();
            ASSERT_EQ(write_td_errors(twins.cpu.get(), 4, ids.data(), 1, errors.data(), nullptr), PER_OK);
            twins.synchronize();
            twins.sample(8, &options);
        }
        twins.expect_same();
    }
}

// A key in device memory: each launch uses the key stored there at that time, like a call with it.
TEST(CudaReplayGraphs, each_launch_draws_by_the_key_that_it_finds) {
    Twins twins(twin_options());
    twins.begin(2, 20);
    uint64_t key[2] = {7, 3};
    per_sample_options options = sample_options();
    options.key = key;
    TwinBatch drawn(8);
    const per_batch batch = drawn.batch();
    Graph graph(twins.stream,
                [&] { EXPECT_EQ(per_replay_sample(twins.gpu.get(), &options, 8, &batch, twins.stream), PER_OK); });
    std::vector<std::vector<int64_t>> ids;
    for (const uint64_t number : {3, 9, 3}) {
        key[1] = number;
        graph.launch();
        twins.synchronize();
        twins.expect_next_of_cpu(drawn, &options);
        ids.push_back(drawn.ids);
    }
    EXPECT_NE(ids[0], ids[1]);
    twins.sample(8);  // each launch counted as a draw
    twins.expect_same();
}

// A smaller n_step makes rows live whose window would, with the n_step of the graph, extend beyond the last step.
TEST(CudaReplayGraphs, a_draw_with_more_steps_than_the_buffer_has_now_is_none) {
    for (const int32_t scheme : {PER_STRATIFIED, PER_WITHOUT_REPLACEMENT}) {
        per_replay_options options = twin_options();
        options.n_step = 3;
        options.scheme = scheme;
        Twins twins(options);
        twins.begin(2, 20);
        TwinBatch drawn(4);
        const per_batch batch = drawn.batch();
        Graph graph(twins.stream,
                    [&] { EXPECT_EQ(per_replay_sample(twins.gpu.get(), nullptr, 4, &batch, twins.stream), PER_OK); });
        const auto set_n_step = [&](int64_t n_step) {
            twins.both([&](per_replay* replay, void* on) { return change_n_step(replay, n_step, on); });
        };
        set_n_step(1);
        graph.launch();
        expect_status(PER_ERROR_INVALID_ARGUMENT, per_replay_synchronize(twins.gpu.get(), twins.stream),
                      "1 draws of graphs had a larger n_step");
        EXPECT_EQ(drawn.ids, std::vector<int64_t>(4, -1));
        EXPECT_EQ(drawn.weights, std::vector<float>(4, 0.0f));
        EXPECT_EQ(drawn.n_steps, std::vector<int32_t>(4, 0));
        twins.sample(4);  // the launch did not count as a draw

        set_n_step(3);
        graph.launch();
        twins.synchronize();
        twins.expect_next_of_cpu(drawn);
        twins.expect_same();
    }
}

// Each launch reads the ids.
TEST(CudaReplayGraphs, a_graph_gives_the_windows_of_the_ids_that_are_there) {
    per_replay_options options = twin_options();
    options.n_step = 3;
    Twins twins(options);
    TwinWalk walk = twins.begin(2, 20);
    std::vector<int64_t> ids(4);
    TwinBatch given(4);
    const per_batch batch = given.batch();
    const auto get_windows = [&](per_replay* replay, const per_sample_options* sample, const per_batch& out, void* on) {
        EXPECT_EQ(per_replay_get_windows(replay, sample, PER_INVALID_ERROR, 4, ids.data(), &out, on), PER_OK);
    };
    const auto expect_those_of_the_cpu = [&](const per_sample_options* sample) {
        twins.synchronize();
        TwinBatch expected(4);
        get_windows(twins.cpu.get(), sample, expected.batch(), nullptr);
        EXPECT_TRUE(given == expected);
        EXPECT_EQ(given.weights, expected.weights);
    };
    const Graph graph(twins.stream, [&] { get_windows(twins.gpu.get(), nullptr, batch, twins.stream); });
    for (int i = 0; i < 4; ++i) {
        const std::vector<int64_t> drawn = twins.sample(4);
        std::copy(drawn.begin(), drawn.end(), ids.begin());
        graph.launch();
        expect_those_of_the_cpu(nullptr);
        twins.use(walk, 2);
    }
    // Each launch draws the lengths of its windows.
    per_sample_options range = sample_options();
    range.n_step_min = 1;
    const Graph ranged(twins.stream, [&] { get_windows(twins.gpu.get(), &range, batch, twins.stream); });
    for (int i = 0; i < 4; ++i) {
        ranged.launch();
        expect_those_of_the_cpu(&range);
    }
    twins.both([](per_replay* replay, void* on) { return change_n_step(replay, 1, on); });
    graph.launch();
    expect_status(PER_ERROR_INVALID_ARGUMENT, per_replay_synchronize(twins.gpu.get(), twins.stream),
                  "1 draws of graphs had a larger n_step");
    EXPECT_EQ(given.ids, std::vector<int64_t>(4, -1));
    EXPECT_EQ(given.weights, std::vector<float>(4, 0.0f));
    twins.expect_same();
}

// A buffer is created, filled from host memory (which waits for the staging ring), queried, read in epochs, relabelled,
// saved and loaded (which wait for the device and copy to unpinned memory), grown, and freed.
void lead_a_whole_life() {
    simulator::options().has_host_memory = true;
    Twins twins(twin_options());
    TwinWalk walk(2);
    for (int i = 0; i < 20; ++i) {
        TwinSteps steps = walk.next();
        steps.with_ids = false;
        EXPECT_EQ(steps.add(twins.cpu.get(), nullptr), PER_OK) << per_last_error();
        EXPECT_EQ(steps.add(twins.gpu.get(), twins.stream), PER_OK) << per_last_error();
    }
    simulator::options().has_host_memory = false;
    twins.synchronize();
    twins.expect_same();
    twins.sample(4100);
    const std::string path = testing::TempDir() + "/captured." + std::to_string(getpid());
    EXPECT_EQ(per_replay_save(twins.gpu.get(), path.c_str(), nullptr), PER_OK) << per_last_error();
    per_replay* loaded = nullptr;
    EXPECT_EQ(load_on(path.c_str(), PER_CUDA, 0, &loaded), PER_OK) << per_last_error();
    per_replay_free(loaded);
    std::remove(path.c_str());

    const per_hindsight_options hindsight = hindsight_without_rewards();
    TwinBatch drawn(8);
    const per_batch batch = drawn.batch();
    EXPECT_EQ(sample_with_hindsight(twins.gpu.get(), nullptr, &hindsight, 8, &batch, twins.stream), PER_OK)
        << per_last_error();
    per_epochs* epochs = nullptr;
    EXPECT_EQ(per_epochs_create(twins.gpu.get(), 1, 8, 0, nullptr, &epochs), PER_OK) << per_last_error();
    per_epochs_free(epochs);
}

TEST(CudaReplayGraphs, a_call_that_a_capture_refuses_leaves_the_stream_to_other_calls) {
    Twins twins(twin_options());
    twins.begin(2, 20);
    per_replay* const replay = twins.gpu.get();
    cudaStream_t other = nullptr;
    cudaEvent_t fork = nullptr, join = nullptr;
    cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&fork, cudaEventDisableTiming);
    cudaEventCreateWithFlags(&join, cudaEventDisableTiming);
    TwinBatch drawn(4);
    const per_batch batch = drawn.batch();
    Graph graph(twins.stream, [&] {
        cudaEventRecord(fork, twins.stream);
        cudaStreamWaitEvent(other, fork, 0);  // which is captured now, too
        expect_status(PER_ERROR_INVALID_ARGUMENT, per_replay_synchronize(replay, other), "it is being captured");
        EXPECT_EQ(per_replay_sample(replay, nullptr, 4, &batch, twins.stream), PER_OK) << per_last_error();
        expect_status(PER_ERROR_INVALID_ARGUMENT, per_replay_sample(replay, nullptr, 4, &batch, other),
                      "within one capture all calls of a handle share a stream");
        cudaEventRecord(join, other);
        cudaStreamWaitEvent(twins.stream, join, 0);
    });
    cudaEventDestroy(fork);
    cudaEventDestroy(join);
    cudaStreamDestroy(other);
}

void expect_capture_not_spoilt(bool in_own_thread, cudaStreamCaptureMode mode) {
    cudaStream_t captured;
    cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking);
    const auto live = [&] {
        if (in_own_thread)
            lead_a_whole_life();
        else
            std::thread(lead_a_whole_life).join();
    };
    while_captured(captured, live, mode);
    cudaStreamDestroy(captured);
}

TEST(CudaReplayGraphs, what_a_buffer_allocates_and_waits_for_does_not_spoil_captures_of_others) {
    expect_capture_not_spoilt(false, cudaStreamCaptureModeGlobal);
}

TEST(CudaReplayGraphs, nor_those_of_the_same_thread) {
    expect_capture_not_spoilt(true, cudaStreamCaptureModeGlobal);
    expect_capture_not_spoilt(true, cudaStreamCaptureModeThreadLocal);
}

}  // namespace
}  // namespace per::test

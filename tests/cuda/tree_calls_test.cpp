// A tree on CUDA from the viewpoint of a user of the device: waits and allocations of its calls, captured graphs, bad
// entries that only the device can detect, errors of the runtime, devices, forks.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "backend/create.h"
#include "base/error.h"
#include "cpu/tree_backend.h"
#include "cuda/tree/tree_backend.h"
#include "graph.h"
#include "run_length.h"
#include "simulator.h"
#include "steered_simulator.h"

namespace per {
namespace {

constexpr int64_t capacity = 50;

per_tree_options options_with(uint64_t seed) {
    return {sizeof(per_tree_options), capacity, seed, PER_CUDA, 0};
}

template <class Call>
int status_of(const Call& call, const char* text = "") {
    try {
        call();
    } catch (const Error& error) {
        EXPECT_NE(std::strstr(error.what(), text), nullptr) << error.what();
        return error.status();
    }
    return PER_OK;
}

class CudaTreeCalls : public test::SteeredSimulator {
 protected:
    void SetUp() override {
        cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
        for (int64_t i = 0; i < capacity; ++i) {
            all_.push_back(i);
            priorities_.push_back(static_cast<float>(i % 7));
        }
    }
    void TearDown() override {
        SteeredSimulator::TearDown();
        cudaStreamDestroy(stream_);
    }

    void fill(TreeBackend& tree) { tree.update(capacity, all_.data(), priorities_.data(), stream_); }

    std::vector<int64_t> sample(TreeBackend& tree, int64_t n, int32_t scheme = PER_STRATIFIED) {
        std::vector<int64_t> indices(static_cast<std::size_t>(n), -7);
        tree.sample({n, scheme, 0.5, indices.data(), nullptr, nullptr}, is_cuda(tree) ? stream_ : nullptr);
        if (is_cuda(tree)) tree.synchronize(stream_);
        return indices;
    }

    std::vector<float> leaves(TreeBackend& tree) {
        std::vector<float> read(capacity);
        tree.priorities(capacity, nullptr, read.data(), stream_);
        tree.synchronize(stream_);
        return read;
    }

    void expect_report(int status, TreeBackend& tree, const char* text) {
        EXPECT_EQ(status_of([&] { tree.synchronize(stream_); }, text), status);
    }

    static void expect_same_mass(TreeBackend& tree, TreeBackend& other) {
        EXPECT_EQ(tree.mass().total, other.mass().total);
        EXPECT_EQ(tree.mass().scale, other.mass().scale);
    }

    static std::vector<int64_t> all_in_turn(int64_t n) {
        std::vector<int64_t> indices;
        for (int64_t i = 0; i < n; ++i) indices.push_back(i % capacity);
        return indices;
    }

    static bool is_cuda(const TreeBackend& tree) { return !tree.reads_concurrently(); }

    cudaStream_t stream_;
    std::vector<int64_t> all_;
    std::vector<float> priorities_;
};

TEST_F(CudaTreeCalls, never_wait_and_never_allocate) {
    cuda::CudaTreeBackend tree(options_with(1));
    std::vector<int64_t> indices(8);
    std::vector<float> priorities(8), weights(8);
    const std::vector<uint64_t> units(8, 0);
    const std::vector<double> sums(8, 0.0);
    // Counts start after the first call of each kind.
    simulator::reset_counters();
    for (int i = 0; i < 3; ++i) {
        fill(tree);
        for (int scheme = PER_STRATIFIED; scheme <= PER_WITHOUT_REPLACEMENT; ++scheme)
            tree.sample({8, scheme, 0.5, indices.data(), priorities.data(), weights.data()}, stream_);
        tree.find(8, sums.data(), indices.data(), i == 1 ? nullptr : stream_);
        tree.find_mass(8, units.data(), indices.data(), stream_);
        tree.priorities(8, indices.data(), priorities.data(), stream_);
        tree.reset(stream_);
    }
    EXPECT_EQ(simulator::counters().host_waits, 0u);
    EXPECT_EQ(simulator::counters().interrupts, 0u);
    EXPECT_EQ(simulator::counters().allocations, 0u);
    EXPECT_GT(simulator::counters().launches, 0u);
    tree.synchronize(stream_);
    tree.mass();
    EXPECT_EQ(simulator::counters().host_waits, 2u);
    EXPECT_EQ(simulator::counters().allocations, 0u);
}

// Another kernel writes to the indices while the blocks of an update wait for each other: any of the written values may
// count, and the leaves can be set as before.
TEST_F(CudaTreeCalls, indices_that_change_during_an_update_leave_no_trace) {
    if (test::is_short) GTEST_SKIP() << "ThreadSanitizer reports the race, which is the caller's";
    constexpr std::size_t n = 5000;
    for (uint64_t i = 1; i <= 40; ++i) {
        simulator::options().seed = i;
        cuda::CudaTreeBackend tree(options_with(1));
        std::vector<int64_t> indices = all_in_turn(n);
        const std::vector<float> ones(n, 1.0f), twos(capacity, 2.0f);
        simulator::meanwhile = [&] { std::memset(indices.data(), 0xff, n * sizeof(int64_t)); };
        tree.update(n, indices.data(), ones.data(), stream_);
        cudaStreamSynchronize(stream_);
        simulator::meanwhile = nullptr;
        EXPECT_EQ(indices, std::vector<int64_t>(n, -1));
        tree.update(capacity, all_.data(), twos.data(), stream_);
        cudaStreamSynchronize(stream_);
        std::vector<float> read(capacity);
        tree.priorities(capacity, nullptr, read.data(), stream_);
        cudaStreamSynchronize(stream_);
        ASSERT_EQ(read, twos) << "seed " << i;
    }
}

TEST_F(CudaTreeCalls, an_update_that_allocates_is_refused_in_a_capture) {
    cuda::CudaTreeBackend tree(options_with(1));
    const std::vector<int64_t> indices(5000, 3);
    const std::vector<float> priorities(5000, 1.0f);
    const auto update = [&] { tree.update(5000, indices.data(), priorities.data(), stream_); };
    test::while_captured(stream_, [&] {
        EXPECT_EQ(status_of(update, "the first update of more than 4096 entries (5000) allocates memory"),
                  PER_ERROR_INVALID_ARGUMENT);
    });
    EXPECT_EQ(status_of(update), PER_OK);
    simulator::reset_counters();
    EXPECT_EQ(status_of(update), PER_OK);
    EXPECT_EQ(simulator::counters().allocations, 0u);
    tree.synchronize(stream_);
}

// A single block, which makes a small update, would take too long to change the scale of so large a tree. A following
// launch on the whole device does this.
TEST_F(CudaTreeCalls, a_tree_of_more_than_2_20_leaves_gets_its_scale_from_the_whole_device) {
    constexpr int64_t n_leaves = (1 << 20) + 40;
    per_tree_options options = options_with(5);
    options.capacity = n_leaves;
    cuda::CudaTreeBackend tree(options);
    cpu::CpuTreeBackend cpu(n_leaves, 5);
    const std::vector<int64_t> indices = {0, 77, 1 << 20, n_leaves - 1};
    for (const float priority : {1.0f, 1e30f, 1e-30f, 5.0f}) {
        const std::vector<float> priorities = {priority, 2.0f * priority, 1.0f, priority};
        simulator::reset_counters();
        tree.update(4, indices.data(), priorities.data(), stream_);
        EXPECT_EQ(simulator::counters().launches, 2u);
        tree.synchronize(stream_);
        cpu.update(4, indices.data(), priorities.data(), nullptr);
        expect_same_mass(tree, cpu);
    }
}

// A training step in a graph, with an update that changes the scale on the device: each launch has the results of the
// same single calls, and draws another batch.
TEST_F(CudaTreeCalls, a_captured_step_is_replayed_as_the_cpu_repeats_it) {
    cuda::CudaTreeBackend tree(options_with(5));
    cpu::CpuTreeBackend cpu(capacity, 5);
    fill(tree);
    cpu.update(capacity, all_.data(), priorities_.data(), nullptr);
    tree.synchronize(stream_);

    constexpr int64_t n = 16;
    std::vector<int64_t> drawn(n), few(n), changed = {3, 4, 3};
    std::vector<float> weights(n), changes = {1.0f, 2.0f, 3.0f};
    const auto step = [&](TreeBackend& on, void* stream) {
        on.sample({n, PER_STRATIFIED, 0.5, drawn.data(), nullptr, weights.data()}, stream);
        on.sample({n, PER_WITHOUT_REPLACEMENT, 0.5, few.data(), nullptr, nullptr}, stream);
        on.update(3, changed.data(), changes.data(), stream);
    };
    simulator::reset_counters();
    const test::Graph graph(stream_, [&] { step(tree, stream_); });

    std::vector<std::vector<int64_t>> batches;
    for (const float change : {1.0f, 1e30f, 1e-30f, 5.0f}) {
        changes[2] = change;
        graph.launch();
        tree.synchronize(stream_);
        const std::vector<std::vector<int64_t>> of_graph = {drawn, few};
        const std::vector<float> weights_of_graph = weights;
        step(cpu, nullptr);
        EXPECT_EQ(drawn, of_graph[0]);
        EXPECT_EQ(few, of_graph[1]);
        EXPECT_EQ(weights, weights_of_graph);
        expect_same_mass(tree, cpu);
        batches.push_back(drawn);
    }
    EXPECT_NE(batches[0], batches[3]);
    EXPECT_EQ(simulator::counters().allocations, 0u);
}

// The blocks of the update wait for each other, also in a graph.
TEST_F(CudaTreeCalls, an_update_by_several_blocks_can_be_captured) {
    constexpr int64_t n = 2000;
    cuda::CudaTreeBackend tree(options_with(5));
    cpu::CpuTreeBackend cpu(capacity, 5);
    const std::vector<int64_t> indices = all_in_turn(n);
    std::vector<float> priorities(n, 1.0f);
    const test::Graph graph(stream_, [&] { tree.update(n, indices.data(), priorities.data(), stream_); });
    for (const float priority : {1.0f, 1e30f, 1e-30f}) {
        for (std::size_t i = 0; i < n; i += 3) priorities[i] = priority;
        graph.launch();
        tree.synchronize(stream_);
        cpu.update(n, indices.data(), priorities.data(), nullptr);
        expect_same_mass(tree, cpu);
    }
}

// In a larger grid blocks would wait for others that cannot run at the same time: CUDA refuses such a launch.
TEST_F(CudaTreeCalls, a_context_with_fewer_multiprocessors_than_the_device_gets_smaller_grids) {
    constexpr int64_t n = 2000;
    const std::vector<int64_t> indices = all_in_turn(n);
    const std::vector<float> priorities(n, 3.0f);
    simulator::options().green_multiprocessors = 2;
    cuda::CudaTreeBackend tree(options_with(5));
    tree.update(n, indices.data(), priorities.data(), stream_);
    EXPECT_EQ(leaves(tree), std::vector<float>(capacity, 3.0f));
    // The context of a stream may have even fewer.
    simulator::options().green_multiprocessors = 1;
    EXPECT_EQ(status_of([&] { tree.update(n, indices.data(), priorities.data(), stream_); },
                        "fewer multiprocessors than the one that was current when the handle was created"),
              PER_ERROR_CUDA);
    simulator::options().green_multiprocessors = 0;
    tree.synchronize(stream_);
    EXPECT_EQ(leaves(tree), std::vector<float>(capacity, 3.0f));
}

// One of two blocks does not arrive.
TEST_F(CudaTreeCalls, a_block_gives_up_and_no_block_waits_where_one_has) {
    if (test::is_short) GTEST_SKIP() << "ThreadSanitizer takes too long";
    static cuda::Meeting meeting;
    meeting = {0};
    uint64_t n_polls = 0;
    const auto meet_alone = [&] {
        n_polls = 0;
        simulator::meanwhile = [&] { ++n_polls; };
        cuda::launch_together(
            stream_, {2},
            +[](int) {
                if (blockIdx.x == 0) cuda::meet(meeting, [] {});
            },
            0);
        cudaStreamSynchronize(stream_);
        simulator::meanwhile = nullptr;
    };
    meet_alone();
    EXPECT_GE(n_polls, PER_MAX_POLLS);
    EXPECT_TRUE(meeting.is_broken());
    meet_alone();
    EXPECT_LT(n_polls, 10u);
    EXPECT_TRUE(meeting.is_broken());
}

// While the last block of a grid ends a meeting, a block of another grid ends it, too. Both subtract their blocks, so
// that the number becomes negative, which clears the mark.
TEST_F(CudaTreeCalls, a_broken_meeting_stays_broken) {
    if (test::is_short) GTEST_SKIP() << "ThreadSanitizer takes the launch in a kernel for an error";
    simulator::options().seed = 0;
    static cuda::Meeting meeting;
    meeting = {cuda::Meeting::broken};
    simulator::meanwhile = [&] {
        simulator::meanwhile = nullptr;
        cuda::launch_together(
            nullptr, {3},
            +[](int) {
                if (blockIdx.x == 0) cuda::meet(meeting);
            },
            0);
    };
    cuda::launch_together(
        stream_, {2}, +[](int) { cuda::meet(meeting, [] { simulator::wait_for_others(); }); }, 0);
    cudaStreamSynchronize(stream_);
    EXPECT_EQ(simulator::meanwhile, nullptr);
    EXPECT_TRUE(meeting.is_broken());
}

// The blocks of the call and of the graph arrive at the same barrier, and count each other.
TEST_F(CudaTreeCalls, a_graph_launched_beside_a_call_ends_and_is_reported_from_then_on) {
    if (test::is_short) GTEST_SKIP() << "ThreadSanitizer reports the race, which is the caller's";
    constexpr int64_t n = 2000;
    simulator::options().seed = 0;
    cuda::CudaTreeBackend tree(options_with(5));
    const std::vector<int64_t> indices = all_in_turn(n);
    const std::vector<float> priorities(n, 1.0f);
    const auto update = [&] { tree.update(n, indices.data(), priorities.data(), stream_); };
    cudaStream_t other;
    ASSERT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
    const test::Graph graph(stream_, update);
    update();
    tree.synchronize(stream_);

    uint64_t n_polls = 0;
    simulator::meanwhile = [&] {
        ++n_polls;
        simulator::meanwhile = nullptr;
        graph.launch(other);
    };
    update();
    EXPECT_EQ(n_polls, 1u);  // a block of the call was waiting
    for (int i = 0; i < 2; ++i) {
        expect_report(PER_ERROR_INVALID_ARGUMENT, tree, "launches of CUDA graphs must be ordered");
        EXPECT_EQ(status_of([&] { tree.mass(); }, "can only be freed"), PER_ERROR_INVALID_ARGUMENT);
    }
    // No block waits as long a second time.
    n_polls = 0;
    simulator::meanwhile = [&] { ++n_polls; };
    update();
    simulator::meanwhile = nullptr;
    EXPECT_LT(n_polls, 100u);
    cudaStreamDestroy(other);
}

TEST_F(CudaTreeCalls, one_capture_is_on_one_stream_and_cannot_be_waited_for) {
    cuda::CudaTreeBackend tree(options_with(1));
    fill(tree);
    tree.synchronize(stream_);
    cudaStream_t other;
    cudaEvent_t event;
    cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&event, 0);
    test::while_captured(stream_, [&] {
        fill(tree);
        expect_report(PER_ERROR_INVALID_ARGUMENT, tree, "captured");
        cudaEventRecord(event, stream_);
        cudaStreamWaitEvent(other, event);
        EXPECT_EQ(status_of([&] { tree.reset(other); }, "stream"), PER_ERROR_INVALID_ARGUMENT);
    });
    cudaEventDestroy(event);
    cudaStreamDestroy(other);
}

TEST_F(CudaTreeCalls, a_capture_that_is_spoilt_is_said_to_be) {
    cuda::CudaTreeBackend tree(options_with(1));
    cudaGraph_t graph;
    ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaErrorStreamCaptureUnsupported);
    EXPECT_EQ(status_of([&] { fill(tree); }, "its capture is invalid"), PER_ERROR_CUDA);
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureInvalidated);
    fill(tree);
    EXPECT_EQ(leaves(tree), priorities_);
}

// One handle value names the default streams of all threads, which are different streams.
TEST_F(CudaTreeCalls, default_streams_of_two_threads_are_not_taken_for_one) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        simulator::options().seed = seed;
        cuda::CudaTreeBackend tree(options_with(1));
        std::vector<float> later(capacity, 3.0f), read(capacity);
        tree.update(capacity, all_.data(), priorities_.data(), cudaStreamPerThread);
        std::thread other([&] { tree.update(capacity, all_.data(), later.data(), cudaStreamPerThread); });
        other.join();
        tree.priorities(capacity, nullptr, read.data(), cudaStreamPerThread);
        cudaStreamSynchronize(cudaStreamPerThread);
        EXPECT_EQ(read, later) << "seed " << seed;
    }
}

// ---- errors that only the device can detect

TEST_F(CudaTreeCalls, bad_entries_are_skipped_counted_and_reported_once) {
    const float nan = std::nanf("");
    const float infinity = std::numeric_limits<float>::infinity();
    for (const std::size_t at : {std::size_t{0}, std::size_t{31}, std::size_t{32}, std::size_t{49}}) {
        cuda::CudaTreeBackend tree(options_with(1)), twin(options_with(1));
        std::vector<int64_t> indices = all_;
        for (const int64_t bad : {int64_t{-1}, capacity, INT64_MAX, INT64_MIN}) {
            indices[at] = bad;
            tree.update(capacity, indices.data(), priorities_.data(), stream_);
            expect_report(PER_ERROR_INVALID_ARGUMENT, tree, "skipped: 1 of indices");
        }
        EXPECT_EQ(status_of([&] { tree.synchronize(stream_); }), PER_OK);
        std::vector<float> priorities = priorities_;
        for (const float bad : {-1.0f, -1e-45f, nan, infinity, -infinity}) {
            priorities[at] = bad;
            tree.update(capacity, all_.data(), priorities.data(), stream_);
            expect_report(PER_ERROR_INVALID_ARGUMENT, tree, "skipped: 1 of priorities");
        }
        priorities[(at + 1) % capacity] = nan;
        tree.update(capacity, indices.data(), priorities.data(), stream_);
        expect_report(PER_ERROR_INVALID_ARGUMENT, tree,
                      "2 entries were not allowed, and skipped: 1 of indices, 1 of priorities");
        // The other entries count as if the bad one were absent.
        indices = all_;
        priorities = priorities_;
        indices.erase(indices.begin() + static_cast<std::ptrdiff_t>(at));
        priorities.erase(priorities.begin() + static_cast<std::ptrdiff_t>(at));
        twin.update(capacity - 1, indices.data(), priorities.data(), stream_);
        EXPECT_EQ(leaves(tree), leaves(twin));
        EXPECT_EQ(tree.mass().total, twin.mass().total);
    }
}

TEST_F(CudaTreeCalls, bad_entries_of_readers_give_minus_one_and_zero) {
    cuda::CudaTreeBackend tree(options_with(1));
    fill(tree);
    const uint64_t total = tree.mass().total;
    const std::vector<uint64_t> units = {0, total, total - 1, UINT64_MAX};
    const std::vector<double> sums = {-1e-9, 0.0, 1e30, std::nan(""), std::numeric_limits<double>::infinity()};
    const std::vector<int64_t> indices = {-1, 8, capacity, INT64_MIN};
    std::vector<int64_t> found(5, -7), found_sums(5, -7);
    std::vector<float> read(4, -7.0f);
    tree.find_mass(4, units.data(), found.data(), stream_);
    tree.find(5, sums.data(), found_sums.data(), stream_);
    tree.priorities(4, indices.data(), read.data(), stream_);
    expect_report(PER_ERROR_INVALID_ARGUMENT, tree,
                  "9 entries were not allowed, and skipped: 3 of indices, 4 of prefix_sums, 2 of units");
    EXPECT_EQ(found, (std::vector<int64_t>{1, -1, 48, -1, -7}));
    EXPECT_EQ(found_sums, (std::vector<int64_t>{-1, 1, -1, -1, -1}));
    EXPECT_EQ(read, (std::vector<float>{0.0f, 1.0f, 0.0f, 0.0f}));
}

// ---- errors of the runtime

TEST_F(CudaTreeCalls, a_sticky_error_is_answered_by_every_call_and_free_works) {
    {
        cuda::CudaTreeBackend tree(options_with(1));
        fill(tree);
        tree.synchronize(stream_);
        simulator::stick(cudaErrorIllegalAddress);
        const char* const name = "cudaErrorIllegalAddress";
        EXPECT_EQ(status_of([&] { fill(tree); }, name), PER_ERROR_CUDA);
        EXPECT_EQ(status_of([&] { tree.mass(); }, name), PER_ERROR_CUDA);
        expect_report(PER_ERROR_CUDA, tree, name);
    }
    simulator::stick(0);
}

TEST_F(CudaTreeCalls, a_failing_call_of_creation_leaves_no_handle_and_no_leak) {
    const simulator::Held before = simulator::held();
    int n_failed = 0;
    for (uint64_t n = 0; n < 100; ++n) {
        simulator::fail_call(n, n % 2 == 0 ? cudaErrorMemoryAllocation : cudaErrorInvalidValue);
        std::unique_ptr<TreeBackend> tree;
        const int status = status_of([&] { tree = cuda::create_tree_backend(options_with(1)); });
        simulator::fail_call(0, 0);
        tree.reset();
        n_failed += status != PER_OK;
        EXPECT_EQ(simulator::held(), before) << n;
    }
    EXPECT_GT(n_failed, 10);
}

TEST_F(CudaTreeCalls, a_failing_launch_is_an_error_of_the_call) {
    cuda::CudaTreeBackend tree(options_with(1));
    fill(tree);
    int64_t index = -7;
    int n_failed = 0;
    const auto call = [&] { tree.sample({1, PER_STRATIFIED, 1.0, &index, nullptr, nullptr}, stream_); };
    for (uint64_t n = 0;; ++n) {
        simulator::fail_call(n, cudaErrorInvalidConfiguration);
        const int status = status_of(call);
        if (simulator::fail_call(0, 0)) break;  // it makes fewer calls
        EXPECT_EQ(status, PER_ERROR_CUDA) << n;
        ++n_failed;
    }
    EXPECT_GE(n_failed, 4);
    EXPECT_EQ(sample(tree, 1).size(), 1u);
}

TEST_F(CudaTreeCalls, no_device_says_why) {
    const auto create = [] { cuda::create_tree_backend(options_with(1)); };
    simulator::options().driver_version = 0;
    EXPECT_EQ(status_of(create, "no NVIDIA driver"), PER_ERROR_NO_DEVICE);
    simulator::options().driver_version = 12040;
    EXPECT_EQ(status_of(create,
                        "the driver of this machine is for CUDA 12.4; libper was built with CUDA 13.0, and needs one "
                        "for CUDA 13.0 or later"),
              PER_ERROR_NO_DEVICE);
    simulator::options().driver_version = 13000;
    simulator::options().n_devices = 0;
    EXPECT_EQ(status_of(create, "cudaErrorNoDevice"), PER_ERROR_NO_DEVICE);
    simulator::options().n_devices = 2;
    per_tree_options options = options_with(1);
    options.device_index = 2;
    EXPECT_EQ(status_of([&] { cuda::create_tree_backend(options); }, "device_index is 2"), PER_ERROR_NO_DEVICE);
    simulator::options().compute_capability = 75;
    EXPECT_EQ(status_of(create, "7.5"), PER_ERROR_NO_DEVICE);
}

TEST_F(CudaTreeCalls, the_current_device_is_restored) {
    simulator::options().n_devices = 3;
    per_tree_options options = options_with(1);
    options.device_index = 2;
    cudaSetDevice(2);
    cudaStreamDestroy(stream_);
    cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    cudaSetDevice(1);
    {
        const std::unique_ptr<TreeBackend> tree = cuda::create_tree_backend(options);
        test::expect_current_device(1);
        fill(*tree);
        test::expect_current_device(1);
        tree->mass();
        test::expect_current_device(1);
        simulator::stick(cudaErrorIllegalAddress);
        EXPECT_EQ(status_of([&] { fill(*tree); }), PER_ERROR_CUDA);
        simulator::stick(0);
        test::expect_current_device(1);
    }
    test::expect_current_device(1);
    cudaSetDevice(0);
}

TEST_F(CudaTreeCalls, a_forked_child_may_only_free) {
    auto tree = std::make_unique<cuda::CudaTreeBackend>(options_with(1));
    fill(*tree);
    tree->synchronize(stream_);
    test::expect_in_child([&] {
        int n_right = 0;
        n_right += status_of([&] { fill(*tree); }, "forked") == PER_ERROR_NO_DEVICE;
        n_right += status_of([&] { tree->mass(); }, "forked") == PER_ERROR_NO_DEVICE;
        n_right += status_of([&] { tree->synchronize(stream_); }, "forked") == PER_ERROR_NO_DEVICE;
        // In the child any call of the CUDA runtime would fail, so freeing must make none.
        simulator::reset_counters();
        tree.reset();
        n_right += simulator::counters().allocations == 0;
        return n_right == 4;
    });
    EXPECT_EQ(sample(*tree, 4).size(), 4u);
}

}  // namespace
}  // namespace per

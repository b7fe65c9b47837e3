// Priorities on the device equal those on the CPU: after every change the same leaves, sums, scale, next rescale,
// maxima and ranks.
#include "cuda/replay/priorities.h"

#include <gtest/gtest.h>

#include <vector>

#include "backend/replay_options.h"
#include "base/error.h"
#include "core/checks.h"
#include "cuda/replay/replay_memory.h"
#include "graph.h"
#include "priority_twin.h"
#include "run_length.h"
#include "simulator.h"

namespace per {
namespace {

using test::PriorityTwin;

const per_field observation = {"x", nullptr, 0, PER_FLOAT32, PER_ROLE_OBSERVATION, 1, nullptr, 0, 0, 0};

per_replay_options options_of(int64_t capacity, int64_t n_envs) {
    per_replay_options options = default_replay_options;
    options.capacity = capacity;
    options.n_envs = n_envs;
    options.n_step = 3;
    options.fields = &observation;
    options.n_fields = 1;
    options.field_size = sizeof(per_field);
    options.max_priority = PER_MAX_EVER;
    return options;
}

void run(const per_replay_options& options, int n_calls) {
    for (const uint64_t seed : {1, 2, 3}) {
        if (test::is_short && seed > 1) return;
        PriorityTwin twin(options, seed);
        for (int call = 0; call < (test::is_short ? n_calls / 3 : n_calls); ++call) {
            twin.random_call();
            twin.expect_equal();
            if (testing::Test::HasFatalFailure()) FAIL() << "seed " << seed << ", call " << call;
        }
        twin.read_priorities();
        twin.restore();
        twin.expect_equal();
        twin.random_call();
        twin.expect_equal();
    }
}

TEST(DevicePriorities, follow_rows_and_updates_as_on_the_cpu) {
    run(options_of(60, 3), 300);
}

TEST(DevicePriorities, of_one_lane_of_more_slots_than_a_block_has_threads) {
    run(options_of(1500, 1), 60);
}

// The masses of these many leaves of similar size exceed 2^56 in total at the scale of the largest.
TEST(DevicePriorities, of_many_rows_that_come_to_an_empty_buffer_at_once) {
    for (const uint64_t seed : {1, 2, 3}) {
        PriorityTwin twin(options_of(25000, 2500), seed);
        for (int i = 0; i < 3; ++i) {
            twin.add(6);
            twin.expect_equal();
            twin.clear();
        }
    }
}

// Up to 1024 TD errors take one block of as many threads, if the device is fast at float64; else a block for each 256,
// as long as there are multiprocessors for it.
TEST(DevicePriorities, of_updates_by_one_block_and_by_several) {
    for (const int ratio : {2, 64}) {
        simulator::options().float64_ratio = ratio;
        PriorityTwin twin(options_of(1500, 1), 1);
        twin.add(1500);
        for (const int64_t count : {255, 256, 257, 511, 767, 768, 769, 1023, 1024, 1025}) {
            twin.update_by_td_errors(count);
            twin.expect_equal();
            ASSERT_FALSE(testing::Test::HasFailure()) << count << " TD errors, ratio " << ratio;
        }
        simulator::options().float64_ratio = 2;
    }
}

TEST(DevicePriorities, of_more_nodes_than_a_block_has_threads) {
    run(options_of(37 * 250, 37), 6);
}

TEST(DevicePriorities, of_many_lanes) {
    run(options_of(37 * 40, 37), 60);
}

TEST(DevicePriorities, with_maxima_of_live_priorities_and_smallest_leaves) {
    per_replay_options options = options_of(120, 2);
    options.max_priority = PER_MAX_NOW;
    options.normalize_weights = PER_BUFFER_MAX;
    options.critics = PER_CRITICS_MAX;
    run(options, 250);
    options.capacity = 1100;
    run(options, 60);
}

TEST(DevicePriorities, with_ranks) {
    per_replay_options options = options_of(120, 2);
    options.prioritization = PER_RANK;
    run(options, 120);
}

// An update and a change of rows are one launch each, of any size; neither waits or allocates.
TEST(DevicePriorities, wait_for_nothing_and_allocate_nothing) {
    per_replay_options options = options_of(120, 2);
    options.max_priority = PER_MAX_NOW;
    options.normalize_weights = PER_BUFFER_MAX;
    options.prioritization = PER_RANK;
    const Fields fields(options);
    const cuda::ReplayMemory memory(resolve_replay_options(options, fields), fields, nullptr);
    const cuda::DeviceReplay& replay = memory.device();
    cuda::queue_ranks(replay, nullptr);
    const std::vector<int64_t> ids(5000, -1);
    std::vector<float> priorities(5000, 1.0f);
    std::vector<cuda::UpdateEntry> entries(5000);
    cudaDeviceSynchronize();

    simulator::reset_counters();
    cuda::queue_priorities(replay, {4096, ids.data(), 0, nullptr, priorities.data()}, entries.data(), nullptr);
    EXPECT_EQ(simulator::counters().launches, 1u);
    cuda::queue_change_of_lanes(replay, 2048, nullptr);
    EXPECT_EQ(simulator::counters().launches, 2u);
    cuda::queue_priorities(replay, {5000, ids.data(), 0, nullptr, priorities.data()}, entries.data(), nullptr);
    cuda::queue_change_of_lanes(replay, 2049, nullptr);
    EXPECT_EQ(simulator::counters().launches, 4u);
    cuda::queue_take_ranks_if_due(replay, {0, 1}, nullptr);
    EXPECT_EQ(simulator::counters().launches, 5u);
    cuda::queue_read_priorities(replay, 5000, ids.data(), priorities.data(), nullptr);
    cuda::queue_alpha(replay, 0.5, nullptr);
    cuda::queue_no_priorities(replay, nullptr);
    EXPECT_EQ(simulator::counters().host_waits, 0u);
    EXPECT_EQ(simulator::counters().allocations, 0u);
    cudaDeviceSynchronize();
    EXPECT_EQ(priorities, std::vector<float>(5000, 0.0f));
}

// A graph of an update would not maintain ranks and smallest leaves.
TEST(DevicePriorities, what_a_captured_call_does_not_know_cannot_be_added) {
    const per_replay_options options = options_of(120, 2);
    const Fields fields(options);
    cuda::ReplayMemory memory(resolve_replay_options(options, fields), fields, nullptr);
    cuda::StreamOrder order(0);
    cudaStream_t stream;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    const int64_t id = -1;
    const float priority = 1.0f;
    cuda::UpdateEntry entry;
    test::while_captured(stream, [&] {
        cuda::StreamOrder::Call call(order, stream);
        cuda::queue_priorities(memory.device(), {1, &id, 0, nullptr, &priority}, &entry, call.stream());
        call.finish();
    });
    {
        cuda::StreamOrder::Call call(order, stream);
        EXPECT_THROW(memory.add_ranks(call), Error);
        EXPECT_THROW(memory.add_smallest_leaf(call), Error);
        call.finish();
    }
    EXPECT_EQ(memory.device().priorities.ranks.state, nullptr);
    EXPECT_EQ(memory.device().priorities.smallest_leaf.n_levels, 0);
    cudaStreamDestroy(stream);
}

TEST(DevicePriorities, of_sequences) {
    per_replay_options options = options_of(120, 2);
    options.sequence_length = 3;
    options.burn_in = 2;
    options.sequence_stride = 2;
    options.alpha = 1.0;
    options.critics = PER_CRITICS_MAX;
    run(options, 250);
}

}  // namespace
}  // namespace per

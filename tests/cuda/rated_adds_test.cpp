// Adds of several steps that give priorities: which priority a row takes that was given none, and what such a call
// costs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cuda/replay/priorities.h"
#include "hand_made_adds.h"

namespace per {
namespace {

using test::BothBuffers;
using test::Buffer;
using test::Declared;
using test::HandMade;
using test::small_buffer;

// Steps of two environments, by step.
HandMade rated_by_hand(bool with_next) {
    HandMade call(5, 2, 0, with_next);
    call.priorities = {5, NAN, NAN, 3, 7, NAN, NAN, NAN, 2, 9};
    return call;
}

std::vector<float> given(Buffer& buffer, int64_t env) {
    const float* const of_lane = buffer.device().priorities.given + env * 10;
    return std::vector<float>(of_lane, of_lane + 5);
}

// A row is live with the step after it, and takes the largest of the steps before that.
TEST(RatedAdd, gives_rows_the_largest_priority_before_the_step_at_which_they_become_live) {
    Buffer buffer(small_buffer(2, 10));
    buffer.add(rated_by_hand(false));
    EXPECT_EQ(given(buffer, 0), (std::vector<float>{5, 5, 7, 7, 2}));
    EXPECT_EQ(given(buffer, 1), (std::vector<float>{5, 3, 7, 7, 9}));
    EXPECT_EQ(bit_cast<float>(buffer.state().largest_bits), 9.0f);
}

// A row is live at once.
TEST(RatedAdd, does_not_count_a_priority_within_its_own_step) {
    Buffer buffer(small_buffer(2, 10));
    buffer.add(rated_by_hand(true));
    EXPECT_EQ(given(buffer, 0), (std::vector<float>{5, 5, 7, 7, 2}));
    EXPECT_EQ(given(buffer, 1), (std::vector<float>{1, 3, 5, 7, 9}));
    EXPECT_EQ(bit_cast<float>(buffer.state().largest_bits), 9.0f);
}

TEST(RatedAdd, counts_what_was_given_before_the_call) {
    Buffer buffer(small_buffer(2, 10));
    HandMade first(1, 2, 0, false);
    first.priorities = {6, 4};
    buffer.add(first);
    HandMade second = rated_by_hand(false);
    second.priorities[9] = NAN;
    for (float& observation : second.observation) observation += 1;
    buffer.add(second);
    buffer.add(HandMade(1, 2, 6, false));
    const float* const lane_1 = buffer.device().priorities.given + 10;
    EXPECT_EQ(std::vector<float>(lane_1, lane_1 + 6), (std::vector<float>{4, 6, 3, 7, 7, 7}));
}

TEST(RatedAdd, counts_no_more_what_was_given_before_a_file_was_loaded) {
    Buffer buffer(small_buffer(2, 10));
    buffer.add(rated_by_hand(true));
    buffer.device().state->largest_bits = bit_cast<uint32_t>(2.0f);  // as of the file's buffer
    HandMade call(2, 2, 5, true);
    call.priorities.assign(4, NAN);
    buffer.add(call);
    const float* const lane_0 = buffer.device().priorities.given + 5;
    EXPECT_EQ(std::vector<float>(lane_0, lane_0 + 2), (std::vector<float>{2, 2}));
}

// Sixteen lanes are two blocks. One warp has forty episodes to go through, the others are done at once.
TEST(RatedAdd, waits_for_the_slowest_warp_of_all_blocks) {
    constexpr int64_t n_envs = 16;
    constexpr int64_t n_steps = 40;
    Declared declared = small_buffer(n_envs, 100);
    declared.options.autoreset = PER_AUTORESET_DISABLED;
    simulator::options().all_blocks_resident = true;
    for (uint64_t seed = 1; seed <= 10; ++seed) {
        simulator::options().seed = seed;
        const std::size_t slow_env = seed % 2 == 0 ? 7 : 15;
        Buffer buffer(declared);
        HandMade call(n_steps, n_envs, 0, true);
        call.mask.assign(n_steps * n_envs, 0);
        call.priorities.assign(n_steps * n_envs, 2);
        std::fill_n(call.mask.begin(), n_envs, uint8_t{1});
        for (std::size_t step = 0; step < n_steps; ++step) {
            const std::size_t entry = step * n_envs + slow_env;
            call.mask[entry] = call.terminated[entry] = 1;
            call.priorities[entry] = static_cast<float>(10 + step);
        }
        buffer.add(call);
        EXPECT_EQ(bit_cast<float>(buffer.state().largest_bits), 49.0f);
        EXPECT_EQ(buffer.state().n_live, n_envs - 1 + n_steps);
        EXPECT_EQ(buffer.state().pending.n_live, 0);
    }
    simulator::options().all_blocks_resident = false;
    simulator::options().seed = 1;
}

// Masses of a tree of leaves of 1e-6 have no room for one of 1: the scale must be chosen anew for the rows that wait.
TEST(RatedAdd, chooses_the_scale_for_rows_that_wait) {
    Declared declared = small_buffer(1, 100);
    declared.options.on_invalid = PER_INVALID_SKIP;
    declared.options.alpha = 1;
    Buffer buffer(declared);
    HandMade small(20, 1, 0, true);
    small.priorities.assign(20, 1e-6f);
    buffer.add(small);
    const int32_t scale = buffer.device().priorities.tree.state->scale;
    HandMade waiting(2, 1, 20, true);
    waiting.priorities.assign(2, NAN);
    buffer.add(waiting);
    EXPECT_LT(buffer.device().priorities.tree.state->scale, scale - 15);
    EXPECT_EQ(buffer.device().priorities.tree.leaves[21], 1.0f);
}

// A single step waits for no priority, and takes one launch with its leaves.
TEST(RatedAdd, takes_two_launches_besides_those_of_the_leaves_however_many_steps) {
    for (const int64_t n_envs : {1, 4}) {
        Buffer buffer(small_buffer(n_envs, 1000));
        for (const bool are_td_errors : {false, true}) {
            for (const int64_t n_steps : {1, 7, 200}) {
                HandMade call(n_steps, n_envs, 0, true);
                (are_td_errors ? call.td_errors : call.priorities).assign(call.observation.size(), 2.0f);
                cudaDeviceSynchronize();
                simulator::reset_counters();
                cuda::queue_change_of_lanes(buffer.device(), n_steps, buffer.stream());
                const uint64_t of_leaves = simulator::counters().launches;
                cudaDeviceSynchronize();
                simulator::reset_counters();
                buffer.queue(call, nullptr);
                EXPECT_EQ(simulator::counters().launches, n_steps == 1 ? 1 : 2 + of_leaves) << n_steps;
                EXPECT_EQ(simulator::counters().allocations, 0u);
                EXPECT_EQ(simulator::counters().host_waits, 0u);
                EXPECT_EQ(of_leaves, 1u);
                cudaDeviceSynchronize();  // before the arrays are gone
            }
        }
    }
}

// 2^14 entries at the least, and as many as a 16th of the rows.
TEST(RatedAdd, takes_two_launches_for_each_piece) {
    for (const int64_t n_rows : {int64_t{100}, int64_t{2} << 18}) {
        Buffer buffer(small_buffer(1, n_rows));
        HandMade call((1 << 14) + 1, 1, 0, true);
        call.priorities.assign(call.observation.size(), 2.0f);
        simulator::reset_counters();
        cuda::queue_change_of_lanes(buffer.device(), call.length, buffer.stream());
        const uint64_t of_leaves = simulator::counters().launches;
        cudaDeviceSynchronize();
        simulator::reset_counters();
        buffer.queue(call, nullptr);
        EXPECT_EQ(simulator::counters().launches, (n_rows == 100 ? 4 : 2) + of_leaves);
        cudaDeviceSynchronize();  // before the arrays are gone
    }
}

}  // namespace
}  // namespace per

// Adds of several steps with priorities: the priority of rows without a given one, and the cost of such a call.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>
#include <string>
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

// A row becomes live with the next step, and takes the largest priority before that step.
TEST(RatedAdd, gives_rows_the_largest_priority_before_the_step_at_which_they_become_live) {
    Buffer buffer(small_buffer(2, 10));
    buffer.add(rated_by_hand(false));
    EXPECT_EQ(given(buffer, 0), (std::vector<float>{5, 5, 7, 7, 2}));
    EXPECT_EQ(given(buffer, 1), (std::vector<float>{5, 3, 7, 7, 9}));
    EXPECT_EQ(bit_cast<float>(buffer.state().largest_bits), 9.0f);
}

// A row whose next observation is given is live at once.
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
    buffer.device().state->largest_bits = bit_cast<uint32_t>(2.0f);  // as in the loaded buffer
    HandMade call(2, 2, 5, true);
    call.priorities.assign(4, NAN);
    buffer.add(call);
    const float* const lane_0 = buffer.device().priorities.given + 5;
    EXPECT_EQ(std::vector<float>(lane_0, lane_0 + 2), (std::vector<float>{2, 2}));
}

// Sixteen lanes are two blocks. One warp processes forty episodes; the others finish at once.
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

// At the scale of leaves of 1e-6, a leaf of 1 is too large: rows that wait for their priority need another scale.
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

// Random steps of two environments, whose priorities rise and fall over 80 powers of two, 3 per step.
HandMade any_steps(std::mt19937_64& random, int64_t n_steps, float first) {
    HandMade call(n_steps, 2, first, random() % 2 == 0);
    for (std::size_t i = 0; i < call.observation.size(); ++i) {
        const int phase = 3 * (static_cast<int>(first) + static_cast<int>(i / 2)) % 160;
        call.priorities.push_back(std::ldexp(1.0f, std::abs(phase - 80) - 40 + static_cast<int>(random() % 3)));
        call.terminated[i] = random() % 32 == 0;
    }
    return call;
}

HandMade step_of(const HandMade& call, int64_t k, float first) {
    HandMade step(1, 2, first + static_cast<float>(k), !call.next.empty());
    for (std::size_t j = 0; j < 2; ++j) {
        step.priorities.push_back(call.priorities[2 * static_cast<std::size_t>(k) + j]);
        step.terminated[j] = call.terminated[2 * static_cast<std::size_t>(k) + j];
    }
    return step;
}

void expect_same_tree(const cuda::DeviceTree& one, const cuda::DeviceTree& other) {
    ASSERT_EQ(one.state->scale, other.state->scale);
    ASSERT_EQ(one.state->total, other.state->total);
    ASSERT_EQ(one.state->low_water, other.state->low_water);
    for (int64_t i = 0; i < one.capacity; ++i) ASSERT_EQ(one.leaves[i], other.leaves[i]) << i;
}

// The scale depends on the sums after each step. Within a call they may leave the limits of a scale, and return.
TEST(RatedAdd, of_several_steps_leaves_the_scale_that_single_steps_leave) {
    Declared declared = small_buffer(2, 40);
    declared.fields[0].stack = 3;
    declared.options.prioritization = PER_RANK;
    declared.options.alpha = 1;
    declared.options.autoreset = PER_AUTORESET_DISABLED;
    std::mt19937_64 random(1);
    Buffer at_once(declared), singly(declared);
    float first = 0;
    int n_scales = 0;
    for (int i = 0; i < 50 && !HasFatalFailure(); ++i) {
        SCOPED_TRACE("call " + std::to_string(i));
        const int64_t n_steps = 1 + static_cast<int64_t>(random() % 60);
        const HandMade call = any_steps(random, n_steps, first);
        const int32_t scale = at_once.device().priorities.tree.state->scale;
        at_once.add(call);
        for (int64_t k = 0; k < n_steps; ++k) singly.add(step_of(call, k, first));
        first += static_cast<float>(n_steps);
        expect_same_tree(at_once.device().priorities.tree, singly.device().priorities.tree);
        expect_same_tree(at_once.device().priorities.ranks.tree, singly.device().priorities.ranks.tree);
        ASSERT_EQ(at_once.device().priorities.ranks.state->n_changes,
                  singly.device().priorities.ranks.state->n_changes);
        n_scales += at_once.device().priorities.tree.state->scale != scale;
        if (random() % 4 != 0) continue;
        for (Buffer* const buffer : {&at_once, &singly}) {
            cuda::queue_take_ranks_if_due(buffer->device(), {0, 1}, buffer->stream());
            cudaDeviceSynchronize();
        }
    }
    EXPECT_GT(n_scales, 10);
}

// A single step does not wait for priorities, and takes one launch including its leaves.
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
                cudaDeviceSynchronize();  // the arrays must outlive the work
            }
        }
    }
}

// Calls are added in pieces of 2^14 entries, or a 24th of the rows if that is more. The steps of a piece are few enough
// that each row which becomes live in it stays live until its end.
TEST(RatedAdd, takes_three_launches_for_each_piece) {
    for (const int64_t n_rows : {int64_t{100}, int64_t{1} << 17, int64_t{1} << 19}) {
        Buffer buffer(small_buffer(1, n_rows));
        HandMade call(n_rows == 100 ? 200 : (1 << 14) + 1, 1, 0, true);
        call.priorities.assign(call.observation.size(), 2.0f);
        simulator::reset_counters();
        buffer.queue(call, nullptr);
        // In a ring of 100 rows a piece has 47 steps, as a window has 3 rows.
        EXPECT_EQ(simulator::counters().launches, 3 * (n_rows == 100 ? 5 : n_rows == 1 << 17 ? 2 : 1));
        cudaDeviceSynchronize();  // the arrays must outlive the work
    }
}

}  // namespace
}  // namespace per

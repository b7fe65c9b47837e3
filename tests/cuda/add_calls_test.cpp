// Calls that add to a buffer on CUDA: skipped steps, refused calls, memory of arrays, captures, and the cost of a call.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "add_buffers.h"
#include "cuda/replay/priorities.h"
#include "graph.h"
#include "hand_made_adds.h"

namespace per {
namespace {

using test::BothArrays;
using test::BothBuffers;
using test::Buffer;
using test::Declared;
using test::HandMade;
using test::Ids;
using test::Manner;
using test::no_id;
using test::small_buffer;

// The message with which synchronize() would fail.
std::string reported(Buffer& buffer) {
    try {
        cuda::report(buffer.state().errors, false, false);
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

// ---------------------------------------------------------------------------------------------- steps that are skipped

TEST(AddedStep, without_its_final_observation_is_skipped) {
    Buffer buffer(small_buffer(2, 10));
    HandMade call(3, 2, 0, false);
    call.terminated = {0, 0, 1, 0, 0, 0};  // step 1 of environment 0 ends its episode without a next observation
    // Environment 0: rows 0 and 1 are steps 0 and 2.
    EXPECT_EQ(buffer.add(call), (Ids{0, 1, no_id, 3, 2, 5}));
    EXPECT_EQ(reported(buffer),
              "1 steps were not allowed: not added, id -1 (1 ending an episode without its final "
              "observation, and not marked so by next_mask)");
    EXPECT_EQ(buffer.state().counters.rejected_updates, 1);
    EXPECT_EQ(buffer.state().counters.added, 5);
    EXPECT_EQ(buffer.state().counters.episodes, 0);
    EXPECT_EQ(buffer.device().lanes[0].head, 2);
    EXPECT_EQ(buffer.observation(1), 2.0f);
}

TEST(AddedStep, that_leaves_a_gap_is_skipped_where_gaps_are_errors) {
    Declared declared = small_buffer(1, 10);
    declared.options.on_gap = PER_GAP_ERROR;
    Buffer buffer(declared);
    HandMade call(3, 1, 0, true);
    call.observation[1] = 77;  // step 0 has announced 1
    call.observation[2] = 1;   // the announced observation, one step late
    EXPECT_EQ(buffer.add(call), (Ids{0, no_id, 1}));
    EXPECT_EQ(reported(buffer),
              "1 steps were not allowed: not added, id -1 (1 with an observation that differs from the next one "
              "of the step before (on_gap is PER_GAP_ERROR))");
    EXPECT_EQ(buffer.state().counters.cuts, 0);
    EXPECT_EQ(buffer.observation(0), 0.0f);
    EXPECT_EQ(buffer.observation(1), 1.0f);
    EXPECT_EQ(buffer.observation(2), 3.0f);  // the observation that the last step announced
}

TEST(AddedStep, that_does_not_fit_in_a_full_lane_is_skipped) {
    Declared declared = small_buffer(1, 3);
    declared.options.overwrite = 0;
    Buffer buffer(declared);
    // The observation after a step takes a row, too.
    EXPECT_EQ(buffer.add(HandMade(4, 1, 0, true)), (Ids{0, 1, no_id, no_id}));
    EXPECT_EQ(
        reported(buffer),
        "2 steps found a full lane, and overwrite is off: not added, id -1 (per_replay_clear() empties the buffer, "
        "per_replay_compute_capacity() computes a larger capacity)");
    EXPECT_EQ(buffer.state().counters.rejected_updates, 2);
    EXPECT_EQ(buffer.device().lanes[0].head, 2);
}

TEST(AddedStep, with_a_value_that_does_not_fit_is_skipped) {
    Buffer buffer(small_buffer(1, 10));
    HandMade call(4, 1, 0, false);
    call.plain_dtype = PER_INT64;
    call.plain_64 = {1, 32768, 3, 4};
    call.reward = {1, 2, 1e39, -4};
    EXPECT_EQ(buffer.add(call), (Ids{0, no_id, no_id, 1}));
    EXPECT_EQ(reported(buffer), "2 steps were not allowed: not added, id -1 (2 with a value out of range)");
    EXPECT_EQ(reinterpret_cast<const int16_t*>(buffer.device().fields[1].frames)[1], 4);
    EXPECT_EQ(buffer.device().rewards[1], -4.0f);
}

TEST(AddedStep, with_a_nan_is_skipped_where_nan_is_an_error) {
    Declared declared = small_buffer(1, 20);
    declared.options.on_nan = PER_NAN_ERROR;
    for (const bool in_host_memory : {false, true}) {
        Buffer buffer(declared);
        simulator::options().has_host_memory = in_host_memory;
        Ids ids(4, -7);
        BothArrays ids_out(4 * sizeof(int64_t));
        HandMade call(4, 1, 0, false);
        call.reward[2] = NAN;
        buffer.queue(call, reinterpret_cast<int64_t*>(ids_out.device()));
        cudaDeviceSynchronize();
        std::memcpy(ids.data(), ids_out.device(), 4 * sizeof(int64_t));
        EXPECT_EQ(ids, (Ids{0, 1, no_id, 2}));
        HandMade more(4, 1, 4, true);
        more.observation[1] = NAN;
        more.next[2] = NAN;  // the last step does not continue the first, whose announced observation stays in row 4
        buffer.queue(more, reinterpret_cast<int64_t*>(ids_out.device()));
        cudaDeviceSynchronize();
        std::memcpy(ids.data(), ids_out.device(), 4 * sizeof(int64_t));
        EXPECT_EQ(ids, (Ids{3, no_id, no_id, 5}));
        EXPECT_EQ(reported(buffer),
                  "3 steps were not allowed: not added, id -1 (3 with a NaN (on_nan is PER_NAN_ERROR))");
        EXPECT_EQ(buffer.state().counters.rejected_updates, 3);
    }
}

// The first step ends at observation 5, which the second step brings again. With PER_AUTORESET_NEXT_STEP the second is
// dropped as the reset step, and is also suspect if it has a reward or an end.
TEST(AddedStep, that_brings_the_final_observation_again_is_suspect_or_the_reset_step) {
    const struct {
        int32_t autoreset;
        double reward;
        uint8_t truncated;
        int64_t id, dropped, suspected;
    } cases[] = {{PER_AUTORESET_DISABLED, 0, 0, 2, 0, 1},       {PER_AUTORESET_DISABLED, 1, 0, 2, 0, 1},
                 {PER_AUTORESET_SAME_STEP, 0, 0, 2, 0, 1},      {PER_AUTORESET_NEXT_STEP, 0, 0, no_id, 1, 0},
                 {PER_AUTORESET_NEXT_STEP, -1, 0, no_id, 1, 1}, {PER_AUTORESET_NEXT_STEP, 0, 1, no_id, 1, 1}};
    for (const auto& expected : cases) {
        Declared declared = small_buffer(1, 20);
        declared.options.autoreset = expected.autoreset;
        Buffer buffer(declared);
        HandMade call(2, 1, 4, true);
        call.terminated[0] = 1;
        call.next_mask = {1, 1};
        call.reward = {7, expected.reward};
        call.truncated[1] = expected.truncated;
        EXPECT_EQ(buffer.add(call), (Ids{0, expected.id}));
        EXPECT_EQ(buffer.state().counters.dropped, expected.dropped);
        EXPECT_EQ(buffer.state().counters.suspected_resets, expected.suspected);
    }
}

TEST(AddedStep, without_what_the_buffer_asks_for_is_skipped_and_each_reason_reported_with_its_count) {
    Declared declared = small_buffer(1, 10);
    declared.options.store_next_observation = 1;
    declared.options.autoreset = PER_AUTORESET_SAME_STEP;
    Buffer buffer(declared);
    HandMade call(6, 1, 0, false);
    call.plain_dtype = PER_INT64;
    call.plain_64 = {1, 2, 3, -32769, 5, 6};
    call.truncated = {0, 1, 0, 0, 1, 0};
    EXPECT_EQ(buffer.add(call), (Ids{no_id, no_id, no_id, no_id, no_id, no_id}));
    call.next_mask = {1, 1, 1, 1, 0, 1};
    buffer.add(call);  // now step 1 ends without its final observation, and step 4 says that its own is unknown
    EXPECT_EQ(reported(buffer),
              "11 steps were not allowed: not added, id -1 (2 with a value out of range, 2 ending an episode without "
              "next_mask (autoreset is PER_AUTORESET_SAME_STEP), 1 ending an episode without its final observation, "
              "and not marked so by next_mask, 6 without the next observation that store_next_observation needs)");
}

TEST(AddedStep, with_a_bad_priority_takes_the_largest) {
    Buffer buffer(small_buffer(3, 10));
    HandMade call(1, 3, 0, true);
    call.priorities = {5, NAN, -1};
    EXPECT_EQ(buffer.add(call), (Ids{0, 1, 2}));
    EXPECT_EQ(buffer.state().errors.n_bad_priorities, 2u);
    EXPECT_EQ(buffer.state().counters.rejected_updates, 2);
    const float* const given = buffer.device().priorities.given;
    EXPECT_EQ((std::array{given[0], given[10], given[20]}), (std::array{5.0f, 1.0f, 1.0f}));
    EXPECT_EQ(bit_cast<float>(buffer.state().largest_bits), 5.0f);
}

// ---------------------------------------------------------------------------------------------------- where arrays lie

TEST(AddOfHostMemory, whose_value_does_not_fit_is_refused_as_a_whole) {
    Buffer buffer(small_buffer(1, 10));
    simulator::options().has_host_memory = true;
    HandMade call(3, 1, 0, false);
    call.plain_dtype = PER_INT64;
    call.plain_64 = {1, 2, 32768};
    EXPECT_EQ(buffer.refusal(call), "field_1[2] is 32768: allowed are -32768 .. 32767 (int16)");
    EXPECT_EQ(buffer.state().counters.added, 0);
    EXPECT_EQ(buffer.device().lanes[0].head, 0);
    call.mask = {1, 1, 0};  // then the bad value is not read
    EXPECT_EQ(buffer.refusal(call), "");
    EXPECT_EQ(buffer.state().counters.added, 2);
}

// Twice the 2^14 entries that are enqueued at a time.
TEST(AddOfHostMemory, of_many_steps_is_refused_before_the_first_of_them_is_added) {
    constexpr int64_t n = 40000;
    Buffer buffer(small_buffer(1, 10));
    simulator::options().has_host_memory = true;
    HandMade call(n, 1, 0, false);
    call.plain_dtype = PER_INT64;
    std::fill(call.plain_64.begin(), call.plain_64.end(), 7);
    call.plain_64[n - 1] = -32769;
    EXPECT_EQ(buffer.refusal(call), "field_1[39999] is -32769: allowed are -32768 .. 32767 (int16)");
    EXPECT_EQ(buffer.state().counters.added, 0);
    call.plain_64[n - 1] = -32768;
    call.truncated[n - 1] = 7;
    EXPECT_EQ(buffer.refusal(call), "truncated[39999] is 7: it is a flag, and allowed are booleans, 0 and 1");
    EXPECT_EQ(buffer.state().counters.added, 0);
    call.truncated[n - 1] = 0;
    EXPECT_EQ(buffer.refusal(call), "");
    EXPECT_EQ(buffer.state().counters.added, n);
    EXPECT_EQ(buffer.device().lanes[0].head, n);
    EXPECT_EQ(reinterpret_cast<const int16_t*>(buffer.device().fields[1].frames)[(n - 1) % 10], -32768);
}

TEST(AddOfHostMemory, is_refused_in_a_capture) {
    Buffer buffer(small_buffer(1, 10));
    simulator::options().has_host_memory = true;
    test::while_captured(buffer.stream(), [&] {
        const std::string refusal = buffer.refusal(HandMade(1, 1, 0, false));
        EXPECT_EQ(refusal.substr(refusal.find(' ')),
                  " is in host memory: a call that is captured in a graph takes arrays of the device only");
    });
}

TEST(AddOfHostMemory, does_not_take_ids_out_that_the_device_cannot_write) {
    Buffer buffer(small_buffer(1, 10));
    simulator::options().has_host_memory = true;
    int64_t id = -7;
    const std::string refusal = buffer.refusal(HandMade(1, 1, 0, false), &id);
    EXPECT_NE(refusal.find("in host memory that is not pinned"), std::string::npos) << refusal;
    void* pinned;
    ASSERT_EQ(cudaMallocHost(&pinned, sizeof id), cudaSuccess);
    EXPECT_EQ(buffer.refusal(HandMade(1, 1, 0, false), static_cast<int64_t*>(pinned)), "");
    cudaDeviceSynchronize();
    EXPECT_EQ(*static_cast<int64_t*>(pinned), 0);
    cudaFreeHost(pinned);
}

// The buffers of the staging ring hold 256 KiB. A step of all environments takes 2 MiB of the ring: the host does not
// cast values before it copies them, as it cannot read masks on the device.
TEST(AddOfHostMemory, takes_a_step_that_is_larger_than_the_staging_ring) {
    Declared declared;
    declared.fields = {{{7000}, PER_UINT8, PER_ROLE_OBSERVATION}};
    declared.options.n_envs = 10;
    declared.options.capacity = 10 * 6;
    for (const double p_host_memory : {1.0, 0.7}) {
        for (uint64_t seed = 1; seed <= 4; ++seed) {
            Manner manner;
            manner.p_cast = 0.8;
            manner.p_mask = 1;
            manner.p_host_memory = p_host_memory;
            manner.longest = 3;
            BothBuffers both(declared, seed, manner);
            for (int i = 0; i < 4; ++i) both.add(*both.environments().call());
            ASSERT_FALSE(testing::Test::HasFailure()) << seed;
        }
    }
}

// 3 MiB of frames through buffers of 256 KiB: the ring wraps around three times.
TEST(AddOfHostMemory, is_not_overwritten_in_the_staging_ring_before_the_device_has_read_it) {
    constexpr int64_t n = 750;
    Declared declared;
    declared.fields = {{{4096}, PER_UINT8, PER_ROLE_OBSERVATION}, {{}, PER_INT16, PER_ROLE_PLAIN}};
    declared.options.capacity = n + 3;
    for (uint64_t seed = 1; seed <= 3; ++seed) {
        simulator::options().seed = seed;
        Buffer buffer(declared);
        simulator::options().has_host_memory = true;
        HandMade call(n, 1, 0, false);
        call.frames.resize(n * 4096);
        for (std::size_t i = 0; i < call.frames.size(); ++i) call.frames[i] = static_cast<uint8_t>(i / 4096 * 7 + i);
        buffer.queue(call, nullptr);
        const std::vector<uint8_t> frames = call.frames;
        std::fill(call.frames.begin(), call.frames.end(), uint8_t{0});
        EXPECT_EQ(std::memcmp(buffer.device().fields[0].frames, frames.data(), frames.size()), 0) << seed;
    }
    simulator::options().seed = 1;
}

TEST(AddOfHostMemory, reaches_the_device_with_the_ids_of_many_environments) {
    Declared declared;
    declared.fields = {{{}, PER_UINT8, PER_ROLE_OBSERVATION}};
    declared.options.n_envs = 1000;
    declared.options.capacity = 1000 * 4;
    for (uint64_t seed = 1; seed <= 4; ++seed) {
        Manner manner;
        manner.p_host_memory = 0.5;
        manner.longest = 2;
        BothBuffers both(declared, seed, manner);
        for (int i = 0; i < 3; ++i) both.add(*both.environments().call());
        both.cut();
        ASSERT_FALSE(testing::Test::HasFailure()) << seed;
    }
}

// ------------------------------------------------------------------------------------------------- casts on the device

// Bit patterns at the edges of formats, and some in between.
std::vector<uint64_t> some_bits(int64_t size) {
    std::vector<uint64_t> bits = {0, 1, 2, 0x7f, 0x80, 0xff};
    std::mt19937_64 random(3);
    for (int i = 0; i < 400; ++i) bits.push_back(random());
    for (int i = 0; i < 400; ++i)
        bits.push_back(bit_cast<uint64_t>(std::ldexp(1.0 + 0x1p-52 * (random() >> 12), i - 170)));
    for (int i = 0; i < 400; ++i)
        bits.push_back(bit_cast<uint32_t>(std::ldexp(1.0f + 0x1p-23f * (random() >> 41), i / 3 - 70)));
    const double edges[] = {0.0, 65504.0, 65519.99, 65520.0, 3.4028235677973366e38, 3.4028234e38, INFINITY, NAN};
    for (const double value : edges) {
        for (const double sign : {1.0, -1.0}) {
            bits.push_back(bit_cast<uint64_t>(sign * value));
            bits.push_back(bit_cast<uint32_t>(static_cast<float>(sign * value)));
        }
    }
    for (int i = 0; i < 0x10000 && size == 2; ++i) bits.push_back(static_cast<uint64_t>(i));
    return bits;
}

TEST(CastOnTheDevice, of_every_dtype_to_every_other_is_that_of_the_host) {
    for (int32_t from = PER_BOOL; from <= PER_FLOAT64; ++from) {
        for (int32_t to = PER_BOOL; to <= PER_FLOAT64; ++to) {
            if (!can_cast(from, to)) continue;
            for (const uint64_t bits : some_bits(dtype_size(from))) {
                uint64_t expected = 0;
                bool fits = true;
                try {
                    cast("x", {&bits, nullptr, 0, from, nullptr}, to, &expected, {.entries = 1, .elements = 1});
                } catch (const Error&) {
                    fits = false;
                }
                const CastElement cast = cast_element(reinterpret_cast<const std::byte*>(&bits), from, to);
                ASSERT_EQ(cast.fits, fits) << dtype_name(from) << " to " << dtype_name(to) << ": " << bits;
                if (fits) {
                    ASSERT_EQ(cast.bits, expected) << dtype_name(from) << " to " << dtype_name(to) << ": " << bits;
                }
            }
        }
    }
}

// ---------------------------------------------------------------------------------------------------- graphs, and cost

TEST(CapturedAdd, adds_again_with_each_launch) {
    for (const bool some_environments : {false, true}) {
        Declared declared = small_buffer(some_environments ? 700 : 3, 6);
        Buffer buffer(declared);
        Buffer expected(declared);
        HandMade call(2, some_environments ? 600 : 3, 0, true);
        // More than a kernel takes as parameters.
        for (int64_t j = 0; j < call.n_envs && some_environments; ++j) call.env_ids.push_back(699 - j);
        std::vector<int64_t> ids(call.observation.size());
        const test::Graph graph(buffer.stream(), [&] { buffer.queue(call, ids.data()); });
        // The caller's array and the staging buffer are reused after the call. No episode is running, so nothing is
        // cut.
        std::fill(call.env_ids.begin(), call.env_ids.end(), 0);
        for (int i = 0; i < 4 && some_environments; ++i) {
            std::vector<int64_t> env_ids(400);
            std::iota(env_ids.begin(), env_ids.end(), 0);
            cuda::StreamOrder::Call order(buffer.order(), buffer.stream());
            buffer.steps().cut(400, env_ids.data(), order);
            order.finish();
        }
        HandMade same(2, call.n_envs, 0, true);
        for (int64_t j = 0; j < call.n_envs && some_environments; ++j) same.env_ids.push_back(699 - j);
        for (int i = 0; i < 4; ++i) {
            graph.launch();
            cudaDeviceSynchronize();
            ASSERT_EQ(ids, expected.add(same));
        }
        const cuda::DeviceReplay& device = buffer.device();
        const auto n = static_cast<std::size_t>(device.capacity);
        EXPECT_EQ(std::memcmp(device.flags, expected.device().flags, n), 0);
        EXPECT_EQ(std::memcmp(device.priorities.tree.leaves, expected.device().priorities.tree.leaves, 4 * n), 0);
        EXPECT_EQ(std::memcmp(&device.state->counters, &expected.state().counters, sizeof device.state->counters), 0);
        EXPECT_EQ(device.state->counters.cuts, 3 * call.n_envs);  // each launch but the first cuts
    }
}

TEST(AddOfDeviceMemory, allocates_nothing_and_waits_for_nothing) {
    Buffer buffer(small_buffer(2, 10));
    const auto counted = [&](const std::function<void()>& make_call) {
        cudaDeviceSynchronize();
        simulator::reset_counters();
        make_call();
        EXPECT_EQ(simulator::counters().allocations, 0u);
        EXPECT_EQ(simulator::counters().host_waits, 0u);
    };
    HandMade one(1, 2, 0, true);
    HandMade many(100, 2, 0, true);
    HandMade rated(5, 2, 0, true);
    rated.priorities.assign(10, 2.0f);
    HandMade some(1, 1, 0, true);
    some.env_ids = {1};
    std::vector<int64_t> ids(200);
    for (HandMade* const call : {&one, &many, &rated, &some}) counted([&] { buffer.queue(*call, ids.data()); });
    const auto ordered = [&](const auto& make_call) {
        counted([&] {
            cuda::StreamOrder::Call order(buffer.order(), buffer.stream());
            make_call(order);
            order.finish();
        });
    };
    const int64_t env_id = 1;
    ordered([&](const auto& order) { buffer.steps().cut(2, nullptr, order); });
    ordered([&](const auto& order) { buffer.steps().cut(1, &env_id, order); });
    ordered([&](const auto& order) { buffer.steps().set_n_step(1, order); });
    cudaDeviceSynchronize();  // the arrays must outlive the work
}

// The simulated device has three multiprocessors, which have room for 24 lanes at once.
TEST(AddOfDeviceMemory, takes_one_launch_for_few_steps_and_else_two_besides_those_of_the_leaves) {
    Buffer buffer(small_buffer(2, 100));
    HandMade one(1, 2, 0, true);
    HandMade few(32, 2, 0, true);
    HandMade many(33, 2, 0, true);
    Buffer of_lanes(small_buffer(24, 10));
    HandMade of_all_lanes(1, 24, 0, true);
    Buffer of_more_lanes(small_buffer(25, 10));
    HandMade of_too_many_lanes(1, 25, 0, true);
    const auto launches_of = [](HandMade& call, Buffer& added_to) {
        cudaDeviceSynchronize();
        simulator::reset_counters();
        added_to.queue(call, nullptr);
        return simulator::counters().launches;
    };
    simulator::reset_counters();
    cuda::queue_change_of_lanes(buffer.device(), 1, buffer.stream());
    const uint64_t of_leaves = simulator::counters().launches;
    EXPECT_EQ(launches_of(one, buffer), 1u);
    EXPECT_EQ(launches_of(few, buffer), 1u);
    EXPECT_EQ(launches_of(many, buffer), 2 + of_leaves);
    EXPECT_EQ(launches_of(of_all_lanes, of_lanes), 1u);
    EXPECT_EQ(launches_of(of_too_many_lanes, of_more_lanes), 2 + of_leaves);
    cudaDeviceSynchronize();  // the arrays must outlive the work
}

}  // namespace
}  // namespace per

// A reward function in C++ is called with arrays of the right size, and its exceptions reach the caller.
#include <gtest/gtest.h>
#include <pthread.h>
#include <per.hpp>

#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "buffers.h"

namespace {

TEST(Hindsight, rewards_are_those_of_the_function) {
    per::ReplayBuffer buffer = small_buffer();
    add_episode(buffer, 8);
    int calls = 0;
    std::size_t relabelled = 0;
    per::Hindsight hindsight =
        buffer.hindsight<float>("observation", "goal",
                                [&](per::Span<const float> achieved, per::Span<const float> goals,
                                    per::Span<float> rewards, per::Span<uint8_t> terminated) {
                                    ++calls;
                                    relabelled = rewards.size();
                                    EXPECT_EQ(achieved.size(), 2 * rewards.size());
                                    EXPECT_EQ(goals.size(), 2 * rewards.size());
                                    EXPECT_EQ(terminated.size(), rewards.size());
                                    for (std::size_t i = 0; i < rewards.size(); ++i) {
                                        rewards[i] = 100 * goals[2 * i] + achieved[2 * i];
                                        terminated[i] = achieved[2 * i] == goals[2 * i];
                                    }
                                });
    hindsight.options.strategy = PER_GOAL_FINAL;
    hindsight.options.fraction = 1;
    const per::Batch batch = buffer.sample(16, nullptr, &hindsight);
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(relabelled, 16U);
    for (std::size_t i = 0; i < 16; ++i) {
        const auto achieved = static_cast<float>(batch.ids()[i] + 1);
        EXPECT_EQ(batch.field<float>("goal")[2 * i], 8.0f) << "the last state of the episode";
        EXPECT_EQ(batch.reward()[i], 800 + achieved);
        EXPECT_EQ(batch.terminated()[i], achieved == 8);
    }
    const per::Batch windows = buffer.get_windows({batch.ids().data(), 16}, PER_INVALID_ERROR, nullptr, &hindsight);
    EXPECT_EQ(calls, 2);
    for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(windows.reward()[i], batch.reward()[i]);
    calls = 1;
    per::Batch again = buffer.batch(4);
    hindsight.options.fraction = 0;
    buffer.sample(again, nullptr, &hindsight);
    EXPECT_EQ(again.field<float>("goal")[0], -1.0f);
    EXPECT_EQ(calls, 1) << "nothing was relabelled";
}

struct Unusual {
    int number;
};

TEST(Hindsight, what_the_function_throws_reaches_the_caller_and_is_no_draw) {
    per::ReplayBuffer buffer = small_buffer(), twin = small_buffer();
    add_episode(buffer, 8);
    add_episode(twin, 8);
    per::Hindsight hindsight =
        buffer.hindsight<float>("observation", "goal", [](auto, auto, auto, auto) { throw Unusual{42}; });
    hindsight.options.fraction = 1;
    try {
        buffer.sample(4, nullptr, &hindsight);
        FAIL() << "nothing was thrown";
    } catch (const Unusual& thrown) {
        EXPECT_EQ(thrown.number, 42);
    }
    // The failed call is no draw.
    const per::Batch batch = buffer.sample(8), expected = twin.sample(8);
    for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(batch.ids()[i], expected.ids()[i]);
}

TEST(Hindsight, an_error_of_the_library_inside_the_function_keeps_its_kind) {
    per::ReplayBuffer buffer = small_buffer();
    add_episode(buffer, 8);
    per::Hindsight hindsight = buffer.hindsight<float>("observation", "goal", [&](auto, auto, auto, auto) {
        buffer.set_gamma(7);  // the buffer is not locked
    });
    hindsight.options.fraction = 1;
    EXPECT_ERROR(buffer.sample(4, nullptr, &hindsight), InvalidArgument, "gamma is 7");
}

TEST(Hindsight, errors_of_the_call_are_thrown_where_the_function_is_not_called) {
    per::ReplayBuffer buffer = small_buffer();
    const per::Hindsight hindsight =
        buffer.hindsight<float>("observation", "goal", [](auto, auto, auto, auto) { FAIL(); });
    EXPECT_ERROR(buffer.sample(4, nullptr, &hindsight), Empty, "");
    EXPECT_ERROR(buffer.hindsight<double>("observation", "goal", nullptr), InvalidArgument,
                 "dtype of \"goal\" is float32: asked for was float64");
    EXPECT_ERROR(buffer.hindsight<float>("observation", "aim", nullptr), InvalidArgument, "\"aim\" is no field");
}

// ThreadSanitizer does not support pthread_exit() here.
#if !defined(__SANITIZE_THREAD__)
TEST(Hindsight, the_function_may_end_its_thread) {
    per::ReplayBuffer buffer = small_buffer();
    add_episode(buffer, 8);
    const auto is_freed = std::make_shared<int>();
    std::thread thread([&buffer, is_freed] {
        const std::shared_ptr<int> held = is_freed;
        per::Hindsight hindsight =
            buffer.hindsight<float>("observation", "goal", [](auto, auto, auto, auto) { pthread_exit(nullptr); });
        hindsight.options.fraction = 1;
        buffer.sample(4, nullptr, &hindsight);
        ADD_FAILURE() << "the thread went on";
    });
    thread.join();
    EXPECT_EQ(buffer.sample(4).size(), 4);
}
#endif

}  // namespace

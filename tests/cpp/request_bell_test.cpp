// A thread that waits for requests naps if they come at even intervals. It is then awake when a request comes, or is
// woken by a thread that waits for the result. The tests observe all bells of the process, so none depends on timing.
#include "threads/request_bell.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "../c/channel_check.h"
#include "../c/loader_check.h"

namespace {

using Clock = per::RequestBell::Clock;
using namespace std::chrono_literals;

// A sleep without a deadline has the longest time of a bell.
constexpr std::chrono::nanoseconds for_ever = 1000s;

// Called with the time of each sleep. Returns true if it replaces the sleep.
std::function<bool(std::chrono::nanoseconds)> at_sleep;
std::atomic<int> n_wakes = 0;
std::atomic<bool> naps_never_end = false;
std::atomic<int> n_naps = 0;

bool sleep_is_over(std::chrono::nanoseconds& left) {
    if (at_sleep && at_sleep(left)) return true;
    if (left < for_ever) ++n_naps;
    if (left < for_ever && naps_never_end) left = for_ever;
    return false;
}

// Must be called before any bell is used.
[[maybe_unused]] const bool is_watching = [] {
    per::at_bell_sleep = &sleep_is_over;
    per::at_bell_ring = [] { ++n_wakes; };
    return true;
}();

}  // namespace

namespace per::test {
namespace {

// ---------------------------------------------------------------------------------------------- a thread by itself

class RequestBellAlone : public testing::Test {
 protected:
    // Two intervals at which the thread naps on any machine.
    void request_evenly() {
        do {
            const Clock::time_point began = Clock::now();
            bell_.ring_for_request();
            std::this_thread::sleep_for(5ms);
            bell_.ring_for_request();
            std::this_thread::sleep_for(5ms);
            bell_.ring_for_request();
            longest_ = Clock::now() - began - 5ms;
        } while (longest_ > 90ms);
    }
    // A wait of the thread; its i-th sleep calls during(i). Returns how long the sleeps would have been.
    std::vector<std::chrono::nanoseconds> sleeps_of_a_wait(const std::function<void(std::size_t)>& during) {
        std::vector<std::chrono::nanoseconds> sleeps;
        at_sleep = [&](std::chrono::nanoseconds left) {
            sleeps.push_back(left);
            during(sleeps.size() - 1);
            return true;
        };
        bell_.wait(bell_.count());
        at_sleep = nullptr;
        return sleeps;
    }
    // Number of wakes for a request that comes during the thread's i-th sleep.
    int wakes_of_request_in_sleep(std::size_t i) {
        request_evenly();
        const int before = n_wakes;
        sleeps_of_a_wait([&](std::size_t sleep) {
            if (sleep == i) bell_.ring_for_request();
        });
        return n_wakes - before;
    }

    RequestBell bell_;
    Clock::duration longest_{};  // the longest interval; at least 5 ms
};

TEST_F(RequestBellAlone, naps_until_the_next_request_is_due) {
    request_evenly();
    std::this_thread::sleep_for(2ms);  // the thread works on the request
    const auto sleeps = sleeps_of_a_wait([&](std::size_t sleep) {
        if (sleep == 4) bell_.ring_for_request();
    });
    ASSERT_EQ(sleeps.size(), 5u);
    EXPECT_LE(sleeps[0], longest_ + longest_ / 16 - 2ms);
    // If the request is late, naps of an eighth, a quarter and half an interval follow.
    EXPECT_GE(sleeps[1], 5ms / 8);
    EXPECT_LE(sleeps[1], longest_ / 8);
    EXPECT_EQ(sleeps[2], 2 * sleeps[1]);
    EXPECT_EQ(sleeps[3], 4 * sleeps[1]);
    EXPECT_EQ(sleeps[4], for_ever);
}

TEST_F(RequestBellAlone, a_pause_between_even_requests_is_no_interval) {
    request_evenly();
    std::this_thread::sleep_for(2 * longest_);
    bell_.ring_for_request();
    const auto sleeps = sleeps_of_a_wait([&](std::size_t) { bell_.ring_for_request(); });
    ASSERT_EQ(sleeps.size(), 1u);
    EXPECT_LE(sleeps[0], longest_ + longest_ / 16);
    // After two long intervals the thread does not expect even ones any more.
    request_evenly();
    for (int i = 0; i < 2; ++i) {
        std::this_thread::sleep_for(101ms);
        bell_.ring_for_request();
    }
    EXPECT_EQ(sleeps_of_a_wait([&](std::size_t) { bell_.ring_for_request(); })[0], for_ever);
}

TEST_F(RequestBellAlone, a_request_wakes_who_sleeps_and_not_who_naps) {
    for (std::size_t nap = 0; nap < 4; ++nap) EXPECT_EQ(wakes_of_request_in_sleep(nap), 0) << nap;
    EXPECT_EQ(wakes_of_request_in_sleep(4), 1);
}

TEST_F(RequestBellAlone, who_waits_wakes_who_naps) {
    request_evenly();
    const int before = n_wakes;
    const auto sleeps = sleeps_of_a_wait([&](std::size_t) { bell_.hurry(); });
    EXPECT_EQ(sleeps.size(), 1u);
    EXPECT_EQ(n_wakes - before, 1);
    bell_.hurry();  // the thread is awake
    EXPECT_EQ(n_wakes - before, 1);
}

TEST_F(RequestBellAlone, sleeps_for_a_while_after_somebody_had_to_wait) {
    request_evenly();
    sleeps_of_a_wait([&](std::size_t) { bell_.hurry(); });
    for (int i = 0; i < 64; ++i) {
        request_evenly();
        const int before = n_wakes;
        const auto sleeps = sleeps_of_a_wait([&](std::size_t) { bell_.ring_for_request(); });
        ASSERT_EQ(sleeps, std::vector<std::chrono::nanoseconds>{for_ever}) << i;
        ASSERT_EQ(n_wakes - before, 1) << i;
    }
    request_evenly();
    const auto sleeps = sleeps_of_a_wait([&](std::size_t) { bell_.ring_for_request(); });
    ASSERT_EQ(sleeps.size(), 1u);
    EXPECT_LT(sleeps[0], for_ever);
}

// A wake out of a long sleep does not count against naps.
TEST_F(RequestBellAlone, naps_again_after_it_was_woken_from_sleep) {
    request_evenly();
    sleeps_of_a_wait([&](std::size_t sleep) {
        if (sleep == 4) bell_.hurry();
    });
    request_evenly();
    const auto sleeps = sleeps_of_a_wait([&](std::size_t) { bell_.ring_for_request(); });
    ASSERT_EQ(sleeps.size(), 1u);
    EXPECT_LT(sleeps[0], for_ever);
}

TEST_F(RequestBellAlone, does_not_wait_for_what_came_since_it_looked) {
    request_evenly();
    const uint32_t seen = bell_.count();
    bell_.ring_for_request();
    at_sleep = [](std::chrono::nanoseconds) {
        ADD_FAILURE() << "it sleeps";
        return false;
    };
    bell_.wait(seen);
    at_sleep = nullptr;
}

// A waiter may find a request before its bell is rung.
TEST_F(RequestBellAlone, does_not_wait_where_it_was_hurried_since_it_looked) {
    request_evenly();
    const uint32_t seen = bell_.count();
    bell_.hurry();
    at_sleep = [&](std::chrono::nanoseconds) {
        ADD_FAILURE() << "it sleeps";
        bell_.ring_for_request();
        return true;
    };
    bell_.wait(seen);
    at_sleep = nullptr;
}

TEST_F(RequestBellAlone, a_request_wakes_who_naps_where_somebody_is_in_haste) {
    request_evenly();
    const int before = n_wakes;
    const RequestBell::Haste haste(bell_);
    const auto sleeps = sleeps_of_a_wait([&](std::size_t) { bell_.ring_for_request(); });
    EXPECT_EQ(sleeps.size(), 1u);
    EXPECT_LT(sleeps[0], for_ever);
    EXPECT_EQ(n_wakes - before, 1);
}

TEST_F(RequestBellAlone, a_haste_that_is_over_wakes_nobody) {
    { const RequestBell::Haste haste(bell_); }
    EXPECT_EQ(wakes_of_request_in_sleep(0), 0);
}

TEST(RequestBell, naps_where_intervals_are_neither_short_nor_long) {
    EXPECT_EQ(RequestBell::first_nap(250us - 1ns), 0ns);
    EXPECT_EQ(RequestBell::first_nap(250us), 250us + 15625ns);
    EXPECT_EQ(RequestBell::first_nap(16ms), 17ms);
    EXPECT_EQ(RequestBell::first_nap(100ms), 106250us);
    EXPECT_EQ(RequestBell::first_nap(100ms + 1ns), 0ns);
    EXPECT_EQ(RequestBell::first_nap(-1ms), 0ns);
}

// ------------------------------------------------------------------------------------------------------- a loader's

// Naps never end by themselves here: a call that waits for the thread without hurrying it hangs, which ends the test.
class NapsOfALoader : public testing::Test {
 protected:
    void SetUp() override {
        alarm(200);
        replay_ = create_replay_with_steps();
        loader_ = create_loader_on(PER_CPU, replay_, batch_size, slots, nullptr);
        naps_never_end = true;
    }
    void TearDown() override {
        per_loader_free(loader_);  // its thread naps most of the time
        naps_never_end = false;
        per_replay_free(replay_);
        alarm(0);
    }
    static per_replay* create_replay_with_steps() {
        per_replay_options options = replay_options(100, 1);
        per_replay* const replay = create_replay(&options);
        for (int t = 0; t < 50; ++t) add_full(replay, 0, static_cast<float>(t), 0, GOES_ON, static_cast<float>(t) + 1);
        return replay;
    }
    // Takes batches like a learner, at even intervals; the last one is still out. Then the thread usually naps.
    int64_t take_evenly(per_batch& batch) {
        for (int i = 0; i < 2; ++i) {
            EXPECT_EQ(per_loader_release(loader_, take(loader_, &batch), nullptr), PER_OK);
            std::this_thread::sleep_for(1ms);
        }
        const int64_t slot = take(loader_, &batch);
        std::this_thread::sleep_for(1ms);
        return slot;
    }

    // A step may be added for each drawn batch, plus two; the first batch is drawn after ten.
    void limit_adds_by_draws() {
        per_loader_free(loader_);
        loader_ = nullptr;
        per_replay_free(replay_);
        per_replay_options options = replay_options(1000, 1);
        options.rate_limit.samples_per_insert = batch_size;
        options.rate_limit.samples_tolerance = 2 * batch_size;
        options.rate_limit.min_size_to_sample = 10;
        replay_ = create_replay(&options);
    }
    // Takes batches, each of which allows another step, and waits before each one for the steps due by then.
    template <class NAdded>
    void take_as_steps_come(const NAdded& n_added) {
        while (n_added() < 10) std::this_thread::yield();
        loader_ = create_loader_on(PER_CPU, replay_, batch_size, slots, nullptr);
        const int before = n_naps;
        for (int i = 0; i < n_rounds; ++i) {
            while (n_added() < 10 + (i + slots) + 2) std::this_thread::yield();
            per_batch batch;
            const int64_t slot = take(loader_, &batch);
            std::this_thread::sleep_for(1ms);
            ASSERT_EQ(per_loader_release(loader_, slot, nullptr), PER_OK);
        }
        EXPECT_GT(n_naps, before);
    }

    static constexpr int64_t batch_size = 4;
    static constexpr int64_t slots = 2;
    static constexpr int n_rounds = 100;  // enough that the thread naps in some rounds

    per_replay* replay_ = nullptr;
    per_loader* loader_ = nullptr;
};

TEST_F(NapsOfALoader, a_call_on_the_buffer_waits_for_a_draw_that_was_asked_for) {
    const int before = n_naps;
    for (int i = 0; i < n_rounds; ++i) {
        per_batch batch;
        const int64_t slot = take_evenly(batch);
        const float priorities[batch_size] = {1, 2, 3, 4};
        ASSERT_EQ(write_priorities(replay_, batch_size, batch.ids, priorities, nullptr), PER_OK);
        ASSERT_EQ(per_loader_release(loader_, slot, nullptr), PER_OK);
    }
    EXPECT_GT(n_naps, before);
}

TEST_F(NapsOfALoader, a_consumer_waits_for_a_batch_that_was_not_drawn) {
    const int before = n_naps;
    for (int i = 0; i < n_rounds; ++i) {
        per_batch batch;
        ASSERT_EQ(per_loader_release(loader_, take_evenly(batch), nullptr), PER_OK);
        for (int more = 0; more < slots; ++more)
            ASSERT_EQ(per_loader_release(loader_, take(loader_, &batch), nullptr), PER_OK);
    }
    EXPECT_GT(n_naps, before);
}

TEST_F(NapsOfALoader, a_consumer_that_asks_again_and_again_gets_a_batch) {
    for (int i = 0; i < n_rounds; ++i) {
        per_batch batch;
        ASSERT_EQ(per_loader_release(loader_, take_evenly(batch), nullptr), PER_OK);
        for (int more = 0; more < slots; ++more) {
            int64_t slot = -1;
            per_status status = PER_ERROR_BUSY;
            while (status == PER_ERROR_BUSY) status = try_next(loader_, 0, &batch, &slot);
            ASSERT_EQ(status, PER_OK);
            ASSERT_EQ(per_loader_release(loader_, slot, nullptr), PER_OK);
        }
    }
}

TEST_F(NapsOfALoader, an_actor_waits_until_draws_allow_it_to_add) {
    limit_adds_by_draws();
    std::atomic<bool> ends = false;
    std::atomic<int64_t> n_added = 0;
    std::thread actor([&] {
        for (; !ends; ++n_added) {
            CHECK_OK(per_replay_wait_to_add(replay_, 1, -1));
            const auto t = static_cast<float>(n_added);
            add_full(replay_, 0, t, 0, GOES_ON, t + 1);
        }
    });
    take_as_steps_come([&] { return n_added.load(); });
    ends = true;
    ASSERT_EQ(per_replay_stop_limiting(replay_), PER_OK);
    actor.join();
}

TEST_F(NapsOfALoader, a_channel_waits_until_draws_allow_it_to_add) {
    limit_adds_by_draws();
    per_channel* const channel = create_channel(replay_, 0, nullptr, 8, PER_FULL_WAITS);
    std::atomic<bool> ends = false;
    std::thread actor([&] {
        per_writer* const writer = attach(path_of(channel));
        for (float t = 0; !ends; ++t) CHECK_OK(write_step(writer, t, t + 1, 0, -1));
        per_writer_free(writer);
    });
    take_as_steps_come([&] { return channel_stats(channel).added; });
    ends = true;
    ASSERT_EQ(per_replay_stop_limiting(replay_), PER_OK);
    actor.join();
    per_channel_free(channel);
}

TEST_F(NapsOfALoader, a_loader_ends_while_its_thread_naps) {
    for (int i = 0; i < 20; ++i) {
        per_batch batch;
        ASSERT_EQ(per_loader_release(loader_, take_evenly(batch), nullptr), PER_OK);
        ASSERT_EQ(per_loader_stop(loader_), PER_OK);
        per_loader_free(loader_);
        loader_ = create_loader_on(PER_CPU, replay_, batch_size, slots, nullptr);
    }
}

}  // namespace
}  // namespace per::test

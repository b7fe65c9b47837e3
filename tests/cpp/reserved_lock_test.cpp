// try_lock() succeeds if the lock is free, and fails if a thread holds or has reserved it.
#include "threads/reserved_lock.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace per {
namespace {

bool can_be_had(ReservedLock& lock) {
    bool is_taken = false;
    std::thread([&] {
        is_taken = lock.try_lock();
        if (is_taken) lock.unlock();
    }).join();
    return is_taken;
}

TEST(ReservedLock, is_had_at_once_or_not_at_all) {
    ReservedLock lock;
    EXPECT_TRUE(can_be_had(lock));
    ASSERT_TRUE(lock.try_lock());
    EXPECT_FALSE(can_be_had(lock));
    {
        const ReservedLock::Reservation reservation(lock);
        EXPECT_FALSE(can_be_had(lock));
    }
    EXPECT_FALSE(can_be_had(lock));
    lock.unlock();
    EXPECT_TRUE(can_be_had(lock));
}

TEST(ReservedLock, is_waited_for_until_a_time) {
    using namespace std::chrono_literals;
    ReservedLock lock;
    const auto can_be_had_in_time = [&](std::chrono::nanoseconds most) {
        bool is_taken = false;
        std::thread([&] {
            is_taken = lock.try_lock_until(std::chrono::steady_clock::now() + most);
            if (is_taken) lock.unlock();
        }).join();
        return is_taken;
    };
    EXPECT_TRUE(can_be_had_in_time(0ms));
    lock.lock();
    EXPECT_FALSE(can_be_had_in_time(0ms));
    EXPECT_FALSE(can_be_had_in_time(20ms));
    {
        const ReservedLock::Reservation reservation(lock);
        EXPECT_FALSE(can_be_had_in_time(20ms));
    }
    std::atomic<bool> was_taken = false;
    std::thread waiting([&] {
        was_taken = lock.try_lock_until(std::chrono::steady_clock::now() + 1h);
        if (was_taken) lock.unlock();
    });
    {
        const ReservedLock::Reservation reservation(lock);
        std::this_thread::sleep_for(1ms);
    }
    lock.unlock();
    waiting.join();
    EXPECT_TRUE(was_taken);
}

}  // namespace
}  // namespace per

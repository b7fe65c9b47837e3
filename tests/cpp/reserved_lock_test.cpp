// A lock that is tried: it is taken where it is free, and refused where a thread has it or has reserved it.
#include "threads/reserved_lock.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace per

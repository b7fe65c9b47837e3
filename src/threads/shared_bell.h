// Waking a thread of another process.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>

namespace per {

// So often those that sleep on a bell of another process look whether it lives, and whether it has done something and
// died before it could ring. Tests of the bells set it so large that nothing else wakes who sleeps.
inline std::chrono::nanoseconds longest_sleep = std::chrono::milliseconds(100);

// A counter in shared memory on which threads of several processes sleep. There is no lock in it that a process could
// take along when it dies. It may be written to by anybody: then sleep ends too early or too late, and nothing worse
// happens.
struct SharedBell {
    std::atomic<uint32_t> count;

    void ring() noexcept {
        ++count;
        syscall(SYS_futex, reinterpret_cast<uint32_t*>(&count), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    }

    // Sleeps unless the bell was rung since it had that count: until it is, or at most so long. May wake for no reason.
    void sleep(uint32_t seen, int64_t nanoseconds) noexcept {
        constexpr int64_t second = 1000000000;
        const int64_t most = std::clamp<int64_t>(nanoseconds, 0, 1000 * second);
        struct timespec timeout = {};
        timeout.tv_sec = static_cast<time_t>(most / second);
        timeout.tv_nsec = static_cast<long>(most % second);
        syscall(SYS_futex, reinterpret_cast<uint32_t*>(&count), FUTEX_WAIT, seen, &timeout, nullptr, 0);
    }
};
static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(SharedBell) == sizeof(uint32_t));

// A bell for those that say when they wait: nobody makes a call of the system for those that do not.
struct AwaitedBell {
    SharedBell bell;
    std::atomic<uint32_t> is_awaited;

    // Call before the last check of the condition. Pass the result to bell.sleep(): a notifier that finds is_awaited set
    // rings after this.
    uint32_t await() noexcept {
        const uint32_t seen = bell.count;
        is_awaited = 1;
        return seen;
    }
    void ring() noexcept {
        if (is_awaited.exchange(0) != 0) bell.ring();
    }
};

}  // namespace per

// Wakes threads of this process.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "threads/fork_list.h"

namespace per {

// A counter on which threads of this process sleep; a SharedBell is one for several processes. A forked child can use
// its copy, whoever slept on the bell in the parent.
class Bell {
 public:
    // Throws std::bad_alloc.
    Bell() : entry_(*this) {}

    // Number of rings. Adding to it without ring() wakes no thread.
    std::atomic<uint32_t> count = 0;

    void ring() noexcept;
    // Sleeps until the bell rings, for at most that time; not at all if it has rung since its count was `seen`. May
    // wake without a reason.
    void sleep(uint32_t seen, std::chrono::nanoseconds most) noexcept;

 private:
    friend ForkListEntry<Bell>;

    // in_child() makes the mutex and the condition anew: threads of the parent may own the mutex, and the condition
    // would wait for threads of the parent that wait for it.
    void before_fork() noexcept {}
    void after_fork() noexcept {}
    void in_child() noexcept;

    std::mutex mutex_;
    std::condition_variable rung_;
    ForkListEntry<Bell> entry_;
};

// A bell for threads that announce their wait: ringing it is a single exchange if nobody waits.
template <class AnyBell>
struct Awaited {
    AnyBell bell = {};
    std::atomic<uint32_t> is_awaited = 0;

    // Announces a wait. Call it before the last check of the condition, and pass its result to bell.sleep(). A
    // notifier that makes the condition true after that check finds is_awaited set, and rings: the sleep ends.
    uint32_t await() noexcept {
        const uint32_t seen = bell.count;
        is_awaited = 1;
        return seen;
    }
    void ring() noexcept {
        if (is_awaited.exchange(0) != 0) bell.ring();
    }
};

// Tests watch the bells of the process with these. The first may shorten or lengthen a sleep, or return true if there
// is nothing left to sleep.
inline bool (*at_bell_sleep)(std::chrono::nanoseconds& most) = nullptr;
inline void (*at_bell_ring)() = nullptr;

}  // namespace per

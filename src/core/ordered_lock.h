// The lock of a buffer, which keeps calls in order even while a loader draws in the background.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>

#include "base/error.h"
#include "threads/bell.h"
#include "threads/deadline.h"
#include "threads/process_mark.h"
#include "threads/request_bell.h"
#include "threads/reserved_lock.h"

namespace per {

// A ReservedLock whose lock() first waits for the draws that were requested before it. So updates, adds and draws take
// effect in the order of their calls, although another thread makes some of the draws.
class OrderedLock {
 public:
    using Clock = Deadline::Clock;

    void lock() { static_cast<void>(try_lock_until(Clock::time_point::max())); }
    // Like lock(), but returns false if the lock is not free by `time`.
    bool try_lock_until(Clock::time_point time) {
        check_usable();
        return wait_for_draws(time) && lock_.try_lock_until(time);
    }
    // Returns false if lock() would wait.
    bool try_lock() {
        check_usable();
        return !waits_for_draws() && lock_.try_lock();
    }
    void unlock() noexcept { lock_.unlock(); }

    // Throws what lock() throws. Needs no lock.
    void check_usable() const {
        if (only_process_ != 0 && only_process_ != ProcessMark::current())
            throw Error(PER_ERROR_INVALID_ARGUMENT,
                        "the buffer was created before a fork: its rows in storage are the parent's");
        lock_.check_not_reserved_here();  // draws would wait for this thread
    }

    // Makes lock() throw Error with INVALID_ARGUMENT in forked children.
    void stay_in_process() noexcept { only_process_ = ProcessMark::current(); }

    // The lock for the draws themselves, which have their place in the order already.
    ReservedLock& unordered() { return lock_; }

    // Forgets all requests. Later requests are for a thread of this process.
    void begin_draws() noexcept {
        made_ = asked_.load();
        process_ = ProcessMark::current();
    }
    void ask_for_draw() noexcept { ++asked_; }
    // The thread that draws waits on this bell.
    RequestBell& draw_bell() noexcept { return draw_bell_; }
    void draw_is_made() noexcept {
        ++made_;
        made_bell_.ring();
    }

 private:
    bool waits_for_draws() const noexcept { return made_ < asked_ && process_ == ProcessMark::current(); }
    bool wait_for_draws(Clock::time_point time) noexcept {
        const uint64_t asked = asked_;
        while (made_ < asked) {
            if (process_ != ProcessMark::current()) return true;  // the thread that draws is in the parent
            draw_bell_.hurry();
            const uint32_t seen = made_bell_.await();
            if (made_ >= asked) break;
            const std::chrono::nanoseconds left = time - Clock::now();
            if (left.count() <= 0) return false;
            made_bell_.bell.sleep(seen, left);
        }
        return true;
    }

    ReservedLock lock_;
    uint64_t only_process_ = 0;  // 0: any
    std::atomic<uint64_t> asked_ = 0;
    std::atomic<uint64_t> made_ = 0;
    Awaited<Bell> made_bell_;
    std::atomic<uint64_t> process_ = 0;
    RequestBell draw_bell_;
};

// Locks for a call with a deadline. Throws Error with BUSY if other calls hold the lock beyond the deadline.
inline void lock_in_time(std::unique_lock<OrderedLock>& guard, const Deadline& deadline) {
    if (!guard.try_lock_until(deadline.time()))
        throw Error(PER_ERROR_BUSY, "another call on the buffer, such as a save, has not ended in time");
}

}  // namespace per

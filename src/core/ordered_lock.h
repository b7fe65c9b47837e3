// The lock of a buffer. It keeps calls in order, also beside the draws that a loader makes in the background.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>

#include "base/error.h"
#include "threads/deadline.h"
#include "threads/request_bell.h"
#include "threads/reserved_lock.h"
#include "threads/shared_bell.h"

namespace per {

// A ReservedLock whose lock() first waits for the draws that were asked for before it: so updates, adds and draws take
// effect in the order in which their callers came, though some of the draws are made by another thread.
class OrderedLock {
 public:
    using Clock = Deadline::Clock;

    void lock() { static_cast<void>(try_lock_until(Clock::time_point::max())); }
    // As lock(). False if that takes longer.
    bool try_lock_until(Clock::time_point time) {
        check_usable();
        return wait_for_draws(time) && lock_.try_lock_until(time);
    }
    void unlock() noexcept { lock_.unlock(); }

    // Throws what lock() throws. Needs no lock.
    void check_usable() const {
        if (only_process_ != 0 && only_process_ != HandleLock::process())
            throw Error(PER_ERROR_INVALID_ARGUMENT,
                        "the buffer was created before a fork: its rows in storage are the parent's");
        lock_.check_not_reserved_here();  // draws would wait for this thread
    }

    // From here on lock() throws Error with INVALID_ARGUMENT in a forked child.
    void stay_in_process() noexcept { only_process_ = HandleLock::process(); }

    // The lock for calls that have their place in the order already, which are the draws themselves.
    ReservedLock& unordered() { return lock_; }

    // From here on no draw is due, and those that are asked for are made in this process.
    void begin_draws() noexcept {
        made_ = asked_.load();
        process_ = HandleLock::process();
    }
    void ask_for_draw() noexcept { ++asked_; }
    // The thread that draws waits by this.
    RequestBell& draw_bell() noexcept { return draw_bell_; }
    void draw_is_made() noexcept {
        ++made_;
        made_bell_.ring();
    }

 private:
    bool wait_for_draws(Clock::time_point time) noexcept {
        const uint64_t asked = asked_;
        while (made_ < asked) {
            if (process_ != HandleLock::process()) return true;  // the thread that draws is in the parent
            draw_bell_.hurry();
            const uint32_t seen = made_bell_.await();
            if (made_ >= asked) break;
            const std::chrono::nanoseconds left = time - Clock::now();
            if (left.count() <= 0) return false;
            made_bell_.bell.sleep(seen, left.count());
        }
        return true;
    }

    ReservedLock lock_;
    uint64_t only_process_ = 0;  // 0: any
    std::atomic<uint64_t> asked_ = 0;
    std::atomic<uint64_t> made_ = 0;
    AwaitedBell made_bell_ = {};
    std::atomic<uint64_t> process_ = 0;
    RequestBell draw_bell_;
};

// Locks for a call that may wait. Throws Error with BUSY where other calls take longer.
inline void lock_in_time(std::unique_lock<OrderedLock>& guard, const Deadline& deadline) {
    if (!guard.try_lock_until(deadline.time()))
        throw Error(PER_ERROR_BUSY, "another call on the buffer, such as a save, has not ended in time");
}

}  // namespace per

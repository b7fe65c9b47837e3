// Deadlines of waits.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace per {

// The time at which a call that waits gives up.
class Deadline {
 public:
    using Clock = std::chrono::steady_clock;

    // A timeout of per.h: milliseconds, or -1 for none. A timeout beyond the range of the clock never passes.
    explicit Deadline(int64_t timeout_ms) : time_(Clock::time_point::max()) {
        constexpr int64_t max_timeout_ms = int64_t{1} << 40;
        if (timeout_ms >= 0 && timeout_ms <= max_timeout_ms)
            time_ = Clock::now() + std::chrono::milliseconds(timeout_ms);
    }
    static Deadline never() { return Deadline(-1); }

    Clock::time_point time() const { return time_; }
    bool is_never() const { return time_ == Clock::time_point::max(); }
    bool has_passed() const { return !is_never() && Clock::now() >= time_; }
    // Remaining time; zero or negative once the deadline has passed.
    std::chrono::nanoseconds left() const { return time_ - Clock::now(); }

    // Waits on a condition until `is_over`. Returns false if the deadline passes before.
    template <class IsOver>
    bool wait(std::condition_variable& changed, std::unique_lock<std::mutex>& guard, const IsOver& is_over) const {
        while (!is_over()) {
            if (has_passed()) return false;
            sleep(changed, guard);
        }
        return true;
    }
    // The same without a condition: returns once notified, after the deadline, or without a reason.
    void sleep(std::condition_variable& changed, std::unique_lock<std::mutex>& guard) const {
        // A system may wait by another clock, and converting time_point::max() to its time overflows.
        if (is_never()) return changed.wait(guard);
        changed.wait_until(guard, time_);
    }

    // The deadline for a lock that other calls hold for a moment each: with it a call with timeout 0 does not fail by
    // chance, and does not wait for a call that takes longer, such as a save.
    Deadline with_a_moment() const {
        Deadline later = *this;
        if (!is_never()) later.time_ += std::chrono::milliseconds(100);
        return later;
    }

 private:
    Clock::time_point time_;
};

}  // namespace per

// Deadlines of waits.
#pragma once

#include <chrono>
#include <cstdint>

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

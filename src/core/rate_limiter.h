// The rate limiter of a buffer, which bounds how far adds and draws may run ahead of each other.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

#include "core/ordered_lock.h"
#include "file/checkpoint_file.h"
#include "per.h"
#include "threads/bell.h"
#include "threads/deadline.h"

namespace per {

// Counts the steps added and the transitions drawn, and decides which calls are allowed (per.h has the rule in words).
// With r for samples_per_insert, m for min_size_to_sample, at least 1, and e for samples_tolerance, let
//
//   due(a) = floor(r (a - m))
//
// be the number of transitions that should be drawn once `a` steps are added. An add that brings the steps to `a` is
// allowed if due(a) - drawn <= e, which the first m steps always satisfy. A draw that brings the transitions to d is
// allowed if m steps are added and due(added) - d >= -e. Draws of more than e transitions, and adds of more than e / r
// steps beyond the first m, are never allowed; adds of zero steps always are. So one side can always go on: below m
// steps every add that could ever be allowed is allowed; later, if an add of k steps is not allowed,
// due(added) > drawn + e - ceil(r k) >= drawn, so a draw of up to e transitions is allowed.
//
// All functions but ring_adds() need the lock of the buffer. Threads that wait to add, or to draw, are woken once the
// smallest call among them is allowed.
class RateLimiter {
 public:
    // The state in a checkpoint.
    struct Counts {
        int64_t added = 0;
        int64_t drawn = 0;
    };

    // The limit must outlive the object. Call clear() after changing it.
    explicit RateLimiter(const per_rate_limit& limit) : limit_(limit) {}

    bool is_on() const { return has_limits(limit_); }
    static bool has_limits(const per_rate_limit& limit) {
        return limit.min_size_to_sample > 0 || limit.samples_per_insert > 0;
    }

    // Throw Error unless a call with n steps, or n transitions, is allowed: with INVALID_ARGUMENT if it never will be,
    // otherwise with BUSY.
    void check_add(int64_t n) const {
        if (is_on()) check_limited_add(n);
    }
    void check_draw(int64_t n) const {
        if (is_on()) check_limited_draw(n);
    }
    bool allows_add(int64_t n) const;
    bool allows_draw(int64_t n) const;
    // Throws Error for a batch size that is never allowed.
    void check_draw_size(int64_t n) const;
    // Returns the number of steps of single environments that are allowed, at most `most`.
    int64_t n_allowed_steps(int64_t most) const;

    void count_added(int64_t n) {
        if (is_on()) count(counts_.added, n);
    }
    void count_drawn(int64_t n) {
        if (is_on()) count(counts_.drawn, n);
    }
    // Takes back a draw, unless a clear() after it has forgotten it already. n_clears is the value that n_clears() had
    // when the draw was counted.
    void take_back_drawn(int64_t n, int64_t n_clears) {
        if (n_clears == n_clears_) count_drawn(-n);
    }
    void clear();
    int64_t n_clears() const { return n_clears_; }

    const Counts& counts() const { return counts_; }
    // Reads the section of write_rate_limiter().
    void restore(CheckpointReader& reader);

    // Makes threads in wait_to_add() check their condition. Needs no lock.
    void ring_adds() noexcept { adds_.bell.ring(); }

    // Wait until an add of n steps, or a draw of n transitions, is allowed, or until the deadline. wait_to_add() also
    // ends if the add can never be allowed, or if ends() is true. Both release the lock while they sleep, and hold it
    // from the last check on. They throw Error with BUSY if other calls hold the lock for longer.
    template <class Ends>
    void wait_to_add(std::unique_lock<OrderedLock>& guard, int64_t n, const Deadline& deadline, Ends ends) {
        wait(guard, adds_, n, deadline, [&] { return allows_add(n) || never_allows_add(n) || ends(); });
    }
    void wait_to_draw(std::unique_lock<OrderedLock>& guard, int64_t n, const Deadline& deadline) {
        wait(guard, draws_, n, deadline, [&] { return allows_draw(n); });
    }

    // True if a draw of n transitions is allowed. If not, `listener` is called once the draw may be allowed, and
    // perhaps again later, until stop_listening().
    bool allows_draw_or_calls(int64_t n, std::function<void()> listener) {
        if (allows_draw(n)) return true;
        draws_.least = std::min(draws_.least, n);
        draws_.listener = std::move(listener);
        return false;
    }
    void stop_listening() noexcept { draws_.listener = nullptr; }

 private:
    static constexpr int64_t nobody = INT64_MAX;

    // The threads that wait on one side.
    struct Waiters {
        int64_t least = nobody;  // the smallest n that was checked since the bell rang
        Bell bell;
        std::function<void()> listener;  // wakes a thread that waits elsewhere; must throw nothing

        void wake() noexcept {
            least = nobody;
            bell.ring();
            if (listener) listener();
        }
    };

    template <class IsOver>
    void wait(std::unique_lock<OrderedLock>& guard, Waiters& waiters, int64_t n, const Deadline& deadline,
              IsOver is_over) {
        for (;;) {
            const uint32_t seen = waiters.bell.count;  // read before the check, so that no change is missed
            if (is_over()) return;
            const std::chrono::nanoseconds left = deadline.left();
            if (left.count() <= 0) return;
            waiters.least = std::min(waiters.least, n);
            guard.unlock();
            waiters.bell.sleep(seen, left);
            lock_in_time(guard, deadline.with_a_moment());
        }
    }

    void check_limited_add(int64_t n) const;
    void check_limited_draw(int64_t n) const;
    bool never_allows_add(int64_t n) const;
    void count(int64_t& counter, int64_t n);
    int64_t due(int64_t added) const;
    int64_t max_steps_of_call() const;
    int64_t min_size() const { return std::max<int64_t>(limit_.min_size_to_sample, 1); }
    int64_t n_missing() const { return std::max<int64_t>(min_size() - counts_.added, 0); }

    const per_rate_limit& limit_;
    Counts counts_;
    int64_t n_clears_ = 0;
    Waiters adds_;
    Waiters draws_;
};

// Writes the counts as a section of a checkpoint. Only buffers with limits have one.
void write_rate_limiter(CheckpointWriter& writer, const RateLimiter::Counts& counts);

}  // namespace per

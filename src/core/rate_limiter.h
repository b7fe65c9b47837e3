// The rate limiter of a buffer: how far the steps that are added and the transitions that are drawn may run ahead of
// each other.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>

#include "core/ordered_lock.h"
#include "file/checkpoint_file.h"
#include "per.h"
#include "threads/deadline.h"
#include "threads/shared_bell.h"

namespace per {

// Counts of what was added and drawn, and the law that follows from them (per.h has it in words). With r for
// samples_per_insert, m for min_size_to_sample, at least 1, and e for samples_tolerance, let
//
//   due(a) = floor(r (a - m))
//
// be how many transitions are to be drawn once `a` steps are added. An add after which a steps are there is allowed if
// due(a) - drawn <= e, which the first m steps always satisfy; a draw after which d transitions are drawn is allowed if
// m steps are there and due(added) - d >= -e. Draws of more than e transitions, and adds of more than e / r steps beyond
// the first m, are never allowed; adds of zero steps always are. So one side can always go on. While fewer than m steps
// are there, every add is allowed that could ever be. Later, if an add of k steps is not allowed,
// due(added) > drawn + e - ceil(r k) >= drawn, and a draw of up to e transitions is.
//
// The buffer is locked while any function but ring() is called. Waiters of a side are woken once
// the smallest call among them is allowed.
class RateLimiter {
 public:
    // What a checkpoint keeps.
    struct Counts {
        int64_t added = 0;
        int64_t drawn = 0;
    };

    // The limit must outlive it. Where it changes, clear() comes next.
    explicit RateLimiter(const per_rate_limit& limit) : limit_(limit) {}

    bool is_on() const { return has_limits(limit_); }
    static bool has_limits(const per_rate_limit& limit) {
        return limit.min_size_to_sample > 0 || limit.samples_per_insert > 0;
    }

    // Both are for `n` steps, or transitions, in one call. Where they are not allowed they throw Error: with
    // INVALID_ARGUMENT if they never will be, else with BUSY.
    void check_add(int64_t n) const {
        if (is_on()) check_limited_add(n);
    }
    void check_draw(int64_t n) const {
        if (is_on()) check_limited_draw(n);
    }
    bool allows_add(int64_t n) const;
    bool allows_draw(int64_t n) const;
    // Throws for a number of transitions that no draw is ever allowed.
    void check_draw_size(int64_t n) const;
    // How many steps of single environments are allowed, at most `most`.
    int64_t n_allowed_steps(int64_t most) const;

    void count_added(int64_t n) {
        if (is_on()) count(counts_.added, n);
    }
    void count_drawn(int64_t n) {
        if (is_on()) count(counts_.drawn, n);
    }
    // Takes a draw back that was counted when n_clears() had this value: a clear() since has forgotten it.
    void take_back_drawn(int64_t n, int64_t n_clears) {
        if (n_clears == n_clears_) count_drawn(-n);
    }
    void clear();
    int64_t n_clears() const { return n_clears_; }

    const Counts& counts() const { return counts_; }
    // Reads what write_rate_limiter() wrote.
    void restore(CheckpointReader& reader);

    // Wakes those that wait to add, so that they look again whether they still have to. Needs no lock.
    void ring_adds() noexcept { adds_.bell.ring(); }

    // These wait until an add of n steps, or a draw of n transitions, is allowed or never will be, until ends(), or
    // until the deadline: in between the buffer is not locked. Between their last look and their end the lock is held.
    // They throw Error with BUSY where other calls hold it for longer.
    template <class Ends>
    void wait_to_add(std::unique_lock<OrderedLock>& guard, int64_t n, const Deadline& deadline, Ends ends) {
        wait(guard, adds_, n, deadline, [&] { return allows_add(n) || never_allows_add(n) || ends(); });
    }
    void wait_to_draw(std::unique_lock<OrderedLock>& guard, int64_t n, const Deadline& deadline) {
        wait(guard, draws_, n, deadline, [&] { return allows_draw(n); });
    }

    // Whether a draw of n transitions is allowed. If not, the bell is rung once it may be, as long as it is listened to.
    bool allows_draw_or_rings(int64_t n, SharedBell& bell) {
        if (allows_draw(n)) return true;
        draws_.least = std::min(draws_.least, n);
        draws_.listener = &bell;
        return false;
    }
    void stop_listening() noexcept { draws_.listener = nullptr; }

 private:
    static constexpr int64_t nobody = INT64_MAX;

    // Those that wait on one side.
    struct Waiters {
        int64_t least = nobody;  // the least number of those that have looked since the bell rang
        SharedBell bell = {0};
        SharedBell* listener = nullptr;  // of one that does not wait here

        void wake() noexcept {
            least = nobody;
            bell.ring();
            if (listener != nullptr) listener->ring();
        }
    };

    template <class IsOver>
    void wait(std::unique_lock<OrderedLock>& guard, Waiters& waiters, int64_t n, const Deadline& deadline,
              IsOver is_over) {
        for (;;) {
            const uint32_t seen = waiters.bell.count;  // before the look, so that no change is missed
            if (is_over()) return;
            const std::chrono::nanoseconds left = deadline.left();
            if (left.count() <= 0) return;
            waiters.least = std::min(waiters.least, n);
            guard.unlock();
            waiters.bell.sleep(seen, left.count());
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

// The section of a checkpoint that has the counts. Only buffers with limits have one.
void write_rate_limiter(CheckpointWriter& writer, const RateLimiter::Counts& counts);

}  // namespace per

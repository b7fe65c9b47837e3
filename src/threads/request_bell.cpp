#include "threads/request_bell.h"

#include <algorithm>

namespace per {
namespace {

using namespace std::chrono_literals;

// The kernel wakes a thread about 70 us late. At shorter intervals work would begin too late; at longer ones the cost
// of a wake does not matter.
constexpr RequestBell::Clock::duration least_interval = 250us;
constexpr RequestBell::Clock::duration most_interval = 100ms;

// The thread waits for a late request with further naps, each twice as long as the one before, in all about as long as
// an interval. A wake takes the thread's core 18 us.
constexpr int n_more_naps = 3;
constexpr int part_of_interval = 8;

// Number of sleeps without naps after somebody had to wait for a napping thread.
constexpr int n_sleeps_after_hurry = 64;

constexpr std::chrono::nanoseconds for_ever = std::chrono::nanoseconds::max();

}  // namespace

RequestBell::Clock::duration RequestBell::first_nap(Clock::duration interval) noexcept {
    return interval < least_interval || interval > most_interval ? Clock::duration::zero() : interval + interval / 16;
}

void RequestBell::ring_for_request() noexcept {
    const Clock::rep now = Clock::now().time_since_epoch().count();
    interval_before_.store(interval_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    interval_.store(now - latest_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    latest_.store(now, std::memory_order_relaxed);
    if (n_in_haste_ != 0) return hurry();
    ++bell_.count;  // before the state is read, as the thread reads the count after it has set the state
    if (state_ == asleep && state_.exchange(awake) == asleep) bell_.ring();
}

void RequestBell::hurry() noexcept {
    ++bell_.count;  // for a thread that has looked for requests and is about to nap
    const State before = state_.exchange(awake);
    if (before == napping) was_hurried_ = true;
    if (before != awake) bell_.ring();
}

bool RequestBell::may_nap() noexcept {
    if (was_hurried_.exchange(false)) n_waits_without_naps_ = n_sleeps_after_hurry;
    if (n_waits_without_naps_ == 0) return true;
    --n_waits_without_naps_;
    return false;
}

void RequestBell::nap(uint32_t seen) noexcept {
    // After a pause, requests are expected at the interval that they had before it. So the shorter of the last two
    // intervals counts.
    const Clock::duration interval(
        std::min(interval_.load(std::memory_order_relaxed), interval_before_.load(std::memory_order_relaxed)));
    const Clock::time_point latest(Clock::duration(latest_.load(std::memory_order_relaxed)));
    Clock::duration left = first_nap(interval);
    if (left == Clock::duration::zero()) return;
    left = std::min(left, left - (Clock::now() - latest));
    state_ = napping;
    for (int i = 0; i <= n_more_naps && bell_.count == seen; ++i) {
        bell_.sleep(seen, left);
        left = interval / part_of_interval * (1 << i);
    }
}

void RequestBell::wait(uint32_t seen) noexcept {
    if (may_nap()) nap(seen);
    state_ = asleep;
    while (bell_.count == seen) bell_.sleep(seen, for_ever);
    state_ = awake;
}

}  // namespace per

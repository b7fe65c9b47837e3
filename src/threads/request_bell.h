// Wakes a thread that works on the requests of others.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "threads/bell.h"

namespace per {

// Waking a sleeping thread costs its waker up to 20 us on a virtual machine, where one processor wakes another through
// the host. So if requests come at even intervals, the thread naps until the next one is due and finds it without a
// wake. A thread that has to wait for the work meanwhile calls hurry().
//
// One thread waits; any number of others make requests. All functions may be called at the same time.
class RequestBell {
 public:
    using Clock = std::chrono::steady_clock;

    // Call after each request: the thread works on it at once, or after its nap.
    void ring_for_request() noexcept;
    // Ends a nap of the thread, which looks for requests at once.
    void hurry() noexcept;
    // While a Haste exists, ring_for_request() wakes the thread at once, as if followed by hurry(). For threads that
    // wait for the result of other threads' requests.
    class Haste {
     public:
        explicit Haste(RequestBell& bell) noexcept : bell_(bell) { ++bell_.n_in_haste_; }
        ~Haste() { --bell_.n_in_haste_; }
        Haste(const Haste&) = delete;
        Haste& operator=(const Haste&) = delete;

     private:
        RequestBell& bell_;
    };

    // The thread calls count() before it looks for requests and, if it finds none, wait(), which returns once there may
    // be a later one.
    uint32_t count() const noexcept { return bell_.count; }
    void wait(uint32_t seen) noexcept;

    // Length of the first nap, counted from the last request, for requests at that interval. Zero if naps do not pay.
    static Clock::duration first_nap(Clock::duration interval) noexcept;

 private:
    enum State : uint32_t { awake, napping, asleep };

    void nap(uint32_t seen) noexcept;
    bool may_nap() noexcept;

    Bell bell_;
    std::atomic<State> state_ = awake;
    std::atomic<uint32_t> n_in_haste_ = 0;
    std::atomic<bool> was_hurried_ = false;        // out of a nap
    std::atomic<Clock::rep> latest_ = 0;           // the time of the latest request
    std::atomic<Clock::rep> interval_ = 0;         // between it and the one before it
    std::atomic<Clock::rep> interval_before_ = 0;  // between that one and the one before
    int n_waits_without_naps_ = 0;                 // remaining; used by the thread only
};

}  // namespace per

// Waking a thread that works on the requests of others.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "threads/shared_bell.h"

namespace per {

// To wake a thread that sleeps takes its waker up to 20 us on a virtual machine, where one processor wakes another
// through the host. So where requests come at even intervals, the thread naps until the next one is due, and finds it
// by itself. Whoever has to wait for the thread meanwhile calls hurry().
//
// One thread waits, any number of others make requests. All functions may be called at the same time.
class RequestBell {
 public:
    using Clock = std::chrono::steady_clock;

    // Whoever makes a request calls this after it, so that the thread works on it at once, or soon.
    void ring_for_request() noexcept;
    // The thread looks for requests at once.
    void hurry() noexcept;
    // As long as a Haste lives, the thread looks at once after each request. It is for those who wait for what follows
    // from requests that others make.
    class Haste {
     public:
        explicit Haste(RequestBell& bell) noexcept : bell_(bell) { ++bell_.n_in_haste_; }
        ~Haste() { --bell_.n_in_haste_; }
        Haste(const Haste&) = delete;
        Haste& operator=(const Haste&) = delete;

     private:
        RequestBell& bell_;
    };

    // For the thread: count() before it looks for requests, and, if it found none, wait() until there may be some since.
    uint32_t count() const noexcept { return bell_.count; }
    void wait(uint32_t seen) noexcept;

    // How long to nap first, counted from the last request, where requests come at that interval. Zero where naps do not
    // pay.
    static Clock::duration first_nap(Clock::duration interval) noexcept;

 private:
    enum State : uint32_t { awake, napping, asleep };

    void nap(uint32_t seen) noexcept;
    bool may_nap() noexcept;

    SharedBell bell_ = {0};
    std::atomic<State> state_ = awake;
    std::atomic<uint32_t> n_in_haste_ = 0;
    std::atomic<bool> was_hurried_ = false;        // out of a nap
    std::atomic<Clock::rep> latest_ = 0;           // the time of the latest request
    std::atomic<Clock::rep> interval_ = 0;         // between it and the one before it
    std::atomic<Clock::rep> interval_before_ = 0;  // that one
    int n_waits_without_naps_ = 0;                 // how many are left, for the thread alone
};

}  // namespace per

#include "threads/bell.h"

#include <pthread.h>

#include <algorithm>

namespace per {

void Bell::ring() noexcept {
    if (at_bell_ring != nullptr) at_bell_ring();
    ++count;
    // A thread that has read the old count in sleep() sleeps by the time that the mutex is free, so notify_all() wakes
    // it.
    { const std::lock_guard guard(mutex_); }
    rung_.notify_all();
}

void Bell::sleep(uint32_t seen, std::chrono::nanoseconds most) noexcept {
    most = std::min<std::chrono::nanoseconds>(most, std::chrono::seconds(1000));  // a later end may be beyond the clock
    if (at_bell_sleep != nullptr && at_bell_sleep(most)) return;
    std::unique_lock guard(mutex_);
    if (count == seen) rung_.wait_for(guard, most);
}

void Bell::in_child() noexcept {
    pthread_mutex_init(mutex_.native_handle(), nullptr);
    pthread_cond_init(rung_.native_handle(), nullptr);
}

}  // namespace per

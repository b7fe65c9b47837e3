#include "threads/reserved_lock.h"

#include "rows/error.h"

namespace per {
namespace {

// No other thread ever has the same, in a forked child neither.
uint64_t this_thread() noexcept {
    static std::atomic<uint64_t> n_threads = 0;
    thread_local uint64_t number = 0;
    if (number == 0) number = ++n_threads;
    return number;
}

}  // namespace

void ReservedLock::lock() {
    check_not_reserved_here();
    for (;;) {
        lock_.lock();
        if (!is_reserved()) return;
        const uint64_t n_ended = n_ended_;
        lock_.unlock();
        n_ended_.wait(n_ended);
    }
}

bool ReservedLock::try_lock() noexcept {
    if (!lock_.try_lock()) return false;
    if (!is_reserved()) return true;
    lock_.unlock();
    return false;
}

void ReservedLock::check_not_reserved_here() const {
    const uint64_t thread = thread_;
    if (thread != 0 && thread == this_thread())
        throw Error(PER_ERROR_BUSY, "the buffer is being saved: it cannot be used by the function that writes it");
}

// In a forked child the thread that had reserved the lock may not be there.
bool ReservedLock::is_reserved() const noexcept {
    return thread_ != 0 && process_ == HandleLock::process();
}

ReservedLock::Reservation::Reservation(ReservedLock& lock) noexcept : lock_(lock) {
    lock_.thread_ = this_thread();
    lock_.process_ = HandleLock::process();
    lock_.lock_.unlock();
}

ReservedLock::Reservation::~Reservation() {
    lock_.lock_.lock();
    lock_.thread_ = 0;
    ++lock_.n_ended_;
    lock_.n_ended_.notify_all();
}

}  // namespace per

#include "threads/reserved_lock.h"

#include "base/error.h"

namespace per {
namespace {

// A number that no other thread ever has, not even in a forked child.
uint64_t this_thread() noexcept {
    static std::atomic<uint64_t> n_threads = 0;
    thread_local uint64_t number = 0;
    if (number == 0) number = ++n_threads;
    return number;
}

}  // namespace

bool ReservedLock::try_lock_until(std::chrono::steady_clock::time_point time) {
    check_not_reserved_here();
    while (lock_.try_lock_until(time)) {
        if (!is_reserved()) return true;
        const uint32_t seen = ended_.await();  // the reservation cannot end while this thread holds lock_
        lock_.unlock();
        const std::chrono::nanoseconds left = time - std::chrono::steady_clock::now();
        if (left.count() <= 0) return false;
        ended_.bell.sleep(seen, left);
    }
    return false;
}

bool ReservedLock::try_lock() noexcept {
    if (!lock_.try_lock()) return false;
    if (!is_reserved()) return true;
    lock_.unlock();
    return false;
}

bool ReservedLock::is_reserved_here() const noexcept {
    const uint64_t thread = thread_;
    return thread != 0 && thread == this_thread();
}

void ReservedLock::check_not_reserved_here() const {
    if (is_reserved_here())
        throw Error(PER_ERROR_BUSY, "the buffer is being saved: it cannot be used by the function that writes it");
}

// A forked child lacks the thread that reserved the lock in the parent.
bool ReservedLock::is_reserved() const noexcept {
    return thread_ != 0 && process_ == ProcessMark::current();
}

ReservedLock::Reservation::Reservation(ReservedLock& lock) noexcept : lock_(lock) {
    lock_.thread_ = this_thread();
    lock_.process_ = ProcessMark::current();
    lock_.lock_.unlock();
}

ReservedLock::Reservation::~Reservation() {
    lock_.lock_.lock();
    lock_.thread_ = 0;
    lock_.ended_.ring();
}

}  // namespace per

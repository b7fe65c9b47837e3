#include "threads/reserved_lock.h"

#include "base/error.h"

namespace per {

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
    return thread != 0 && thread == ProcessMark::this_thread();
}

void ReservedLock::check_not_reserved_here() const {
    if (is_reserved_here())
        throw Error(PER_ERROR_BUSY, "the buffer is being saved: it cannot be used by the function that writes it");
}

// A forked child lacks the thread that reserved the lock in the parent, unless that thread called fork().
bool ReservedLock::is_reserved() const noexcept {
    const uint64_t thread = thread_;
    return thread != 0 && (process_ == ProcessMark::current() || ProcessMark::is_inherited(thread));
}

ReservedLock::Reservation::Reservation(ReservedLock& lock) noexcept : lock_(lock) {
    lock_.thread_ = ProcessMark::this_thread();
    lock_.process_ = ProcessMark::current();
    lock_.lock_.unlock();
}

ReservedLock::Reservation::~Reservation() {
    lock_.lock_.lock();
    lock_.thread_ = 0;
    lock_.ended_.ring();
}

}  // namespace per

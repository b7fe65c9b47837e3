// The lock of a buffer, which a call may leave for a while without losing it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "threads/handle_lock.h"
#include "threads/shared_bell.h"

namespace per {

// A HandleLock whose owner can reserve it while a function of the caller runs. Held all that time, the lock would make
// fork() wait for the function; and where the function then used another handle, each would wait for the other.
class ReservedLock {
 public:
    // Waits until no other thread has reserved the lock. Throws Error with BUSY if this thread has.
    void lock() { static_cast<void>(try_lock_until(std::chrono::steady_clock::time_point::max())); }
    bool try_lock() noexcept;
    // As lock(). False if that takes longer.
    bool try_lock_until(std::chrono::steady_clock::time_point time);
    void unlock() noexcept { lock_.unlock(); }

    // Throws what lock() throws. Needs no lock.
    void check_not_reserved_here() const;

    // For a thread that has the lock: gives it up as long as the object lives, but to nobody else.
    class Reservation {
     public:
        explicit Reservation(ReservedLock& lock) noexcept;
        ~Reservation();
        Reservation(const Reservation&) = delete;
        Reservation& operator=(const Reservation&) = delete;

     private:
        ReservedLock& lock_;
    };

    // The lock for a call that changes nothing which the reservation keeps.
    HandleLock& unreserved() { return lock_; }

 private:
    bool is_reserved() const noexcept;

    HandleLock lock_;
    std::atomic<uint64_t> thread_ = 0;  // the number of the one that has reserved it; 0: none has
    uint64_t process_ = 0;              // and its HandleLock::process()
    AwaitedBell ended_ = {};
};

}  // namespace per

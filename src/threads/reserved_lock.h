// The lock of a buffer, which a call can release for a while without losing it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "threads/bell.h"
#include "threads/handle_lock.h"
#include "threads/process_mark.h"

namespace per {

// A HandleLock that its owner can reserve while a function of the caller runs. If the lock were held meanwhile, fork()
// would wait for that function, and a function that used another handle could deadlock.
class ReservedLock {
 public:
    // Waits until no other thread has reserved the lock. Throws Error with BUSY if this thread has.
    void lock() { static_cast<void>(try_lock_until(std::chrono::steady_clock::time_point::max())); }
    bool try_lock() noexcept;
    // Like lock(), but returns false if the lock is not free by `time`.
    bool try_lock_until(std::chrono::steady_clock::time_point time);
    void unlock() noexcept { lock_.unlock(); }

    // Throws what lock() throws. Needs no lock.
    void check_not_reserved_here() const;
    // True if this thread has reserved the lock.
    bool is_reserved_here() const noexcept;

    // Releases the lock of the calling thread while the object lives, and keeps other threads from taking it.
    class Reservation {
     public:
        explicit Reservation(ReservedLock& lock) noexcept;
        ~Reservation();
        Reservation(const Reservation&) = delete;
        Reservation& operator=(const Reservation&) = delete;

     private:
        ReservedLock& lock_;
    };

    // The lock without reservations, for a call that does not change the state that a reservation protects.
    HandleLock& unreserved() { return lock_; }

 private:
    bool is_reserved() const noexcept;

    HandleLock lock_;
    std::atomic<uint64_t> thread_ = 0;  // that has reserved the lock, or 0
    uint64_t process_ = 0;              // the ProcessMark::current() of that thread
    Awaited<Bell> ended_;
};

}  // namespace per

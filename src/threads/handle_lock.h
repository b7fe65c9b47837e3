// The lock of a handle: many readers or one writer, and usable in a forked child.
#pragma once

#include <pthread.h>

#include <chrono>

#include "threads/fork_list.h"

namespace per {

// Works with std::unique_lock and std::shared_lock. Waiting writers precede readers that come later, so threads that
// sample in a loop do not starve updates. Not recursive, not even for readers.
//
// fork() waits until no call is inside any handle, so the child's copies are whole and their locks are free.
class HandleLock {
 public:
    // Throws std::bad_alloc.
    HandleLock();
    HandleLock(const HandleLock&) = delete;
    HandleLock& operator=(const HandleLock&) = delete;

    void lock() noexcept { pthread_rwlock_wrlock(&system_.lock); }
    bool try_lock() noexcept { return pthread_rwlock_trywrlock(&system_.lock) == 0; }
    bool try_lock_until(std::chrono::steady_clock::time_point time) noexcept;
    void unlock() noexcept { pthread_rwlock_unlock(&system_.lock); }
    void lock_shared() noexcept;
    void unlock_shared() noexcept { pthread_rwlock_unlock(&system_.lock); }

 private:
    friend ForkListEntry<HandleLock>;

    struct SystemLock {
        SystemLock() noexcept { initialize(); }
        ~SystemLock() { pthread_rwlock_destroy(&lock); }
        void initialize() noexcept;

        pthread_rwlock_t lock;
    };

    void before_fork() noexcept { lock(); }
    void after_fork() noexcept { unlock(); }
    // Unlocking is not enough: the lock would count its waiting threads for ever, which exist only in the parent.
    void in_child() noexcept { system_.initialize(); }

    SystemLock system_;
    ForkListEntry<HandleLock> entry_;
};

}  // namespace per

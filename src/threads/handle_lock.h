// The lock of a handle: many readers or one writer, and usable in a forked child.
#pragma once

#include <pthread.h>

#include <chrono>
#include <cstdint>

namespace per {

// For std::unique_lock and std::shared_lock. Waiting writers go before readers that come later, so that updates are not
// starved by threads that sample in a loop. Not recursive, not even for readers.
//
// fork() waits until no call is inside any handle, so the child's copies are whole, and their locks are free.
class HandleLock {
 public:
    HandleLock();
    ~HandleLock();
    HandleLock(const HandleLock&) = delete;
    HandleLock& operator=(const HandleLock&) = delete;

    void lock() noexcept { pthread_rwlock_wrlock(&lock_); }
    bool try_lock() noexcept { return pthread_rwlock_trywrlock(&lock_) == 0; }
    bool try_lock_until(std::chrono::steady_clock::time_point time) noexcept;
    void unlock() noexcept { pthread_rwlock_unlock(&lock_); }
    void lock_shared() noexcept;
    void unlock_shared() noexcept { pthread_rwlock_unlock(&lock_); }

    // A number of this process. No process that it was forked from has the same.
    static uint64_t process() noexcept;

 private:
    void initialize() noexcept;
    static void lock_all() noexcept;
    static void unlock_all() noexcept;
    static void initialize_all() noexcept;

    pthread_rwlock_t lock_;
    HandleLock* next_;
    HandleLock* previous_;
};

}  // namespace per

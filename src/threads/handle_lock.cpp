#include "threads/handle_lock.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <new>

#include "threads/descriptor.h"

namespace per {
namespace {

// All locks, for the handlers of fork(). A thread takes this mutex before any lock of a handle, never after.
pthread_mutex_t registry_mutex = PTHREAD_MUTEX_INITIALIZER;
HandleLock* registry = nullptr;
pthread_once_t fork_handlers_once = PTHREAD_ONCE_INIT;
int fork_handlers_error = 0;
std::atomic<uint64_t> process_number = 1;

}  // namespace

HandleLock::HandleLock() {
    Descriptor::watch_forks();  // calls that hold a lock of a handle open and close files
    pthread_once(&fork_handlers_once,
                 [] { fork_handlers_error = pthread_atfork(&lock_all, &unlock_all, &initialize_all); });
    if (fork_handlers_error != 0) throw std::bad_alloc();  // the only error that pthread_atfork has
    initialize();
    pthread_mutex_lock(&registry_mutex);
    previous_ = nullptr;
    next_ = registry;
    if (registry != nullptr) registry->previous_ = this;
    registry = this;
    pthread_mutex_unlock(&registry_mutex);
}

HandleLock::~HandleLock() {
    pthread_mutex_lock(&registry_mutex);
    (previous_ == nullptr ? registry : previous_->next_) = next_;
    if (next_ != nullptr) next_->previous_ = previous_;
    pthread_mutex_unlock(&registry_mutex);
    pthread_rwlock_destroy(&lock_);
}

// pthread_rwlock_clockwrlock() would take one call, but ThreadSanitizer does not know it. The call that it knows waits
// by the calendar's clock, which may be set meanwhile; so the steady clock is read every 100 ms.
bool HandleLock::try_lock_until(std::chrono::steady_clock::time_point time) noexcept {
    using std::chrono::steady_clock;
    constexpr int64_t longest_wait = 100'000'000, second = 1'000'000'000;
    if (time == steady_clock::time_point::max()) {
        lock();
        return true;
    }
    while (!try_lock()) {
        const int64_t left = std::chrono::nanoseconds(time - steady_clock::now()).count();
        if (left <= 0) return false;
        struct timespec end;
        clock_gettime(CLOCK_REALTIME, &end);
        const int64_t nanoseconds = end.tv_nsec + std::min(left, longest_wait);
        end.tv_sec += nanoseconds / second;
        end.tv_nsec = nanoseconds % second;
        if (pthread_rwlock_timedwrlock(&lock_, &end) == 0) return true;
    }
    return true;
}

void HandleLock::lock_shared() noexcept {
    // EAGAIN: more readers than the lock can count.
    while (pthread_rwlock_rdlock(&lock_) == EAGAIN) sched_yield();
}

void HandleLock::initialize() noexcept {
    pthread_rwlockattr_t attributes;
    pthread_rwlockattr_init(&attributes);
    // std::shared_mutex lets readers overtake: beside two threads that sample without a pause, an update waited 21 ms
    // on average, here 16 us.
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&lock_, &attributes);
    pthread_rwlockattr_destroy(&attributes);
}

void HandleLock::lock_all() noexcept {
    pthread_mutex_lock(&registry_mutex);
    for (HandleLock* lock = registry; lock != nullptr; lock = lock->next_) lock->lock();
}

void HandleLock::unlock_all() noexcept {
    for (HandleLock* lock = registry; lock != nullptr; lock = lock->next_) lock->unlock();
    pthread_mutex_unlock(&registry_mutex);
}

// In the child. Unlocking would not do: threads that waited for a lock do not exist here and would be counted for ever.
void HandleLock::initialize_all() noexcept {
    for (HandleLock* lock = registry; lock != nullptr; lock = lock->next_) lock->initialize();
    pthread_mutex_init(&registry_mutex, nullptr);
    ++process_number;
}

uint64_t HandleLock::process() noexcept {
    return process_number;
}

}  // namespace per

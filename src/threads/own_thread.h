// A thread of the library.
#pragma once

#include <pthread.h>

#include "threads/process_mark.h"

namespace per {

// Runs a function of its owner, without signals. It exists only in the process that started it: in a forked child it is
// neither running nor joined. The owner must declare it after all members that the thread uses, or join it before they
// are destroyed.
class OwnThread {
 public:
    OwnThread() = default;
    ~OwnThread() { join(); }
    OwnThread(const OwnThread&) = delete;
    OwnThread& operator=(const OwnThread&) = delete;

    // Starts the thread, which calls owner.*work(). Errors name the owner `noun`. Throws Error with OUT_OF_MEMORY.
    template <auto work, class Owner>
    void start(Owner& owner, const char* noun) {
        throw_unless_started(try_start<work>(owner), noun);
    }
    // Like the above, but returns the system's error number, or 0, and does not throw.
    template <auto work, class Owner>
    int try_start(Owner& owner) noexcept {
        return begin(
            [](void* argument) -> void* {
                (static_cast<Owner*>(argument)->*work)();
                return nullptr;
            },
            &owner);
    }
    // Waits for the end of the thread, if it is running.
    void join() noexcept;

    bool is_running() const noexcept { return is_started_ && process_.is_here(); }
    // The process that started the thread last; before that, the one that created this object.
    const ProcessMark& process() const noexcept { return process_; }

 private:
    static void throw_unless_started(int error, const char* noun);
    int begin(void* (*work)(void*), void* argument) noexcept;

    ProcessMark process_;
    pthread_t thread_ = {};
    bool is_started_ = false;
};

}  // namespace per

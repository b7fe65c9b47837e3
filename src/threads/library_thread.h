// Threads of the library's own.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace per {

// Starts a thread on which no signal is handled: the handlers of Julia and Python must run on threads of the program
// only. Returns the system's error, 0 if there was none. `work` must not throw.
inline int start_library_thread(pthread_t& thread_out, void* (*work)(void*), void* argument) noexcept {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&thread_out, nullptr, work, argument);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return error;
}

}  // namespace per

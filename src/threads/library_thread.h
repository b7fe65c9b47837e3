// Threads of the library's own.
#pragma once

#include <pthread.h>

namespace per {

// Starts a thread on which no signal is handled: the handlers of Julia and Python must run on threads of the program
// only. Returns the system's error, 0 if there was none. `work` must not throw.
int start_library_thread(pthread_t& thread_out, void* (*work)(void*), void* argument) noexcept;

}  // namespace per

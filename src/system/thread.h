// Threads, as the system starts and ends them.
#pragma once

#include <pthread.h>

namespace per {

// Starts a thread that handles no signals: the handlers of Julia and Python must run on threads of the program only.
// Returns the system's error number, or 0. `work` must not throw.
int start_thread(pthread_t& thread_out, void* (*work)(void*), void* argument) noexcept;

// Must be called before each call of a caller's function. The thread may end inside that function: Python before 3.14
// ends threads this way when the interpreter exits. pthread_exit() then unwinds the stack with the system's libgcc,
// which asks the libgcc linked into this library about its frames; that one aborts unless it has walked a stack before.
void prepare_for_thread_exit();

}  // namespace per

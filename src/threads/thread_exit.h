// Threads of the program that may end in a function of the caller.
#pragma once

namespace per {

// To be called before a function of the caller is. The thread may end in it: Python before 3.14 ends threads that way
// when the interpreter exits. pthread_exit() then unwinds the stack by the system's libgcc. The frames of this library
// answer by the libgcc that is linked into it, which aborts unless it has looked at a stack before.
void prepare_for_thread_exit();

}  // namespace per

#include "threads/library_thread.h"

#include <signal.h>

namespace per {

int start_library_thread(pthread_t& thread_out, void* (*work)(void*), void* argument) noexcept {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&thread_out, nullptr, work, argument);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return error;
}

}  // namespace per

#include "system/thread.h"

#include <signal.h>
#include <unwind.h>

namespace per {

int start_thread(pthread_t& thread_out, void* (*work)(void*), void* argument) noexcept {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&thread_out, nullptr, work, argument);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return error;
}

void prepare_for_thread_exit() {
    static const _Unwind_Reason_Code ready =
        _Unwind_Backtrace([](_Unwind_Context*, void*) { return _URC_NORMAL_STOP; }, nullptr);
    static_cast<void>(ready);
}

}  // namespace per

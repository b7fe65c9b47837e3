#include "threads/own_thread.h"

#include "base/error.h"
#include "system/thread.h"

namespace per {

int OwnThread::begin(void* (*work)(void*), void* argument) noexcept {
    process_.move_here();
    const int error = start_thread(thread_, work, argument);
    is_started_ = error == 0;
    return error;
}

void OwnThread::throw_unless_started(int error, const char* noun) {
    if (error != 0) throw Error(PER_ERROR_OUT_OF_MEMORY, "no thread for the %s: error %d of the system", noun, error);
}

void OwnThread::join() noexcept {
    if (!is_running()) return;
    pthread_join(thread_, nullptr);
    is_started_ = false;
}

}  // namespace per

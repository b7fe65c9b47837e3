#include "threads/process_mark.h"

#include <pthread.h>

#include <new>

#include "base/error.h"

namespace per {
namespace {

pthread_once_t once = PTHREAD_ONCE_INIT;
int error = 0;

}  // namespace

void ProcessMark::watch_forks() {
    pthread_once(&once, [] {
        error = pthread_atfork(nullptr, nullptr, [] {
            ++process;
            inherited = this_thread();
        });
    });
    if (error != 0) throw std::bad_alloc();  // the only error of pthread_atfork()
}

uint64_t ProcessMark::this_thread() noexcept {
    static std::atomic<uint64_t> n_threads = 0;
    thread_local uint64_t number = 0;
    if (number == 0) number = ++n_threads;
    return number;
}

void ProcessMark::check(const char* message) const {
    if (!is_here()) throw Error(PER_ERROR_INVALID_ARGUMENT, "%s", message);
}

}  // namespace per

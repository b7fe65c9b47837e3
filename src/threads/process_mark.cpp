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
    pthread_once(&once, [] { error = pthread_atfork(nullptr, nullptr, [] { ++process; }); });
    if (error != 0) throw std::bad_alloc();  // the only error of pthread_atfork()
}

void ProcessMark::check(const char* message) const {
    if (!is_here()) throw Error(PER_ERROR_INVALID_ARGUMENT, "%s", message);
}

}  // namespace per

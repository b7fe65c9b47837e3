/* Threads for tests. */
#ifndef THREAD_CHECK_H
#define THREAD_CHECK_H

#include <pthread.h>

#include "check.h"

static inline pthread_t start_thread(void* (*work)(void* context), void* context) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, work, context) == 0);
    return thread;
}

/* Returns the thread's result. */
static inline void* join_thread(pthread_t thread) {
    void* result = NULL;
    CHECK(pthread_join(thread, &result) == 0);
    return result;
}

#endif

/* A save that lasts from hold_buffer() to let_go(). Calls on the buffer wait for it. */
#ifndef SAVE_CHECK_H
#define SAVE_CHECK_H

#include <pthread.h>

#include "checkpoints.h"
#include "replay_check.h"

typedef struct held {
    per_replay* replay;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int is_held, is_over;
    pthread_t thread;
} held;

static inline int64_t hold(void* context, const void* data, int64_t size) {
    held* save = context;
    (void)data;
    pthread_mutex_lock(&save->mutex);
    save->is_held = 1;
    pthread_cond_broadcast(&save->changed);
    while (!save->is_over) pthread_cond_wait(&save->changed, &save->mutex);
    pthread_mutex_unlock(&save->mutex);
    return size;
}

static inline void* run_save(void* context) {
    held* save = context;
    CHECK_OK(save_to(save->replay, hold, save));
    return NULL;
}

static inline void hold_buffer(held* save, per_replay* replay) {
    memset(save, 0, sizeof *save);
    save->replay = replay;
    pthread_mutex_init(&save->mutex, NULL);
    pthread_cond_init(&save->changed, NULL);
    CHECK(pthread_create(&save->thread, NULL, run_save, save) == 0);
    pthread_mutex_lock(&save->mutex);
    while (!save->is_held) pthread_cond_wait(&save->changed, &save->mutex);
    pthread_mutex_unlock(&save->mutex);
}

static inline void let_go(held* save) {
    pthread_mutex_lock(&save->mutex);
    save->is_over = 1;
    pthread_cond_broadcast(&save->changed);
    pthread_mutex_unlock(&save->mutex);
    pthread_join(save->thread, NULL);
}

#endif

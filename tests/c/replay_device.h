/*
 * Calls on buffers, for tests in C and C++ that run on the CPU and on CUDA: there each call on a stream is followed by
 * per_replay_synchronize(), so that outputs are there and errors known when it returns, as on the CPU.
 */
#ifndef REPLAY_DEVICE_H
#define REPLAY_DEVICE_H

#include "device_check.h"

static inline per_status synchronized(per_replay* replay, per_status status) {
    return status == PER_OK && on_cuda() ? per_replay_synchronize(replay, NULL) : status;
}

#define per_replay_add(replay, ...) synchronized(replay, per_replay_add(replay, __VA_ARGS__))
#define per_replay_cut(replay, ...) synchronized(replay, per_replay_cut(replay, __VA_ARGS__))
#define per_replay_sample(replay, ...) synchronized(replay, per_replay_sample(replay, __VA_ARGS__))
#define per_replay_update_priorities(replay, ...) \
    synchronized(replay, per_replay_update_priorities(replay, __VA_ARGS__))
#define per_replay_set_priorities(replay, ...) synchronized(replay, per_replay_set_priorities(replay, __VA_ARGS__))
#define per_replay_priorities(replay, ...) synchronized(replay, per_replay_priorities(replay, __VA_ARGS__))
#define per_replay_get(replay, ...) synchronized(replay, per_replay_get(replay, __VA_ARGS__))
#define per_replay_get_windows(replay, ...) synchronized(replay, per_replay_get_windows(replay, __VA_ARGS__))
#define per_replay_set(replay, ...) synchronized(replay, per_replay_set(replay, __VA_ARGS__))
#define per_replay_clear(replay, ...) synchronized(replay, per_replay_clear(replay, __VA_ARGS__))
#define per_replay_set_alpha(replay, ...) synchronized(replay, per_replay_set_alpha(replay, __VA_ARGS__))
#define per_replay_set_beta(replay, ...) synchronized(replay, per_replay_set_beta(replay, __VA_ARGS__))
#define per_replay_set_gamma(replay, ...) synchronized(replay, per_replay_set_gamma(replay, __VA_ARGS__))
#define per_replay_set_n_step(replay, ...) synchronized(replay, per_replay_set_n_step(replay, __VA_ARGS__))
#define per_replay_bootstraps(replay, ...) synchronized(replay, per_replay_bootstraps(replay, __VA_ARGS__))
#define per_replay_advantages(replay, ...) synchronized(replay, per_replay_advantages(replay, __VA_ARGS__))

#endif

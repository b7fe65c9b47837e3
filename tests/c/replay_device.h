/*
 * Calls on buffers, for tests in C and C++ that run on the CPU and on CUDA. On CUDA each call on a stream is followed
 * by per_replay_synchronize(), so that outputs and errors are available when it returns, as on the CPU.
 */
#ifndef REPLAY_DEVICE_H
#define REPLAY_DEVICE_H

#include "device_check.h"
#include "settings.h"
#include "struct_calls.h"

static inline per_status synchronized(per_replay* replay, per_status status) {
    return status == PER_OK && on_cuda() ? per_replay_synchronize(replay, NULL) : status;
}

static inline per_status synchronized_sources(const per_source* sources, int64_t n_sources, per_status status) {
    for (int64_t k = 0; k < n_sources && status == PER_OK; ++k) status = synchronized(sources[k].replay, status);
    return status;
}

#define per_mixture_sample(sources, n_sources, ...) \
    synchronized_sources(sources, n_sources, per_mixture_sample(sources, n_sources, __VA_ARGS__))
#define per_mixture_update_priorities(sources, n_sources, ...) \
    synchronized_sources(sources, n_sources, per_mixture_update_priorities(sources, n_sources, __VA_ARGS__))
#define per_replay_add(replay, ...) synchronized(replay, per_replay_add(replay, __VA_ARGS__))
#define per_replay_cut(replay, ...) synchronized(replay, per_replay_cut(replay, __VA_ARGS__))
#define per_replay_sample(replay, ...) synchronized(replay, per_replay_sample(replay, __VA_ARGS__))
#define per_replay_update_priorities(replay, ...) \
    synchronized(replay, per_replay_update_priorities(replay, __VA_ARGS__))
#define write_td_errors(replay, ...) synchronized(replay, write_td_errors(replay, __VA_ARGS__))
#define write_sequence_errors(replay, ...) synchronized(replay, write_sequence_errors(replay, __VA_ARGS__))
#define write_priorities(replay, ...) synchronized(replay, write_priorities(replay, __VA_ARGS__))
#define per_replay_get_priorities(replay, ...) synchronized(replay, per_replay_get_priorities(replay, __VA_ARGS__))
#define per_replay_get(replay, ...) synchronized(replay, per_replay_get(replay, __VA_ARGS__))
#define per_replay_get_windows(replay, ...) synchronized(replay, per_replay_get_windows(replay, __VA_ARGS__))
#define per_replay_set(replay, ...) synchronized(replay, per_replay_set(replay, __VA_ARGS__))
#define per_replay_clear(replay, ...) synchronized(replay, per_replay_clear(replay, __VA_ARGS__))
#define per_replay_change_settings(replay, ...) synchronized(replay, per_replay_change_settings(replay, __VA_ARGS__))
#define change_alpha(replay, ...) synchronized(replay, change_alpha(replay, __VA_ARGS__))
#define change_beta(replay, ...) synchronized(replay, change_beta(replay, __VA_ARGS__))
#define change_gamma(replay, ...) synchronized(replay, change_gamma(replay, __VA_ARGS__))
#define change_n_step(replay, ...) synchronized(replay, change_n_step(replay, __VA_ARGS__))
#define per_replay_get_bootstraps(replay, ...) synchronized(replay, per_replay_get_bootstraps(replay, __VA_ARGS__))
#define per_replay_compute_advantages(replay, ...) \
    synchronized(replay, per_replay_compute_advantages(replay, __VA_ARGS__))

#endif

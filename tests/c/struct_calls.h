/*
 * Calls that take a struct, given its members: for tests in C and C++ that make many of them.
 */
#ifndef STRUCT_CALLS_H
#define STRUCT_CALLS_H

#include <per.h>
#include <stdlib.h>

static inline per_priorities priorities_given(int64_t count, const int64_t* ids) {
    per_priorities given;
    if (per_priorities_init(&given, sizeof given) != PER_OK) abort();
    given.count = count;
    given.ids = ids;
    return given;
}

static inline per_priorities sequence_errors_given(int64_t count, const int64_t* ids, int64_t n_critics,
                                                   int64_t n_steps, const float* td_errors) {
    per_priorities given = priorities_given(count, ids);
    given.td_errors = td_errors;
    given.n_critics = n_critics;
    given.n_steps = n_steps;
    return given;
}

static inline per_status write_sequence_errors(per_replay* replay, int64_t count, const int64_t* ids, int64_t n_critics,
                                               int64_t n_steps, const float* td_errors, void* stream) {
    const per_priorities given = sequence_errors_given(count, ids, n_critics, n_steps, td_errors);
    return per_replay_update_priorities(replay, &given, stream);
}

static inline per_status write_td_errors(per_replay* replay, int64_t count, const int64_t* ids, int64_t n_critics,
                                         const float* td_errors, void* stream) {
    return write_sequence_errors(replay, count, ids, n_critics, 0, td_errors, stream);
}

static inline per_status write_priorities(per_replay* replay, int64_t count, const int64_t* ids,
                                          const float* priorities, void* stream) {
    per_priorities given = priorities_given(count, ids);
    given.priorities = priorities;
    return per_replay_update_priorities(replay, &given, stream);
}

static inline per_status send_sequence_errors(per_reader* reader, int64_t count, const int64_t* ids, int64_t n_critics,
                                              int64_t n_steps, const float* td_errors, int64_t timeout_ms) {
    const per_priorities given = sequence_errors_given(count, ids, n_critics, n_steps, td_errors);
    return per_reader_update_priorities(reader, &given, timeout_ms);
}

static inline per_status send_td_errors(per_reader* reader, int64_t count, const int64_t* ids, int64_t n_critics,
                                        const float* td_errors, int64_t timeout_ms) {
    return send_sequence_errors(reader, count, ids, n_critics, 0, td_errors, timeout_ms);
}

static inline per_status send_priorities(per_reader* reader, int64_t count, const int64_t* ids, const float* priorities,
                                         int64_t timeout_ms) {
    per_priorities given = priorities_given(count, ids);
    given.priorities = priorities;
    return per_reader_update_priorities(reader, &given, timeout_ms);
}

/* `options`: NULL for those of the buffer. */
static inline per_sample_options options_with_hindsight(const per_sample_options* options,
                                                        const per_hindsight_options* hindsight) {
    per_sample_options given;
    if (per_sample_options_init(&given, sizeof given) != PER_OK) abort();
    if (options != NULL) given = *options;
    given.hindsight = hindsight;
    return given;
}

static inline per_status sample_with_hindsight(per_replay* replay, const per_sample_options* options,
                                               const per_hindsight_options* hindsight, int64_t batch_size,
                                               const per_batch* batch, void* stream) {
    const per_sample_options given = options_with_hindsight(options, hindsight);
    return per_replay_sample(replay, &given, batch_size, batch, stream);
}

static inline per_status get_windows_with_hindsight(per_replay* replay, const per_sample_options* options,
                                                    const per_hindsight_options* hindsight, int32_t on_invalid,
                                                    int64_t count, const int64_t* ids, const per_batch* batch,
                                                    void* stream) {
    const per_sample_options given = options_with_hindsight(options, hindsight);
    return per_replay_get_windows(replay, &given, on_invalid, count, ids, batch, stream);
}

#endif

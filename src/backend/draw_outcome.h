// The outcome of a draw, and the errors that follow.
#pragma once

#include <cinttypes>

#include "base/error.h"

namespace per {

struct DrawOutcome {
    int64_t n_live;   // live transitions
    int64_t n_found;  // transitions found; fewer than the batch only without replacement
};

// The noun for errors.
inline const char* drawn_noun(bool of_sequences) {
    return of_sequences ? "sequence" : "transition";
}

// Throws the Error of a draw where nothing is live. n_added is the number of steps added so far; -1 if the caller does
// not know it.
[[noreturn]] inline void throw_empty(bool of_sequences, int64_t n_step = 1, int64_t n_added = -1) {
    const char* const noun = drawn_noun(of_sequences);
    if (n_added < 0) throw Error(PER_ERROR_EMPTY, "no %s is live: add more steps before drawing", noun);
    if (n_added == 0) throw Error(PER_ERROR_EMPTY, "no %s is live: no step was added yet", noun);
    throw Error(PER_ERROR_EMPTY,
                "no %s is live (steps added: %" PRId64 ", n_step: %" PRId64
                "): a %s is live once %s steps of its episode and the observation after them, or the end of the "
                "episode, were added, until it is overwritten, cleared, drawn max_times_sampled times or older than "
                "max_age; add more steps before drawing",
                noun, n_added, n_step, noun, of_sequences ? "burn_in + sequence_length + n_step - 1" : "n_step");
}

// Throws Error unless the whole batch was found: with EMPTY if nothing is live, else with INVALID_ARGUMENT.
inline void require_drawn(int64_t batch_size, const DrawOutcome& outcome, bool of_sequences) {
    if (outcome.n_live == 0) throw_empty(of_sequences);
    if (outcome.n_found >= batch_size) return;
    throw Error(PER_ERROR_INVALID_ARGUMENT,
                "batch_size is %" PRId64 ": only %" PRId64 " %ss can be drawn without replacement", batch_size,
                outcome.n_found, drawn_noun(of_sequences));
}

// Throws Error if fewer transitions are live than a batch has newest rows.
inline void require_newest(int64_t n_newest, int64_t n_live, bool of_sequences) {
    if (n_newest > n_live)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "newest is %" PRId64 ": only %" PRId64 " %ss are live", n_newest,
                    n_live, drawn_noun(of_sequences));
}

}  // namespace per

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

// Throws the Error of a draw where nothing is live. n_step is 1 if the window length is not the reason, or is not
// known.
[[noreturn]] inline void throw_empty(bool of_sequences, int64_t n_step = 1, int64_t n_added = 0) {
    if (!of_sequences && n_step > 1)
        throw Error(PER_ERROR_EMPTY,
                    "no transition is live (steps added: %" PRId64 ", n_step: %" PRId64 "): one is once %" PRId64
                    " steps of its episode and the observation after them, or the episode's end, were added",
                    n_added, n_step, n_step);
    throw Error(
        PER_ERROR_EMPTY, "no %s is live%s", drawn_noun(of_sequences),
        of_sequences
            ? ": one is once burn_in + sequence_length + n_step - 1 steps of it, or its episode's end, were added"
            : "");
}

// Throws Error unless the whole batch was found: with EMPTY if nothing is live, else with INVALID_ARGUMENT.
inline void require_drawn(int64_t batch_size, const DrawOutcome& outcome, bool of_sequences) {
    if (outcome.n_live == 0) throw_empty(of_sequences);
    if (outcome.n_found >= batch_size) return;
    throw Error(PER_ERROR_INVALID_ARGUMENT,
                "batch_size is %" PRId64 ": only %" PRId64 " %ss can be drawn without replacement", batch_size,
                outcome.n_found, drawn_noun(of_sequences));
}

}  // namespace per

// Whether a draw of transitions could be made.
#pragma once

#include <stdint.h>

namespace per {

struct DrawOutcome {
    int64_t n_live;   // transitions
    int64_t n_found;  // of the batch; fewer than it has only without replacement
};

// What is drawn, as errors call it.
inline const char* drawn_noun(bool of_sequences) {
    return of_sequences ? "sequence" : "transition";
}

// The error of a draw where nothing is live.
[[noreturn]] void throw_empty(bool of_sequences);

// Throws Error unless the whole batch was found: with EMPTY if nothing is live, else with INVALID_ARGUMENT.
void require_drawn(int64_t batch_size, const DrawOutcome& outcome, bool of_sequences);

}  // namespace per

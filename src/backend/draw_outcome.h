// Whether a draw of transitions could be made.
#pragma once

#include <stdint.h>

namespace per {

struct DrawOutcome {
    int64_t n_live;   // transitions
    int64_t n_found;  // of the batch; fewer than it has only without replacement
};

// Throws Error unless the whole batch was found: with EMPTY if nothing is live, else with INVALID_ARGUMENT.
void require_drawn(int64_t batch_size, const DrawOutcome& outcome);

}  // namespace per

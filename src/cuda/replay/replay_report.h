// What a device reports of a replay buffer's calls, in words.
#pragma once

#include "cuda/replay/replay_state.h"

namespace per::cuda {

// Throws Error where something went wrong: with the status of what is named first, and a message that names all.
// With skips_invalid (PER_INVALID_SKIP) a TD error or priority that is not allowed is nothing to report. of_sequences:
// the buffer draws sequences.
void report(const ReplayErrors& errors, bool skips_invalid, bool of_sequences);

}  // namespace per::cuda

#include "backend/draw_outcome.h"

#include <cinttypes>

#include "rows/error.h"

namespace per {

void throw_empty(bool of_sequences) {
    throw Error(PER_ERROR_EMPTY, "no %s is live", drawn_noun(of_sequences));
}

void require_drawn(int64_t batch_size, const DrawOutcome& outcome, bool of_sequences) {
    if (outcome.n_live == 0) throw_empty(of_sequences);
    if (outcome.n_found >= batch_size) return;
    throw Error(PER_ERROR_INVALID_ARGUMENT,
                "batch_size is %" PRId64 ": only %" PRId64 " %ss can be drawn without replacement", batch_size,
                outcome.n_found, drawn_noun(of_sequences));
}

}  // namespace per

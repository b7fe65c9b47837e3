#include "backend/draw_outcome.h"

#include <cinttypes>

#include "rows/error.h"

namespace per {

void require_drawn(int64_t batch_size, const DrawOutcome& outcome) {
    if (outcome.n_live == 0) throw Error(PER_ERROR_EMPTY, "no transition is live");
    if (outcome.n_found >= batch_size) return;
    throw Error(PER_ERROR_INVALID_ARGUMENT,
                "batch_size is %" PRId64 ": only %" PRId64 " transitions can be drawn without replacement", batch_size,
                outcome.n_found);
}

}  // namespace per

#include "cuda/replay_report.h"

#include <cinttypes>
#include <cstdio>

#include "error.h"

namespace per::cuda {
namespace {

struct Line {
    uint64_t count;
    per_status status;
    const char* what;
};

}  // namespace

void report(const ReplayErrors& errors, bool skips_invalid) {
    const Line lines[] = {
        {errors.n_bad_ids, PER_ERROR_INVALID_ARGUMENT,
         "ids named no row that could be had: skipped, or given as zeros"},
        {skips_invalid ? 0 : errors.n_bad_priorities, PER_ERROR_INVALID_ARGUMENT,
         "priorities or td_errors gave no finite priority >= 0: skipped"},
        {errors.n_bad_steps, PER_ERROR_INVALID_ARGUMENT, "steps were not allowed: not added, id -1"},
        {errors.n_bad_values, PER_ERROR_INVALID_ARGUMENT, "rows of fields had a value out of range: not set"},
        {errors.n_refused_advantages, PER_ERROR_INVALID_ARGUMENT,
         "calls of per_replay_advantages() had ids that were not due, or bootstrap_values not finite: no change"},
        {errors.n_short_draws, PER_ERROR_INVALID_ARGUMENT,
         "draws without replacement had batch_size above what can be drawn: ids -1"},
        {errors.n_outdated_draws, PER_ERROR_INVALID_ARGUMENT,
         "draws of graphs had a larger n_step than the buffer has now: ids -1; they are to be captured anew"},
        {errors.n_full_steps, PER_ERROR_FULL, "steps found a full lane (overwrite is 0): not added, id -1"},
        {errors.n_empty_draws, PER_ERROR_EMPTY, "draws found no live transition: ids -1"},
    };
    char message[480] = "";
    int length = 0;
    per_status status = PER_OK;
    for (const Line& line : lines) {
        if (line.count == 0) continue;
        if (status == PER_OK) status = line.status;
        const int room = static_cast<int>(sizeof message) - length;
        if (room <= 1) break;
        length += std::snprintf(message + length, static_cast<std::size_t>(room), "%s%" PRIu64 " %s",
                                length == 0 ? "" : "; ", line.count, line.what);
    }
    if (status != PER_OK) throw Error(status, "%s", message);
}

}  // namespace per::cuda

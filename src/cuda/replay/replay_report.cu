// Turns the errors that a device has counted in the calls of a replay buffer into an Error with a message.
#include <string>

#include "base/error.h"
#include "cuda/replay/replay_state.h"

namespace per::cuda {
namespace {

struct Line {
    uint64_t count;
    per_status status;
    const char* what;
};

constexpr const char* refused_steps = "steps were not allowed: not added, id -1";

// The number of refused steps for each reason.
std::string reasons_of(const ReplayErrors& errors) {
    const struct {
        StepRefusal why;
        const char* what;
    } reasons[] = {
        {StepRefusal::value, "with a value out of range"},
        {StepRefusal::nan, "with a NaN (on_nan is PER_NAN_ERROR)"},
        {StepRefusal::next_mask, "ending an episode without next_mask (autoreset is PER_AUTORESET_SAME_STEP)"},
        {StepRefusal::final_observation,
         "ending an episode without its final observation, and not marked so by next_mask"},
        {StepRefusal::next_observation, "without the next observation that store_next_observation needs"},
        {StepRefusal::gap,
         "with an observation that differs from the next one of the step before (on_gap is PER_GAP_ERROR)"},
    };
    std::string text;
    for (const auto& [why, what] : reasons)
        if (const uint64_t n = errors.n_refused(why); n != 0)
            text += (text.empty() ? " (" : ", ") + std::to_string(n) + " " + what;
    return text + ")";
}

}  // namespace

void report(const ReplayErrors& errors, bool skips_invalid, bool of_sequences) {
    uint64_t n_refused = 0;
    for (int why = 0; why < n_step_refusals; ++why) n_refused += errors.n_refused(static_cast<StepRefusal>(why));
    n_refused -= errors.n_refused(StepRefusal::full);
    const Line lines[] = {
        {errors.n_bad_ids, PER_ERROR_INVALID_ARGUMENT,
         "ids named no row that could be had (never issued, or not there (any more)): skipped, or given as zeros"},
        {skips_invalid ? 0 : errors.n_bad_priorities, PER_ERROR_INVALID_ARGUMENT,
         "priorities or td_errors gave no finite priority >= 0: skipped"},
        {n_refused, PER_ERROR_INVALID_ARGUMENT, refused_steps},
        {errors.n_bad_values, PER_ERROR_INVALID_ARGUMENT, "rows of fields had a value out of range: not set"},
        {errors.n_refused_advantages, PER_ERROR_INVALID_ARGUMENT,
         "calls for advantages had ids that were not due, or bootstrap values not finite: no change"},
        {errors.n_short_draws, PER_ERROR_INVALID_ARGUMENT,
         "draws without replacement had batch_size above what can be drawn, or draws had newest above what is live: "
         "ids -1"},
        {errors.n_outdated_draws, PER_ERROR_INVALID_ARGUMENT,
         "draws of graphs had a larger n_step than the buffer has now: ids -1; capture them again"},
        {errors.n_refused(StepRefusal::full), PER_ERROR_FULL,
         "steps found a full lane, and overwrite is off: not added, id -1 (per_replay_clear() empties the "
         "buffer, per_replay_compute_capacity() computes a larger capacity)"},
        {errors.n_empty_draws, PER_ERROR_EMPTY,
         of_sequences ? "draws found no live sequence: ids -1"
                      : "draws found no live transition: ids -1 (one is live once n_step "
                        "steps of its episode, or its end, were added)"},
    };
    std::string message;
    per_status status = PER_OK;
    for (const Line& line : lines) {
        if (line.count == 0) continue;
        if (status == PER_OK) status = line.status;
        message += (message.empty() ? "" : "; ") + std::to_string(line.count) + " " + line.what;
        if (line.what == refused_steps) message += reasons_of(errors);
    }
    if (status != PER_OK) throw Error(status, "%s", message.c_str());
}

}  // namespace per::cuda

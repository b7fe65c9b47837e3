// The extent of a sequence that starts at a given row, and the return of each of its steps.
#pragma once

#include <stdint.h>

#include "rules/host_device.h"
#include "rules/window.h"

namespace per {

// A sequence of T steps with n-step returns has T + n observations: entry t belongs to step t, which bootstraps from
// entry t + n_steps[t]. The transitions of the sequence are those of the episode from its start on, at most T + n - 1:
// as many as the last return reaches. The observation after the last transition is the last entry in use; the rest is
// padding.
struct SequenceSpan {
    int64_t n_steps;        // steps to learn from, or to warm up with: the others are padding
    int64_t n_transitions;  // n_steps or more
    uint8_t last_flags;     // RowFlags of the last transition
    // True if the observation after the last transition is unknown, as the episode terminated there. The observation
    // before that transition is then repeated.
    bool repeats_last;
};

// The extent of the sequence that starts at a live row. The caller must know that the first n_known transitions of the
// sequence do not end the episode.
template <class FlagsOf>
PER_HOST_DEVICE SequenceSpan sequence_span(const Lane& lane, const WindowRules& rules, int64_t start, int64_t n_step,
                                           const FlagsOf& flags_of, int64_t n_known) {
    const int64_t steps = rules.sequence.steps;
    SequenceSpan span;
    span.n_transitions = transitions_from(lane, start, steps + n_step - 1, flags_of, n_known);
    span.n_steps = span.n_transitions < steps ? span.n_transitions : steps;
    span.last_flags = flags_of(start + span.n_transitions - 1);
    span.repeats_last = span.last_flags & row_terminated && span.last_flags & row_final_unknown;
    return span;
}

// The number of steps at the start whose windows are n_step long and do not reach the last transition.
PER_HOST_DEVICE int64_t whole_windows(const SequenceSpan& span, int64_t n_step) {
    const int64_t whole = span.n_transitions - n_step;
    return whole < 0 ? 0 : whole < span.n_steps ? whole : span.n_steps;
}

// The length of the window of step t < n_steps: n_step transitions, or those that are left.
PER_HOST_DEVICE int64_t window_of_step(const SequenceSpan& span, int64_t t, int64_t n_step) {
    const int64_t left = span.n_transitions - t;
    return left < n_step ? left : n_step;
}

// True if an entry of the observations is that of a step, or one from which a step bootstraps. The others are zeros:
// those after the last transition, and with n_step > T those between the steps and the end of the first window.
PER_HOST_DEVICE bool has_observation(const SequenceSpan& span, int64_t entry, int64_t n_step) {
    return entry < span.n_steps || (entry >= window_of_step(span, 0, n_step) && entry <= span.n_transitions);
}

// The RowFlags that say how the window of a step ends.
PER_HOST_DEVICE uint8_t window_end_flags(const SequenceSpan& span, int64_t t, int64_t window) {
    return t + window == span.n_transitions ? span.last_flags : uint8_t{row_is_step};
}

// Writes the returns of the steps t < n_steps: the sums of n_step_return(), term by term in the same order, so that
// both round alike. rewards[k] belongs to transition k; sums_out: [n_steps].
template <class Rewards>
PER_HOST_DEVICE void sequence_returns(const SequenceSpan& span, int64_t n_step, double gamma, const Rewards& rewards,
                                      double* sums_out) {
    for (int64_t t = 0; t < span.n_steps; ++t) sums_out[t] = 0.0;
    double discount = 1.0;
    for (int64_t k = 0; k < n_step; ++k) {
        const int64_t left = span.n_transitions - k;
        const int64_t end = left < span.n_steps ? left : span.n_steps;
        for (int64_t t = 0; t < end; ++t) sums_out[t] += discount * static_cast<double>(rewards[t + k]);
        discount *= gamma;
    }
}

}  // namespace per

// Hindsight relabelling (Andrychowicz et al. 2017, arXiv:1707.01495): which transitions of a batch get another goal,
// from which later step of the episode, and how the new rewards change their returns.
#pragma once

#include <stdint.h>

#include "per.h"
#include "rules/host_device.h"
#include "rules/n_step.h"
#include "rules/random.h"
#include "rules/sequence.h"
#include "rules/window.h"

namespace per {

// True if place i of a batch is relabelled, which has the probability `fraction`.
PER_HOST_DEVICE bool is_relabelled(uint64_t seed, uint64_t batch_number, int64_t i, double fraction) {
    const uint64_t random = random64(seed, batch_number, hindsight_numbers + 2 * static_cast<uint64_t>(i));
    return static_cast<double>(random >> 11) * 0x1p-53 < fraction;
}

// True if the observation after the step in `row`, which is below the head, is known.
PER_HOST_DEVICE bool next_is_known(const Lane& lane, int64_t row, uint8_t flags) {
    if (flags & row_final_unknown) return false;
    return lane.state != LaneState::running || row != lane.head - 1;
}

// The row whose next observation becomes the goal. `known` are the stored rows of the episode with a known next
// observation; `row` is one of them.
PER_HOST_DEVICE int64_t goal_row(int32_t strategy, uint64_t seed, uint64_t batch_number, int64_t i, RowRange known,
                                 int64_t row) {
    if (strategy == PER_GOAL_FINAL) return known.end - 1;
    const int64_t first = strategy == PER_GOAL_FUTURE ? row : known.first;
    const uint64_t random = random64(seed, batch_number, hindsight_numbers + 2 * static_cast<uint64_t>(i) + 1);
    return first + static_cast<int64_t>(mulhi(random, static_cast<uint64_t>(known.end - first)));
}

// The row whose next observation becomes the goal of the transition or sequence drawn in `row`. episode_first() gives
// the first stored row of its episode, episode_end() one past its last step so far.
template <class FlagsOf, class EpisodeFirst, class EpisodeEnd>
PER_HOST_DEVICE int64_t choose_goal_row(const Lane& lane, int32_t strategy, uint64_t seed, uint64_t batch_number,
                                        int64_t i, int64_t row, const FlagsOf& flags_of,
                                        const EpisodeFirst& episode_first, const EpisodeEnd& episode_end) {
    RowRange known = {row, episode_end()};
    if (!next_is_known(lane, known.end - 1, flags_of(known.end - 1))) --known.end;
    if (strategy == PER_GOAL_EPISODE) known.first = episode_first();
    return goal_row(strategy, seed, batch_number, i, known, row);
}

// The transitions of a window, as those of a sequence of one step.
PER_HOST_DEVICE SequenceSpan span_of_window(const Return& window) {
    return {1, window.n_steps, window.last_flags, window.bootstrap < window.n_steps};
}

// The entries of one place of a batch in the array of a field.
struct GoalEntries {
    int64_t length;   // all entries
    int64_t n_goals;  // the first entries, which are no padding: they get the goal if has_observation()
};

PER_HOST_DEVICE GoalEntries goal_entries(int32_t role, const SequenceSpan& span, bool is_sequence, int64_t steps,
                                         int64_t n_step) {
    if (!is_sequence || role == PER_ROLE_RECURRENT_STATE) return {1, 1};
    const bool is_observation = role == PER_ROLE_OBSERVATION;
    const int64_t length = steps + (is_observation ? n_step : 0);
    const int64_t n_goals = is_observation ? span.n_transitions + 1 : span.n_steps;
    return {length, n_goals < length ? n_goals : length};
}

// The number of newest frames of a stack that become the goal. The stack is that of the observation `distance` steps
// after the drawn transition, whose own stack reaches back by frames_before. Zeros from before the episode stay.
PER_HOST_DEVICE int64_t goal_frames(int64_t stack, bool pads_with_zeros, int64_t frames_before, int64_t distance) {
    const int64_t n_of_episode = frames_before + distance + 1;
    return pads_with_zeros && n_of_episode < stack ? n_of_episode : stack;
}

// The return of a window of n_steps with other rewards and other terminal steps. The last step was stored with
// last_flags. None of the steps may lead to an unknown observation.
PER_HOST_DEVICE Return relabelled_return(double gamma, int32_t n_steps, uint8_t last_flags, const float* rewards,
                                         const uint8_t* terminated) {
    return n_step_return(
        n_steps, gamma,
        [&](int64_t k) {
            const int truncated = k == n_steps - 1 ? last_flags & row_truncated : 0;
            return static_cast<uint8_t>(row_is_step | (terminated[k] ? row_terminated : truncated));
        },
        [&](int64_t k) { return rewards[k]; });
}

}  // namespace per

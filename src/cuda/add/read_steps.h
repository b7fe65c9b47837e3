// A warp reads 32 steps of a lane at once, a thread for each, and waits for memory once for all of them. It compares
// the observations with those announced before, and finds out how many steps can be added together.
#pragma once

#include <cstdint>

#include "cuda/add/change_lanes.h"
#include "cuda/add/given_steps.h"
#include "rules/td_error.h"

namespace per::cuda {

// A lane, and the steps of a launch that it takes.
template <class Replay, class Steps>
struct StepTask : LaneTask<Replay> {
    const Steps& steps;
    const int64_t j;          // the lane's place in the call
    int32_t announcing = -1;  // the step that announced last; -1: it was in an earlier launch
    uint32_t largest_bits;    // of the largest priority ever, and of those given to this lane

    __device__ __forceinline__ StepTask(const Replay& of_replay, const WindowRules& of_rules,
                                        typename LaneTask<Replay>::Sums& sums_out, const Steps& of_steps, int64_t of_j)
        : LaneTask<Replay>(of_replay, of_rules, sums_out, of_steps.env(of_j)),
          steps(of_steps),
          j(of_j),
          largest_bits(of_replay.state->largest_bits) {}

    __device__ __forceinline__ int64_t entry(int64_t step) const { return step * steps.n_lanes + j; }
};

// 32 steps of a lane. Bit i is about step first + i, and 0 for a step that is not given.
struct StepGroup {
    int32_t first;
    uint32_t given;
    uint32_t next_known;        // the observation after it is given
    uint32_t next_unavailable;  // the observation is marked as missing
    uint32_t terminated;
    uint32_t truncated;
    uint32_t fits;         // all its values fit the types of the buffer
    uint32_t without_nan;  // nothing is a NaN where the buffer refuses NaNs
    uint32_t rated;        // a valid priority is given with it
    uint32_t is_same;  // its observation is the one that the step before announced; useless if that step was not taken,
                       // or if next observations take no rows
    float reward;      // of the thread's own step
    float priority;    // likewise; undefined unless rated
};

__device__ __forceinline__ bool has_bit(uint32_t bits, int i) {
    return (bits >> i & 1) != 0;
}

// Reads the reward and the priority of an entry; returns false if one of them is beyond float32.
template <class Steps>
__device__ __forceinline__ bool read_numbers(const Steps& steps, int64_t entry, double epsilon, StepGroup& group) {
    bool fits = read_float(steps.reward, entry, group.reward);
    if (!steps.has_priorities()) return fits;
    float given = 0.0f;
    fits &= read_float(steps.priorities, entry, given);
    group.priority = steps.are_td_errors ? td_error_priority(&given, 1, 1, PER_CRITICS_MEAN, epsilon) : given;
    return fits;
}

// Steps whose frames are checked. Bit i stands for entry first_entry + i * n_lanes.
struct LookedAt {
    int64_t first_entry;
    uint32_t given;
    uint32_t next_known;
};

// Returns the given steps whose frames are all good. is_checked(frames, field) selects the frames, and is_good(frames,
// entry, field, span) checks one.
template <class IsChecked, class IsGood>
__device__ __forceinline__ uint32_t steps_with_good_frames(const DeviceReplay& replay, const GivenSteps& steps,
                                                           const LookedAt& looked_at, const IsChecked& is_checked,
                                                           const IsGood& is_good) {
    uint32_t good = looked_at.given;
    for (int64_t i = 0; i < 2 * replay.n_fields; ++i) {
        const GivenField& given = steps.field(i / 2);
        const DeviceField& field = replay.fields[i / 2];
        const GivenFrames& frames = i % 2 == 0 ? given.frames : given.next;
        if (frames.data == nullptr || !is_checked(frames, field)) continue;
        const uint32_t checked = looked_at.given & (i % 2 == 0 ? all_lanes : looked_at.next_known);
        good &= ~checked | steps_where(checked, field.bytes, [&](int step, const GridSpan& span) {
            return is_good(frames, looked_at.first_entry + step * steps.n_lanes, field, span);
        });
    }
    return good;
}

// Returns the given steps whose frames fit their fields.
PER_OUT_OF_LINE uint32_t steps_that_fit(const DeviceReplay& replay, const GivenSteps& steps, LookedAt looked_at) {
    return steps_with_good_frames(
        replay, steps, looked_at, [](const GivenFrames& frames, const DeviceField&) { return frames.word_bytes == 0; },
        frame_fits);
}

// Returns the given steps without a NaN in an observation.
PER_OUT_OF_LINE uint32_t steps_without_nan(const DeviceReplay& replay, const GivenSteps& steps, LookedAt looked_at) {
    return steps_with_good_frames(
        replay, steps, looked_at,
        [](const GivenFrames& frames, const DeviceField& field) {
            return field.is_observation() && is_floating(frames.dtype);
        },
        has_no_nan);
}

// The frame that step `step` announced.
template <class Task>
__device__ __forceinline__ ComparedFrame announced_by(const Task& task, const GivenField& given, int64_t step) {
    return given_frame(given.next, task.entry(step));
}

template <class Task>
__device__ __forceinline__ uint32_t steps_as_announced(const Task& task, const StepGroup& group) {
    if (!next_takes_row(task.rules)) return 0;
    const bool is_first_announced = task.announcing >= 0 && task.announcing == group.first - 1;
    uint32_t same = group.given & ((group.given & group.next_known) << 1 | (is_first_announced ? 1 : 0));
    for (int64_t i = 0; i < task.replay.n_fields && same != 0; ++i) {
        const DeviceField& field = task.replay.fields[i];
        if (!field.is_observation()) continue;
        const GivenField& given = task.steps.field(i);
        same = steps_where(same, field.bytes, [&](int bit, const GridSpan& span) {
            const int32_t step = group.first + bit;
            return same_frame(announced_by(task, given, step - 1), given_frame(given.frames, task.entry(step)), field,
                              span);
        });
    }
    return same;
}

// Reads steps from step `first` on. If there is only one, each thread reads it, so that they need not tell each other.
template <class Replay, class Steps>
__device__ __forceinline__ StepGroup read_steps(const StepTask<Replay, Steps>& task, int32_t first) {
    const Steps& steps = task.steps;
    const int64_t step = Steps::is_single ? 0 : first + static_cast<int64_t>(lane_of_thread());
    const auto bits = [](bool of_step) -> uint32_t {
        if constexpr (Steps::is_single) return of_step ? 1 : 0;
        return __ballot_sync(all_lanes, of_step);
    };
    const int64_t entry = task.entry(step);
    StepGroup group = {};
    group.first = first;
    bool fits = true;
    const bool is_given = step < steps.length && (!steps.has_mask() || is_true(steps.mask, entry, fits));
    const bool is_unavailable = is_given && steps.has_next_mask() && !is_true(steps.next_mask, entry, fits);
    const bool is_terminated = is_given && is_true(steps.terminated, entry, fits);
    const bool is_truncated = is_given && is_true(steps.truncated, entry, fits);
    fits &= is_given && read_numbers(steps, entry, task.replay.epsilon, group);
    group.given = bits(is_given);
    group.next_unavailable = bits(is_unavailable);
    group.next_known = bits(is_given && steps.has_next && !is_unavailable);
    group.terminated = bits(is_terminated);
    group.truncated = bits(is_truncated);
    group.rated = bits(is_given && steps.has_priorities() && is_priority(group.priority));
    group.fits = bits(fits);
    group.without_nan = bits(!(task.replay.refuses_nan && is_nan(group.reward)));
    const LookedAt looked_at = {task.entry(first), group.given, group.next_known};
    if (steps.has_casts) group.fits &= steps_that_fit(task.replay, steps, looked_at);
    if (task.replay.refuses_nan) group.without_nan &= steps_without_nan(task.replay, steps, looked_at);
    group.is_same = Steps::is_single ? 0 : steps_as_announced(task, group);
    return group;
}

// True if step i of the group brings the observation announced before it, or if the lane does not compare the two.
template <class Task>
__device__ __forceinline__ bool is_as_announced(const Task& task, const StepGroup& group, int i) {
    if (!compares_observation(task.lane, task.rules)) return true;
    const int32_t step = group.first + i;
    const bool is_in_launch = task.announcing >= 0;
    if (is_in_launch && task.announcing == step - 1 && next_takes_row(task.rules)) return has_bit(group.is_same, i);
    const int64_t slot = task.slot(compared_row(task.lane));
    for (int64_t f = 0; f < task.replay.n_fields; ++f) {
        const DeviceField& field = task.replay.fields[f];
        if (!field.is_observation()) continue;
        const GivenField& given = task.steps.field(f);
        const std::byte* const stored = task.rules.store_next_observation ? field.next_frames : field.frames;
        const ComparedFrame announced =
            is_in_launch ? announced_by(task, given, task.announcing) : stored_frame(stored, slot, field);
        const ComparedFrame observed = given_frame(given.frames, task.entry(step));
        if (__ballot_sync(all_lanes, !same_frame(announced, observed, field, span_of_warp())) != 0) return false;
    }
    return true;
}

// The number of steps from step i of the group on that are added together (window.h); 1 if it is added alone.
template <class Task>
__device__ __forceinline__ int run_length(const Task& task, const StepGroup& group, int i, bool is_announced) {
    const int64_t most = longest_run(task.lane, task.rules, task.replay.overwrite);
    const bool next_known = has_bit(group.next_known, i);
    if (most <= 1 || !is_announced || (!next_known && task.rules.store_next_observation)) return 1;
    uint32_t running = group.given & group.fits & group.without_nan & ~(group.terminated | group.truncated);
    running &= next_known ? group.next_known : ~group.next_known;
    if (next_known && next_takes_row(task.rules)) running &= group.is_same | 1u << i;
    const uint32_t others = ~(running >> i);
    const int n = others == 0 ? static_cast<int>(warp_size) : __ffs(static_cast<int>(others)) - 1;
    return n < 1 ? 1 : n < most ? n : static_cast<int>(most);
}

}  // namespace per::cuda

// Adds the steps of a lane without their frames. A warp does it.
#pragma once

#include <cstdint>

#include "cuda/add/add_kernels.h"
#include "cuda/add/change_lanes.h"
#include "cuda/add/read_steps.h"

namespace per::cuda {

// The reason for which the CPU would refuse the whole call, if any. `lane` is the lane after the step.
template <class Task>
__device__ __forceinline__ StepRefusal refusal_of(const Task& task, const Lane& lane, const StepInput& step,
                                                  const StepOutcome& outcome, bool next_unavailable) {
    const auto& replay = task.replay;
    const bool ends = step.terminated || step.truncated;
    if (ends && replay.autoreset == PER_AUTORESET_SAME_STEP && !task.steps.has_next_mask())
        return StepRefusal::next_mask;
    if (ends && !step.next_known && !next_unavailable) return StepRefusal::final_observation;
    if (!ends && !step.next_known && task.rules.store_next_observation) return StepRefusal::next_observation;
    if (outcome.is_cut && replay.on_gap == PER_GAP_ERROR) return StepRefusal::gap;
    const bool fits = used_end(lane, task.rules) - lane.first <= task.rules.ring.rows;
    return replay.overwrite || fits ? StepRefusal::none : StepRefusal::full;
}

__device__ __forceinline__ void count(uint64_t* at, int n) {
    if (lane_of_thread() == 0) atomic_add(at, static_cast<uint64_t>(n));
}

template <class Task>
__device__ __forceinline__ void refuse(Task& task, StepRefusal refusal) {
    count(&task.replay.state->errors.n_refused(refusal), 1);
    add_up(task.of_block.rejected_updates);
}

// Steps of a group that are added together: bits first .. first + count - 1.
struct StepRun {
    int first;
    int count;

    __device__ __forceinline__ uint32_t bits() const { return (all_lanes >> (warp_size - count)) << first; }
};

// The priority of a row that was given none and becomes live at a step.
template <class Task>
__device__ __forceinline__ float otherwise_at(const Task& task, int64_t step) {
    return task.steps.rows_wait() ? waiting_since(step) : task.otherwise;
}

// Counts the invalid priorities of a run's steps, and takes the valid ones into the largest priority. `own_bits` is the
// priority of the thread's own step, as bits; 0 if no row takes it.
template <class Task>
__device__ __forceinline__ void count_priorities(Task& task, const StepGroup& group, const StepRun& run,
                                                 uint32_t own_bits, const StepScratch& scratch) {
    if (const int n_bad = __popc(run.bits() & ~group.rated); n_bad != 0) {
        add_up(task.of_block.rejected_updates, static_cast<uint32_t>(n_bad));
        count(&task.replay.state->errors.n_bad_priorities, n_bad);
    }
    if (own_bits > task.largest_bits && task.steps.rows_wait())
        atomicMax(&scratch.largest_of_step[group.first + lane_of_thread()], own_bits);
    task.largest_bits = larger(task.largest_bits, __reduce_max_sync(all_lanes, own_bits));
}

// Gives the slot of a new row its version, and a count of draws of 0.
template <class Replay>
__device__ __forceinline__ void begin_row(const Replay& replay, int64_t slot) {
    if (replay.times_sampled != nullptr) replay.times_sampled[slot] = 0;
    if (replay.versions != nullptr) replay.versions[slot] = static_cast<int32_t>(replay.state->version);
}

__device__ __forceinline__ int32_t count_of(const RowRange& rows) {
    return rows.end > rows.first ? static_cast<int32_t>(rows.end - rows.first) : 0;
}

template <class Task>
__device__ __forceinline__ LaneProgress progress_of(const Task& task) {
    return {count_of(task.change.died), count_of(task.change.born)};
}

// The lane's tail after step `own` of a run. `task.lane` is the lane after the whole run. Call it before write_steps():
// it reads flags of rows that later steps of the run overwrite.
template <class Task>
__device__ __forceinline__ int64_t tail_in_run(const Task& task, const StepRun& run, int own) {
    const int64_t n_later = run.count - 1 - own;
    const int64_t oldest = used_end(task.lane, task.rules) - n_later - task.rules.ring.rows;
    const int64_t first = oldest > task.lane.first ? oldest : task.lane.first;
    const int64_t complete =
        first_with_stack(first, task.lane, task.rules.stack, [&](int64_t row) { return task.flags(row); });
    const int64_t young = task.lane.head - n_later - 1 - task.rules.max_age;
    const int64_t tail = complete > young ? complete : young;
    return tail > task.lane.tail ? tail : task.lane.tail;
}

// The lane's progress after step `own` of a run. Call it after write_steps(): the task must have the change of the
// whole run.
template <class Task>
__device__ __forceinline__ LaneProgress progress_in_run(const Task& task, const StepRun& run,
                                                        const StepOutcome& outcome, int own, int64_t tail) {
    LaneProgress progress = progress_of(task);
    const RowRange& died = task.change.died;
    if (progress.n_died != 0) progress.n_died = count_of({died.first, tail < died.end ? tail : died.end});
    if (outcome.completed.end <= outcome.completed.first) return progress;
    // Each later step of the run completes one row at most; see write_steps().
    const int64_t end = outcome.completed.end - (run.count - 1 - own);
    progress.n_born = count_of({task.change.born.first, end > outcome.completed.first ? end : outcome.completed.first});
    return progress;
}

// Writes the steps without their frames. The thread that read a step writes its row.
template <class Task>
__device__ __forceinline__ void write_steps(Task& task, const StepGroup& group, const StepRun& run,
                                            const StepOutcome& outcome, const StepScratch& scratch) {
    const auto& replay = task.replay;
    const int64_t first_step = group.first + run.first;
    if (outcome.is_cut) cut_lane(task, outcome.cut, otherwise_at(task, first_step));
    const int own = static_cast<int>(lane_of_thread()) - run.first;
    uint32_t own_bits = 0;
    if (own >= 0 && own < run.count) {
        const int64_t row = outcome.row + own;
        const int64_t slot = task.slot(row);
        const uint8_t flags = own == 0 ? outcome.flags : flags_of_step(task.lane, task.rules, row);
        const bool is_rated = has_bit(group.rated, run.first + own);
        replay.flags[slot] = flags;
        replay.rewards[slot] = group.reward;
        begin_row(replay, slot);
        replay.priorities.given[slot] = is_rated ? group.priority : not_given;
        if (is_rated && starts_sequence(task.rules, flags)) own_bits = bits_in_order(group.priority);
    }
    if (lane_of_thread() == 0 && outcome.next_row >= 0) {
        replay.flags[task.slot(outcome.next_row)] = 0;
        begin_row(replay, task.slot(outcome.next_row));
    }
    __syncwarp();
    if (task.steps.has_priorities()) count_priorities(task, group, run, own_bits, scratch);
    advance_tail(task);
    make_live(task, outcome.completed, [&](int64_t row) {
        // The last step completes the last row, the step before it the row before that, and so on. The first step
        // completes all rows that are left.
        const int64_t steps_before = run.count - (outcome.completed.end - row);
        return otherwise_at(task, first_step + (steps_before > 0 ? steps_before : 0));
    });
    add_up(task.of_block.added, static_cast<uint32_t>(run.count));
    if (outcome.flags & row_ends_episode) add_up(task.of_block.episodes);
}

// What a thread has to store about its own step.
struct WrittenDown {
    int64_t taken = -1;  // see StepScratch::entries
    LaneProgress progress;
};

// Adds step `first` of the group and the steps that form a run with it, and returns their number. A thread's
// written.progress comes from the last run that begins at or before its own step, even if that step is not in the run.
template <class Replay, class Steps>
__device__ __forceinline__ int add_run(StepTask<Replay, Steps>& task, const StepGroup& group, int first,
                                       const StepScratch& scratch, WrittenDown& written) {
    const float reward = Steps::is_single ? group.reward : __shfl_sync(all_lanes, group.reward, first);
    const StepInput step = {has_bit(group.next_known, first), has_bit(group.terminated, first),
                            has_bit(group.truncated, first), is_as_announced(task, group, first), reward != 0.0f};
    const StepRun run = {first, Steps::is_single ? 1 : run_length(task, group, first, step.matches)};
    const bool was_announced = task.lane.state == LaneState::announced && next_takes_row(task.rules);
    Lane lane = task.lane;
    StepOutcome outcome;
    if (run.count > 1) {
        outcome = advance_run(lane, task.rules, run.count, step.next_known);
    } else {
        outcome = advance(lane, task.rules, step);
        StepRefusal refusal = has_bit(group.fits, first) ? StepRefusal::none : StepRefusal::value;
        if (refusal == StepRefusal::none && !has_bit(group.without_nan, first)) refusal = StepRefusal::nan;
        if (refusal == StepRefusal::none && !outcome.dropped)
            refusal = refusal_of(task, lane, step, outcome, has_bit(group.next_unavailable, first));
        if (refusal != StepRefusal::none) {
            refuse(task, refusal);
            return 1;
        }
    }
    task.lane = lane;
    if (outcome.is_suspect) add_up(task.of_block.suspected_resets);
    if (outcome.dropped) {
        add_up(task.of_block.dropped);
        return 1;
    }
    const int own = static_cast<int>(lane_of_thread()) - first;
    const bool is_in_run = own >= 0 && own < run.count;
    const int64_t tail = is_in_run && run.count > 1 ? tail_in_run(task, run, own) : 0;
    __syncwarp();
    write_steps(task, group, run, outcome, scratch);
    if (step.next_known) task.announcing = group.first + first + run.count - 1;
    if (!Steps::is_single && own >= 0)
        written.progress =
            is_in_run && run.count > 1 ? progress_in_run(task, run, outcome, own, tail) : progress_of(task);
    if (!is_in_run) return run.count;
    const bool is_there = own == 0 ? was_announced && !outcome.is_cut : step.next_known && next_takes_row(task.rules);
    written.taken = (outcome.row + own) << entry_flag_bits | (is_there ? observation_is_there : 0) |
                    (step.next_known ? has_next_frame : 0);
    return run.count;
}

template <class Replay, class Steps>
__device__ __forceinline__ void add_group(StepTask<Replay, Steps>& task, const StepGroup& group,
                                          const StepScratch& scratch, int64_t* ids_out) {
    WrittenDown written = {-1, progress_of(task)};
    if constexpr (Steps::is_single) {
        add_run(task, group, 0, scratch, written);
    } else {
        for (uint32_t left = group.given; left != 0;) {
            const int first = __ffs(static_cast<int>(left)) - 1;
            const StepRun run = {first, add_run(task, group, first, scratch, written)};
            left &= ~run.bits();
        }
    }
    const int64_t step = group.first + static_cast<int64_t>(lane_of_thread());
    if (step >= task.steps.length) return;
    const int64_t entry = task.entry(step);
    scratch.entries[entry] = written.taken;
    if (!Steps::is_single) scratch.progress[entry] = written.progress;
    if (ids_out == nullptr) return;
    ids_out[entry] = written.taken < 0 ? -1 : task.rules.ring.id(task.env, written.taken >> entry_flag_bits);
}

template <class Task>
__device__ __forceinline__ void add_lane(Task& task, const StepScratch& scratch, int64_t* ids_out) {
    for (int32_t first = 0; first < task.steps.length; first += static_cast<int32_t>(warp_size))
        add_group(task, read_steps(task, first), scratch, ids_out);
    if (task.steps.has_priorities() && lane_of_thread() == 0) atomicMax(&task.of_block.largest_bits, task.largest_bits);
    finish(task);
}

// The warps of the grid add the lanes of a call. The whole block calls it.
template <class Replay, class Steps>
__device__ __forceinline__ void add_lanes(const Replay& replay, const Steps& steps, const StepScratch& scratch,
                                          int64_t* ids_out, LaneSums<typename Replay::Top>& sums) {
    clear(sums);
    __syncthreads();
    WindowRules rules = steps.rules;
    rules.n_step = replay.state->rules.n_step;
    if constexpr (Steps::is_single) {
        rules.stack = 1;
        rules.sequence = {};
        rules.max_age = no_max_age;
    }
    // A grid that adds single steps has a warp for each lane.
    for_each_of<Steps::is_single>(warp_span(), steps.n_lanes, [&](int64_t j) {
        StepTask<Replay, Steps> task(replay, rules, sums, steps, j);
        add_lane(task, scratch, ids_out);
    });
    finish_lanes(replay, sums);
}

}  // namespace per::cuda

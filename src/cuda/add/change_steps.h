// The change of the leaves after an add of several steps. The scale depends on the sums after each step, and a call
// must leave the same state as calls of single steps. So steps share a change only if none of them can change the scale
// of a tree; otherwise a change takes fewer steps, down to one.
#pragma once

#include <cstdint>

#include "cuda/add/add_kernels.h"
#include "cuda/add/given_steps.h"
#include "cuda/replay/changed_lanes.h"
#include "cuda/replay/leaf_change.h"
#include "rules/td_error.h"

namespace per::cuda {

// The lanes of a call.
struct LanesOfSteps {
    const GivenSteps& steps;

    __device__ __forceinline__ int64_t count() const { return steps.n_lanes; }
    __device__ __forceinline__ int64_t env(int64_t j) const { return steps.env(j); }
};

// The slots of rows that a range of steps made dead or live.
struct SlotsOfSteps {
    static constexpr bool rows_stay = false;
    static constexpr bool is_one_each = false;
    const GivenSteps& steps;
    const LaneProgress* progress;
    StepRange range;

    // The progress of the j-th lane after the first `end` steps.
    __device__ __forceinline__ LaneProgress progress_at(int64_t end, int64_t j) const {
        return end == 0 ? LaneProgress{0, 0} : progress[(end - 1) * steps.n_lanes + j];
    }

    template <class Visit>
    __device__ __forceinline__ void for_each(const DeviceReplay& replay, const Visit& visit) const {
        const Ring ring = replay.state->rules.ring;
        const int64_t threads_per_lane = range.end - range.first;
        const GridSpan span = grid_span();
        for (int64_t i = span.first; i < steps.n_lanes * threads_per_lane; i += span.step) {
            const int64_t j = i / threads_per_lane;
            const int64_t thread = i % threads_per_lane;
            const int64_t env = steps.env(j);
            const LaneProgress before = progress_at(range.first, j);
            const LaneProgress after = progress_at(range.end, j);
            const LaneChange change = replay.changes[env];
            const int64_t born_end = change.born.first + after.n_born;
            for (int64_t n = before.n_died + thread; n < after.n_died; n += threads_per_lane) {
                const int64_t row = change.died.first + n;
                // The slot is visited here unless the next row in it becomes live in this range of steps: the loop
                // below visits that row.
                const int64_t next_row = row + ring.rows;
                if (next_row < change.born.first || next_row >= born_end) visit(ring.slot(env, row), false);
            }
            for (int64_t n = before.n_born + thread; n < after.n_born; n += threads_per_lane)
                visit(ring.slot(env, change.born.first + n), true);
        }
    }
};

// The whole change. Call it in a kernel of launch_together(). If that kernel also changes the lanes, its blocks must
// meet() in between.
PER_OUT_OF_LINE void change_leaves_by_steps(const DeviceReplay& replay, const GivenSteps& steps,
                                            const StepScratch& scratch, TopChanges& top) {
    const DevicePriorities& priorities = replay.priorities;
    Meeting& meeting = priorities.tree.state->meeting;
    ChangeBounds& bounds = scratch.facts->bounds;
    const bool rebases = replay.decays && replay.state->due_birth != 0;
    SlotsOfSteps slots = {steps, scratch.progress, {0, steps.length}};
    while (slots.range.first < steps.length) {
        for (;;) {
            const int64_t n = slots.range.end - slots.range.first;
            if (n == 1 && !rebases) break;
            bound_change(replay, slots, bounds);
            meet(meeting, [&] { finish_bounds(replay, bounds); });
            if (n == 1 || bounds.are_met != 0) break;
            slots.range.end = slots.range.first + n / 2;
        }
        if (rebases) rebase_if_due(replay);
        clear(top);
        __syncthreads();
        write_change(replay, slots, top);
        meet(meeting, [&] { finish_change_of(replay); });
        rebuild(priorities.tree);
        if (has_ranks(priorities)) rebuild(priorities.ranks.tree);
        const int64_t most = 4 * (slots.range.end - slots.range.first);
        const int64_t n_left = steps.length - slots.range.end;
        slots.range = {slots.range.end, slots.range.end + (n_left < most ? n_left : most)};
        if (n_left != 0) meet(meeting);  // the next round reads the results of a rebuild
    }
    const ChangedLanes<LanesOfSteps> lanes = {{steps}, steps.length};
    for (int level = 0; level < replay.levels_of_maxima(); ++level) {
        refresh_maxima(replay, lanes, level);
        meet(meeting);
    }
    lanes.end(replay);
}

}  // namespace per::cuda

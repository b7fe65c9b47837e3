// Rows that wait for their priority (replay_state.h). Which steps are taken, and when rows become live, does not depend
// on priorities: lanes go through all steps of a launch without waiting for each other, and write down by step what
// they were given. The block that ends last finds the largest before each step, and the next kernel hands it out.
#pragma once

#include <cstdint>

#include "cuda/add/given_steps.h"
#include "cuda/add/lanes.h"
#include "cuda/add/steps.h"

namespace per::cuda {

struct EndShared {
    uint32_t largest_of_warp[n_threads / warp_size];
    bool is_last;
};

// The largest of the values of threads before this one, 0 for the first; `of_all`: of all threads. One block.
__device__ __forceinline__ uint32_t largest_before(uint32_t value, EndShared& shared, uint32_t& of_all) {
    const unsigned lane = lane_of_thread();
    uint32_t up_to = value;
    for (unsigned distance = 1; distance < warp_size; distance *= 2)
        up_to = larger(up_to, __shfl_up_sync(all_lanes, up_to, distance));
    const uint32_t below = __shfl_up_sync(all_lanes, up_to, 1);
    if (lane == warp_size - 1) shared.largest_of_warp[threadIdx.x / warp_size] = up_to;
    __syncthreads();
    uint32_t before = lane > 0 ? below : 0;
    of_all = 0;
    for (unsigned warp = 0; warp < n_threads / warp_size; ++warp) {
        if (warp < threadIdx.x / warp_size) before = larger(before, shared.largest_of_warp[warp]);
        of_all = larger(of_all, shared.largest_of_warp[warp]);
    }
    __syncthreads();
    return before;
}

// Zeroes what was written down by step. One block.
__device__ __forceinline__ void find_largest_before(const StepScratch& scratch, int64_t n_steps, uint32_t largest,
                                                    EndShared& shared) {
    for (int64_t first = 0; first < n_steps; first += n_threads) {
        const int64_t step = first + threadIdx.x;
        const bool is_step = step < n_steps;
        uint32_t of_all;
        const uint32_t before = largest_before(is_step ? scratch.largest_of_step[step] : 0, shared, of_all);
        if (is_step) {
            scratch.largest_of_step[step] = 0;
            scratch.largest_before[step] = larger(largest, before);
        }
        largest = larger(largest, of_all);
    }
}

// The last block of a launch, after all lanes are changed.
__device__ __forceinline__ void end_launch(const DeviceReplay& replay, const GivenSteps& steps,
                                           const StepScratch& scratch, bool ends_step, EndShared& shared) {
    ReplayState& state = *replay.state;
    if (steps.rows_wait()) find_largest_before(scratch, steps.length, state.largest_bits, shared);
    __syncthreads();
    if (threadIdx.x != 0) return;
    const uint32_t waiting_end = state.pending.waiting_end;
    scratch.facts->has_waiting = waiting_end != 0;
    // It only grows from step to step.
    if (waiting_end != 0)
        state.change.largest_bits = larger(state.change.largest_bits, scratch.largest_before[waiting_end - 1]);
    if (ends_step) take_in(state);
}

// The kernel after that of end_launch().
__device__ __forceinline__ void give_to_waiting(const DeviceReplay& replay, const GivenSteps& steps,
                                                const StepScratch& scratch) {
    if (!scratch.facts->has_waiting) return;
    const Ring ring = replay.state->rules.ring;
    const GridSpan span = warp_span();
    for (int64_t j = span.first; j < steps.n_lanes; j += span.step) {
        const int64_t env = steps.env(j);
        const RowRange born = replay.changes[env].born;
        for (int64_t row = born.first + lane_of_thread(); row < born.end; row += warp_size) {
            float& given = replay.priorities.given[ring.slot(env, row)];
            if (is_waiting(given)) given = __uint_as_float(scratch.largest_before[step_of_waiting(given)]);
        }
    }
}

}  // namespace per::cuda

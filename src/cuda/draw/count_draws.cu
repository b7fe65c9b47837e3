// Counts how often rows are drawn, with keep_times_sampled.
#include <cstdint>

#include "cuda/draw/live_draw.h"
#include "cuda/replay/leaf_change.h"
#include "cuda/tree/live_set.h"

namespace per::cuda {
namespace {

// Counts up to 2^31 - 1. Several threads may count draws of the same row.
__device__ __forceinline__ void count_draw(int32_t* times_sampled) {
    int32_t before = 0;
    while (before != INT32_MAX) {
        const int32_t found = atomicCAS(times_sampled, before, before + 1);
        if (found == before) return;
        before = found;
    }
}

// Counts the draws of the n rows of a batch without replacement, and removes rows that are used up from the live set.
// Each row occurs once, and so belongs to one thread.
__device__ __forceinline__ void use_up(const DeviceReplay& replay, const DrawMemory& memory, int64_t n) {
    uint64_t n_used_up = 0;
    const GridSpan span = grid_span();
    for (int64_t i = span.first; i < n; i += span.step) {
        const int64_t slot = memory.slots[i];
        if (++replay.times_sampled[slot] != replay.max_times_sampled) continue;
        replay.flags[slot] |= row_is_used_up;
        erase(replay.priorities.live, slot);
        ++n_used_up;
    }
    n_used_up = sum_of_warp(n_used_up);
    if (lane_of_thread() == 0 && n_used_up != 0) atomic_add(&replay.state->n_live, -static_cast<int64_t>(n_used_up));
}

// The slots of rows that are used up.
struct UsedUpSlots {
    static constexpr bool rows_stay = true;
    static constexpr bool is_one_each = false;
    const DrawMemory& memory;
    int64_t n;  // rows of the batch; 0 where nothing was drawn

    template <class Visit>
    __device__ __forceinline__ void for_each(const DeviceReplay& replay, const Visit& visit) const {
        const GridSpan span = grid_span();
        for (int64_t i = span.first; i < n; i += span.step)
            if (is_used_up(replay, memory.slots[i])) visit(memory.slots[i]);
    }

    template <class Visit>
    __device__ __forceinline__ void for_each_group(const DeviceReplay& replay, const Visit& visit) const {
        for_each(replay, visit);
    }
};

// The slot of a row of the batch; -1 if nothing was drawn.
__device__ __forceinline__ int64_t drawn_slot(const DrawMemory& memory, bool is_drawn, int64_t i) {
    return is_drawn ? memory.slots[i] : -1;
}

// ------------------------------------------------------------------------------------------------------------ kernels

__global__ void __launch_bounds__(n_threads, 1)
    count_draws_kernel(const __grid_constant__ DeviceReplay replay, const __grid_constant__ DrawMemory memory,
                       const __grid_constant__ DrawPlan plan) {
    const bool is_drawn = can_draw(replay, memory, plan);
    const GridSpan span = grid_span();
    for (int64_t i = span.first; is_drawn && i < plan.n_rows(); i += span.step)
        count_draw(&replay.times_sampled[memory.slots[i]]);
    if (plan.rows.batch.times_sampled == nullptr) return;
    // A row may occur several times in the batch: its count is final only when all blocks have counted.
    meet(replay.priorities.tree.state->meeting);
    for (int64_t i = span.first; i < plan.n_rows(); i += span.step)
        write_times_sampled(replay, plan.rows.batch, i, drawn_slot(memory, is_drawn, i));
}

// The same for draws without replacement, which may use rows up.
__global__ void __launch_bounds__(n_threads, 1)
    use_up_draws_kernel(const __grid_constant__ DeviceReplay replay, const __grid_constant__ DrawMemory memory,
                        const __grid_constant__ DrawPlan plan, bool rebuilds) {
    PER_SHARED(TopChanges, top);
    clear(top);
    __syncthreads();
    const bool is_drawn = can_draw(replay, memory, plan);
    const int64_t n = is_drawn ? plan.rows.n : 0;
    use_up(replay, memory, n);
    // Several rows share a word of live bits, from which other blocks may still have to erase rows.
    meet(replay.priorities.tree.state->meeting);
    change_leaves(replay, UsedUpSlots{memory, n}, top, rebuilds);
    const GridSpan span = grid_span();
    for (int64_t i = span.first; i < plan.rows.n; i += span.step)
        write_times_sampled(replay, plan.rows.batch, i, drawn_slot(memory, is_drawn, i));
}

}  // namespace

void queue_count_draws(const DeviceReplay& replay, const DrawMemory& memory, const DrawPlan& plan,
                       cudaStream_t stream) {
    if (replay.max_times_sampled != 0)
        return queue_change(replay, grid_of_change(replay.priorities.tree, plan.rows.n), stream, use_up_draws_kernel,
                            memory, plan);
    launch_together(stream, {blocks_for(plan.n_rows(), n_threads, replay.priorities.tree.max_blocks)},
                    count_draws_kernel, replay, memory, plan);
}

void load_count_kernels() {
    load_kernels(count_draws_kernel, use_up_draws_kernel);
}

}  // namespace per::cuda

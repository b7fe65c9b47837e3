// The steps in which the sums of a tree follow its leaves. Between each two every thread of the grid must have ended
// the first.
#pragma once

#include <cstdint>

#include "cuda/tree/sum_tree.h"

namespace per::cuda {

// What the decisions about the scale need to know, from all threads of the grid.
struct Survey {
    uint32_t largest_bits = 0;
    uint64_t n_valid = 0;
    WideSum sum = {0, 0};
};

__device__ __forceinline__ void add_to_state(TreeState& state, const Survey& survey) {
    const uint32_t largest_bits = __reduce_max_sync(all_lanes, survey.largest_bits);
    const uint64_t n_valid = sum_of_warp(survey.n_valid);
    const WideSum sum = sum_of_warp(survey.sum);
    if (lane_of_thread() != 0) return;
    if (largest_bits != 0) atomicMax(&state.largest_bits, largest_bits);
    if (n_valid != 0) atomic_add(&state.n_valid, n_valid);
    atomic_add_wide(&state.sum, sum);
}

__device__ __forceinline__ float largest_priority(const TreeState& state) {
    return __uint_as_float(state.largest_bits);
}

// One thread.
__device__ __forceinline__ void choose_scale(TreeState& state, int64_t n_priorities) {
    if (state.largest_bits == 0) return;
    state.scale = rebuilt_scale(largest_priority(state), state.sum.high, state.sum.low, n_priorities);
}

// ---- after leaves and sums were changed

// One block, after the sums have been changed or made anew.
__device__ __forceinline__ void add_up_total(const DeviceTree& tree, TopRow& row, bool is_rebuilt) {
    TreeState& state = *tree.state;
    load_top_row(tree, row);
    if (threadIdx.x != 0) return;
    state.total = total_of(row);
    state.largest_bits = 0;
    state.n_valid = 0;
    state.sum = {0, 0};
    if (is_rebuilt || state.plan == plan_anew) {
        state.low_water = low_water(state.total, tree.capacity);
        state.plan = plan_add;
    } else if (state.total != 0 && state.total < state.low_water) {
        state.plan = plan_rebuild;
    }
}

// One block. A change that only wrote leaves goes on to the rebuild.
__device__ __forceinline__ void finish_batch(const DeviceTree& tree, TopRow& row) {
    TreeState& state = *tree.state;
    if (state.plan != plan_rebuild) {
        add_up_total(tree, row, false);
    } else if (threadIdx.x == 0) {
        state.largest_bits = 0;
        state.n_valid = 0;
        state.sum = {0, 0};
    }
}

// ---- the steps of a rebuild

__device__ __forceinline__ void survey_leaves(const DeviceTree& tree) {
    Survey survey;
    const GridSpan span = grid_span();
    for (int64_t i = span.first; i < tree.capacity; i += span.step) {
        const uint32_t bits = __float_as_uint(tree.leaves[i]);
        survey.largest_bits = bits > survey.largest_bits ? bits : survey.largest_bits;
    }
    add_to_state(*tree.state, survey);
}

__device__ __forceinline__ void sum_leaves(const DeviceTree& tree) {
    TreeState& state = *tree.state;
    if (state.largest_bits == 0) return;
    const double factor = power_of_two(scale_for_largest(largest_priority(state)));
    WideSum sum = {0, 0};
    const GridSpan span = grid_span();
    for (int64_t i = span.first; i < tree.capacity; i += span.step)
        sum = add_wide(sum, {mass_of(tree.leaves[i], factor), 0});
    sum = sum_of_warp(sum);
    if (lane_of_thread() == 0) atomic_add_wide(&state.sum, sum);
}

// Sums of one level from those of the level below, or from what leaf_at(i) gives for leaf i: a warp a node.
template <class LeafAt>
__device__ __forceinline__ void refresh_level(const DeviceSums& sums, int level, const LeafAt& leaf_at) {
    const unsigned lane = lane_of_thread();
    const int64_t n_nodes = sums.n_nodes[level - 1] / fan_out;
    const GridSpan span = warp_span();
    for (int64_t node = span.first; node < n_nodes; node += span.step) {
        const int64_t child = node * fan_out + lane;
        const uint64_t sum = sum_of_warp(level == 1 ? leaf_at(child) : sums.sums[level - 1][child]);
        if (lane == 0) sums.sums[level][node] = sum;
    }
}

__device__ __forceinline__ void refresh_level(const DeviceTree& tree, int level) {
    const double factor = power_of_two(tree.state->scale);
    refresh_level(tree, level, [&](int64_t leaf) { return mass_of(tree.leaves[leaf], factor); });
}

__device__ __forceinline__ void rebuild_in_one_block(const DeviceTree& tree, TopRow& row) {
    survey_leaves(tree);
    __syncthreads();
    sum_leaves(tree);
    __syncthreads();
    if (threadIdx.x == 0) choose_scale(*tree.state, tree.capacity);
    __syncthreads();
    for (int level = 1; level < tree.n_levels; ++level) {
        refresh_level(tree, level);
        __syncthreads();
    }
    add_up_total(tree, row, true);
}

}  // namespace per::cuda

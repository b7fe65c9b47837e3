// The steps of one change of leaves (mass.h) on the device. Rows, live bits and given priorities are as they will be;
// leaves of the slots that `Slots` names follow them. Between each two steps every thread of the grid must have ended
// the first.
//
//   struct Slots {
//       // Calls visit(slot), the threads of the grid sharing the slots: some of which may come more than once.
//       void for_each(const DeviceReplay& replay, const Visit& visit) const;
//       // The same of at least one in each 32 that are side by side from a multiple of 32 on.
//       void for_each_group(const DeviceReplay& replay, const Visit& visit) const;
//   };
#pragma once

#include <cstdint>

#include "cuda/replay/ranks.h"
#include "cuda/replay/replay_state.h"
#include "cuda/tree/tree_steps.h"
#include "rules/priority.h"

namespace per::cuda {

// Bits in the order of the numbers; -0 becomes 0.
__device__ __forceinline__ uint32_t bits_in_order(float priority) {
    return __float_as_uint(priority + 0.0f);
}

__device__ __forceinline__ bool has_ranks(const DevicePriorities& priorities) {
    return priorities.ranks.state != nullptr;
}

__device__ __forceinline__ float leaf_of(const DevicePriorities& priorities, int64_t slot, double alpha) {
    return is_live(priorities.live, slot) ? leaf_priority(priorities.given[slot], alpha) : 0.0f;
}

// For empty trees, whose scale follows what is written: the largest leaf of that.
template <class Slots>
__device__ __forceinline__ void survey_change(const DeviceReplay& replay, const Slots& slots) {
    const DevicePriorities& priorities = replay.priorities;
    const bool is_empty = priorities.tree.state->total == 0;
    const bool has_empty_ranks = has_ranks(priorities) && priorities.ranks.tree.state->total == 0;
    if (!is_empty && !has_empty_ranks) return;
    const double alpha = replay.state->alpha;
    Survey leaves;
    Survey weights;
    slots.for_each(replay, [&](int64_t slot) {
        const uint32_t leaf = __float_as_uint(is_empty ? leaf_of(priorities, slot, alpha) : 0.0f);
        leaves.largest_bits = leaf > leaves.largest_bits ? leaf : leaves.largest_bits;
        if (!has_empty_ranks) return;
        const uint32_t weight = __float_as_uint(weight_of(priorities.ranks, bucket_of(priorities, slot)));
        weights.largest_bits = weight > weights.largest_bits ? weight : weights.largest_bits;
    });
    if (is_empty) add_to_state(*priorities.tree.state, leaves);
    if (has_empty_ranks) add_to_state(*priorities.ranks.tree.state, weights);
}

// One thread. Where the scale is that of a rebuild and few leaves are not 0, it follows from the largest.
__device__ __forceinline__ void plan_change(const DeviceTree& tree, const LeafChange& change) {
    TreeState& state = *tree.state;
    state.plan = plan_of(change, state.total, power_of_two(state.scale));
    if (state.plan != plan_anew) return;
    if (change.n >= few_leaves)
        state.plan = plan_rebuild;
    else if (state.largest_bits != 0)
        state.scale = scale_for_largest(largest_priority(state));
}

// One thread.
__device__ __forceinline__ void decide_change(const DeviceReplay& replay) {
    const DevicePriorities& priorities = replay.priorities;
    ReplayState& state = *replay.state;
    const int64_t n = static_cast<int64_t>(state.change.n);
    const float largest = __uint_as_float(state.change.largest_bits);
    plan_change(priorities.tree, {n, n > 0 ? leaf_priority(largest, state.alpha) : 0.0f});
    if (has_ranks(priorities)) plan_change(priorities.ranks.tree, {n, priorities.ranks.weights[rank_bucket(largest)]});
    state.change = {0, 0};
}

// What writing leaves of a tree needs to know.
struct LeafWriter {
    const DeviceTree& tree;
    const bool adds;
    const double factor;

    __device__ __forceinline__ explicit LeafWriter(const DeviceTree& of_tree)
        : tree(of_tree), adds(of_tree.state->plan != plan_rebuild), factor(power_of_two(of_tree.state->scale)) {}

    // Several threads may write the same leaf, all the same.
    __device__ __forceinline__ void write(int64_t slot, float leaf) const {
        const float before = atomicExch(&tree.leaves[slot], leaf);
        if (!adds) return;
        const uint64_t difference = mass_of(leaf, factor) - mass_of(before, factor);
        if (difference != 0) add_to_sums(tree, slot, difference);
    }
};

template <class Slots>
__device__ __forceinline__ void write_change(const DeviceReplay& replay, const Slots& slots) {
    const DevicePriorities& priorities = replay.priorities;
    const double alpha = replay.state->alpha;
    const LeafWriter leaves(priorities.tree);
    if (!has_ranks(priorities)) {
        slots.for_each(replay, [&](int64_t slot) { leaves.write(slot, leaf_of(priorities, slot, alpha)); });
        return;
    }
    const LeafWriter weights(priorities.ranks.tree);
    RankChanges changes;
    slots.for_each(replay, [&](int64_t slot) {
        leaves.write(slot, leaf_of(priorities, slot, alpha));
        const uint32_t bucket = bucket_of(priorities, slot);
        move_to_bucket(priorities.ranks, slot, bucket, changes);
        weights.write(slot, weight_of(priorities.ranks, bucket));
    });
    add_to_ranks(priorities.ranks, changes);
}

// ---- maxima, level by level

__device__ __forceinline__ uint32_t live_priority_bits(const DevicePriorities& priorities, int64_t slot) {
    return is_live(priorities.live, slot) ? bits_in_order(priorities.given[slot]) : 0;
}

__device__ __forceinline__ void refresh_live_maximum(const DevicePriorities& priorities, int level, int64_t node) {
    refresh_node(priorities.live_maximum, level, node, priorities.tree.capacity,
                 [&](int64_t slot) { return live_priority_bits(priorities, slot); });
}

__device__ __forceinline__ void refresh_smallest_leaf(const DevicePriorities& priorities, int level, int64_t node) {
    refresh_node(priorities.smallest_leaf, level, node, priorities.tree.capacity,
                 [&](int64_t slot) { return __float_as_uint(reversed_leaf(priorities.tree.leaves[slot])); });
}

// Levels of maxima that are kept; 0: none is.
PER_HOST_DEVICE int levels_of_maxima(const DevicePriorities& priorities) {
    const int n = priorities.live_maximum.n_levels;
    return n > priorities.smallest_leaf.n_levels ? n : priorities.smallest_leaf.n_levels;
}

template <class Slots>
__device__ __forceinline__ void refresh_maxima(const DeviceReplay& replay, const Slots& slots, int level) {
    const DevicePriorities& priorities = replay.priorities;
    slots.for_each_group(replay, [&](int64_t slot) {
        const int64_t node = node_above(slot, level);
        if (priorities.live_maximum.n_levels != 0) refresh_live_maximum(priorities, level, node);
        if (priorities.smallest_leaf.n_levels != 0) refresh_smallest_leaf(priorities, level, node);
    });
}

// ---- the end

// One block.
__device__ __forceinline__ void finish_change(const DeviceReplay& replay, TopRow& row) {
    finish_batch(replay.priorities.tree, row);
    if (has_ranks(replay.priorities)) finish_batch(replay.priorities.ranks.tree, row);
}

template <class Slots>
__device__ __forceinline__ void change_in_one_block(const DeviceReplay& replay, const Slots& slots, TopRow& row) {
    const DevicePriorities& priorities = replay.priorities;
    survey_change(replay, slots);
    __syncthreads();
    if (threadIdx.x == 0) decide_change(replay);
    __syncthreads();
    write_change(replay, slots);
    __syncthreads();
    for (int level = 0; level < levels_of_maxima(priorities); ++level) {
        refresh_maxima(replay, slots, level);
        __syncthreads();
    }
    finish_change(replay, row);
    __syncthreads();
    if (priorities.tree.state->plan == plan_rebuild) rebuild_in_one_block(priorities.tree, row);
    if (has_ranks(priorities) && priorities.ranks.tree.state->plan == plan_rebuild)
        rebuild_in_one_block(priorities.ranks.tree, row);
}

}  // namespace per::cuda

// Makes the sums of a tree follow its leaves: the parts of a change (mass.h) and of a rebuild. The blocks of the grid
// meet between two parts.
#pragma once

#include <cstdint>

#include "cuda/tree/sum_tree.h"

namespace per::cuda {

// ---- a change: leaves are written and their differences added to the sums, then one thread finishes it

// Returns the change of the mass of the leaf, modulo 2^64. Several threads may write the same leaf if all write the same
// value. `top`: nothing, or the TopChanges of a block, or NoTopChanges.
template <class... Top>
__device__ __forceinline__ uint64_t write_leaf(const DeviceTree& tree, double factor, int64_t index, float leaf,
                                               Top&... top) {
    const float before = atomicExch(&tree.leaves[index], leaf);
    if (is_too_large(leaf, factor)) atomicExch(&tree.state->has_too_large, 1u);
    const uint64_t difference = limited_mass_of(leaf, factor) - limited_mass_of(before, factor);
    if (difference != 0) add_to_sums(tree, top..., index, difference);
    return difference;
}

// The most leaves of a change for which the new total, of masses of at most 2^52 each, is below 2^64, as the total before
// is below 2^62. Sums modulo 2^64 are then enough.
inline constexpr int64_t few_changes = 3 << 10;

__device__ __forceinline__ WideSum wide_difference(uint64_t difference) {
    return {difference, difference >> 63 != 0 ? ~uint64_t{0} : 0};
}

// The sum of the changes of a thread. is_one: there is at most one.
template <bool is_one = false>
struct MassChanges {
    WideSum difference = {0, 0};

    __device__ __forceinline__ void add(uint64_t change) { difference = add_wide(difference, wide_difference(change)); }
    __device__ __forceinline__ WideSum of_warp() const { return sum_of_warp(difference); }
};
template <>
struct MassChanges<true> {
    uint64_t difference = 0;

    __device__ __forceinline__ void add(uint64_t change) { difference = change; }
    // Modulo 2^64. The upper piece has 26 bits and the sign.
    __device__ __forceinline__ uint64_t of_warp() const {
        const uint32_t upper = __reduce_add_sync(all_lanes, static_cast<uint32_t>(difference >> bits_of_piece));
        return sum_of_pieces(difference, 0) +
               (static_cast<uint64_t>(int64_t{static_cast<int32_t>(upper)}) << bits_of_piece);
    }
};

__device__ __forceinline__ void add_to_sum(TreeState& state, const WideSum& difference) {
    if ((difference.low | difference.high) != 0) atomic_add_wide(&state.sum, difference);
}
__device__ __forceinline__ void add_to_sum(TreeState& state, uint64_t difference) {
    add_if_any(&state.sum.low, difference);
}

// All threads of a warp call it after their last leaf.
template <bool is_one>
__device__ __forceinline__ void note_changes(const DeviceTree& tree, const MassChanges<is_one>& changes) {
    const auto difference = changes.of_warp();
    if (lane_of_thread() == 0) add_to_sum(*tree.state, difference);
}

// One thread calls it. After it all blocks must call rebuild(), which carries out the plan. are_few: at most few_changes
// leaves changed, and MassChanges<true> noted all of them.
template <bool are_few = false>
__device__ __forceinline__ void finish_change(const DeviceTree& tree) {
    TreeState& state = *tree.state;
    const WideSum total = are_few ? WideSum{state.total + state.sum.low, 0} : add_wide({state.total, 0}, state.sum);
    const bool has_too_large = state.has_too_large != 0;
    state.plan = state.is_scale_fixed != 0 ? plan_at_fixed_scale(total, has_too_large)
                                           : plan_after_change(state.total, total, has_too_large, state.low_water);
    if (!are_few && state.is_scale_due != 0) state.plan = plan_rebuild;
    if (!are_few) state.is_scale_due = 0;
    state.total = total.low;
    state.sum.low = 0;
    if (!are_few) state.sum.high = 0;
    state.has_too_large = 0;
}

// ---- a rebuild

// The number of nodes that a warp reads at once, so that it waits for memory an eighth as often.
inline constexpr int n_visited = 8;
using VisitedNodes = int64_t[n_visited];  // -1: none

// Calls visit(nodes) for the nodes of a level that belong to the warp, up to n_visited at a time. If not `all`, it
// leaves out nodes with a sum of 0.
template <class Visit>
__device__ __forceinline__ void for_each_node(const DeviceSums& sums, int level, bool all, const Visit& visit) {
    const int64_t n_nodes = sums.n_nodes[level - 1] / fan_out;
    const unsigned lane = lane_of_thread();
    const GridSpan span = warp_span();
    for (int64_t first = span.first * fan_out; first < n_nodes; first += span.step * fan_out) {
        const bool is_one = first + lane < n_nodes && (all || sums.sums[level][first + lane] != 0);
        unsigned left = __ballot_sync(all_lanes, is_one);
        while (left != 0) {
            VisitedNodes nodes;
            for (int64_t& node : nodes) {
                node = left != 0 ? first + __ffs(static_cast<int>(left)) - 1 : -1;
                left &= left - 1;
            }
            visit(nodes);
        }
    }
}

// Calls visit(leaf) for the leaves that belong to the warp: for all of them if the sums are not valid (plan_rebuild),
// else for those below a sum other than 0. There may be further calls of visit(0).
template <class Visit>
__device__ __forceinline__ void for_each_leaf(const DeviceTree& tree, const Visit& visit) {
    const unsigned lane = lane_of_thread();
    for_each_node(tree, 1, tree.state->plan == plan_rebuild, [&](const VisitedNodes& nodes) {
        float leaves[n_visited];
        for (int i = 0; i < n_visited; ++i) leaves[i] = nodes[i] < 0 ? 0.0f : tree.leaves[nodes[i] * fan_out + lane];
        for (const float leaf : leaves) visit(leaf);
    });
}

__device__ __forceinline__ float largest_leaf(const TreeState& state) {
    return __uint_as_float(state.largest_bits);
}

__device__ __forceinline__ void find_largest_leaf(const DeviceTree& tree) {
    uint32_t largest_bits = 0;
    for_each_leaf(tree, [&](float leaf) { largest_bits = larger(largest_bits, __float_as_uint(leaf)); });
    largest_bits = __reduce_max_sync(all_lanes, largest_bits);
    if (lane_of_thread() == 0 && largest_bits != 0) atomicMax(&tree.state->largest_bits, largest_bits);
}

__device__ __forceinline__ void sum_leaves(const DeviceTree& tree) {
    TreeState& state = *tree.state;
    if (state.largest_bits == 0) return;
    const double factor = power_of_two(scale_for_largest(largest_leaf(state)));
    WideSum sum = {0, 0};
    for_each_leaf(tree, [&](float leaf) { sum = add_wide(sum, {mass_of(leaf, factor), 0}); });
    sum = sum_of_warp(sum);
    if (lane_of_thread() == 0) atomic_add_wide(&state.sum, sum);
}

// One thread calls it.
__device__ __forceinline__ void choose_scale(const DeviceTree& tree) {
    TreeState& state = *tree.state;
    state.is_scale_fixed = 0;
    if (state.largest_bits == 0) return;
    state.scale = scale_of_leaves(largest_leaf(state), state.sum, tree.capacity);
}

// Computes the sums of one level from those of the level below, or from leaf_at(i) for leaf i.
template <class LeafAt>
__device__ __forceinline__ void refresh_level(const DeviceSums& sums, int level, bool all, const LeafAt& leaf_at) {
    const unsigned lane = lane_of_thread();
    for_each_node(sums, level, all, [&](const VisitedNodes& nodes) {
        uint64_t children[n_visited];
        for (int i = 0; i < n_visited; ++i) {
            const int64_t child = nodes[i] * fan_out + lane;
            children[i] = nodes[i] < 0 ? 0 : level == 1 ? leaf_at(child) : sums.sums[level - 1][child];
        }
        for (int i = 0; i < n_visited; ++i) {
            if (nodes[i] < 0) break;
            const uint64_t sum = sum_of_warp(children[i]);
            if (lane == 0) sums.sums[level][nodes[i]] = sum;
        }
    });
}

__device__ __forceinline__ void refresh_level(const DeviceTree& tree, int level) {
    const double factor = power_of_two(tree.state->scale);
    refresh_level(tree, level, tree.state->plan == plan_rebuild,
                  [&](int64_t leaf) { return mass_of(tree.leaves[leaf], factor); });
}

// One warp calls it.
__device__ __forceinline__ void finish_rebuild(const DeviceTree& tree) {
    TreeState& state = *tree.state;
    uint64_t total = 0;
    for (int64_t i = lane_of_thread(); i < tree.n_top; i += warp_size) total += tree.top[i];
    total = sum_of_warp(total);
    if (lane_of_thread() != 0) return;
    state.total = total;
    state.low_water = low_water(state.total, tree.capacity);
    state.plan = plan_keep;
    state.largest_bits = 0;
    state.sum = {0, 0};
}

// Computes all sums at the tree's scale. Call it right after a meet() of all blocks.
__device__ __forceinline__ void refresh_sums(const DeviceTree& tree) {
    for (int level = 1; level < tree.n_levels; ++level) {
        refresh_level(tree, level);
        meet(tree.state->meeting);
    }
    if (warp_span().first == 0) finish_rebuild(tree);
}

// Chooses a scale for the leaves, and computes the sums.
PER_OUT_OF_LINE void make_anew(const DeviceTree& tree) {
    find_largest_leaf(tree);
    meet(tree.state->meeting);
    sum_leaves(tree);
    meet(tree.state->meeting, [&] { choose_scale(tree); });
    refresh_sums(tree);
}

// Carries out the plan of finish_change(), unless another launch does.
__device__ __forceinline__ void rebuild(const DeviceTree& tree, bool rebuilds = true) {
    if (tree.state->plan != plan_keep && rebuilds) make_anew(tree);
}

}  // namespace per::cuda

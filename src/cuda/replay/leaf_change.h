// One change of leaves (mass.h) on the device. Rows and live bits must have their new values before the change begins,
// and the priorities.given of a slot when the slot is visited. The change updates the leaves of the slots of a `Slots`,
// which has these members:
//
//   struct Slots {
//       // True if the slots keep their rows. Then each move to another bucket counts as a change of ranks. If slots
//       // get new rows, these must be counted before: a new row may have the bucket of the row that it replaces.
//       static constexpr bool rows_stay;
//       // True if a thread visits at most one slot, and the grid at most few_changes.
//       static constexpr bool is_one_each;
//       // Calls visit(slot), visit(slot, false) for a slot that has no live row yet, or visit(slot, true, &priority)
//       // for one whose row is known to be live, and to have this priority. The threads of the grid share
//       // the slots, some of which may come more than once. All threads of a warp call it.
//       void for_each(const DeviceReplay& replay, const Visit& visit) const;
//       // Calls visit(slot) for at least one slot of each aligned group of 32 that has slots of for_each().
//       void for_each_group(const DeviceReplay& replay, const Visit& visit) const;
//   };
#pragma once

#include <cstdint>

#include "cuda/replay/ranks.h"
#include "cuda/replay/replay_state.h"
#include "cuda/tree/tree_change.h"
#include "cuda/tree/tree_kernels.h"
#include "rules/freshness.h"
#include "rules/priority.h"

namespace per::cuda {

// The bits of a priority, which is not negative. They have the order of the numbers, as -0 becomes 0.
__device__ __forceinline__ uint32_t bits_in_order(float priority) {
    return __float_as_uint(priority + 0.0f);
}

// Out of line, so that buffers whose priorities do not decay have none of it in their loops.
PER_OUT_OF_LINE float decayed_leaf_of(const DeviceReplay& replay, int64_t slot, double alpha, Freshness freshness) {
    return decayed_leaf(replay.priorities.given[slot], alpha, freshness, birth_of(replay, slot));
}

template <class Replay>
__device__ __forceinline__ float leaf_of(const Replay& replay, int64_t slot, double alpha, bool may_be_live = true,
                                         const float* priority = nullptr) {
    const DevicePriorities& priorities = replay.priorities;
    if (!may_be_live || (priority == nullptr && !is_live(priorities.live, slot))) return 0.0f;
    if (replay.decays) return decayed_leaf_of(replay, slot, alpha, replay.state->freshness);
    return priority_to_alpha(priority != nullptr ? *priority : priorities.given[slot], alpha);
}

// The effect of a change on the ranks of one row.
struct RankMove {
    uint64_t weight;  // the change of its mass
    RankChange change;
};

PER_OUT_OF_LINE RankMove move_in_ranks(const DevicePriorities& priorities, int64_t slot, bool may_be_live) {
    const DeviceRanks& ranks = priorities.ranks;
    const uint32_t bucket = may_be_live ? bucket_of(priorities, slot) : 0;
    const RankChange change = move_to_bucket(ranks, slot, bucket);
    return {write_leaf(ranks.tree, power_of_two(ranks.tree.state->scale), slot, weight_of(ranks, bucket)), change};
}

PER_OUT_OF_LINE void note_moves(const DeviceRanks& ranks, MassChanges<> weights, RankChanges changes) {
    note_changes(ranks.tree, weights);
    add_to_ranks(ranks, changes);
}

template <class Replay, class Slots, class Top>
__device__ __forceinline__ void write_change(const Replay& replay, const Slots& slots, Top& top) {
    const DevicePriorities& priorities = replay.priorities;
    const double alpha = replay.state->alpha;
    const double factor = power_of_two(priorities.tree.state->scale);
    MassChanges<Slots::is_one_each> leaves;
    MassChanges<> weights;
    RankChanges changes;
    slots.for_each(replay, [&](int64_t slot, bool may_be_live = true, const float* priority = nullptr) {
        const float leaf = leaf_of(replay, slot, alpha, may_be_live, priority);
        leaves.add(write_leaf(priorities.tree, factor, slot, leaf, top));
        if (!replay.keeps_ranks()) return;
        RankMove move = move_in_ranks(priorities, slot, may_be_live);
        move.change.is_change &= Slots::rows_stay;
        weights.add(move.weight);
        changes.add(move.change);
    });
    note_changes(priorities.tree, leaves);
    if (replay.keeps_ranks()) note_moves(priorities.ranks, weights, changes);
    write_top(priorities.tree, top);
}

// ---- several changes that are made as one if none of them can change a scale

// The total gains and losses of the leaves of a tree in several changes. Between these changes the sum of the leaves
// never rises by more than `gained`, nor falls by more than `lost`.
struct MassBounds {
    WideSum gained;
    WideSum lost;
    uint32_t has_too_large;  // a leaf becomes too large for the scale

    __device__ __forceinline__ void add(const DeviceTree& tree, double factor, int64_t slot, float leaf) {
        gained = add_wide(gained, {limited_mass_of(leaf, factor), 0});
        lost = add_wide(lost, {limited_mass_of(tree.leaves[slot], factor), 0});
        has_too_large |= is_too_large(leaf, factor) ? 1u : 0u;
    }

    // Adds the bounds of a thread's leaves to those of all. All threads of a warp call it after their last leaf.
    __device__ __forceinline__ void add_to(MassBounds& all) const {
        const WideSum gained_by_warp = sum_of_warp(gained);
        const WideSum lost_by_warp = sum_of_warp(lost);
        const bool has_too_large_in_warp = __ballot_sync(all_lanes, has_too_large != 0) != 0;
        if (lane_of_thread() != 0) return;
        atomic_add_wide(&all.gained, gained_by_warp);
        atomic_add_wide(&all.lost, lost_by_warp);
        if (has_too_large_in_warp) atomicExch(&all.has_too_large, 1u);
    }
};

// Lies in device memory. The sums are zero between launches.
struct ChangeBounds {
    MassBounds leaves;
    MassBounds weights;  // of ranks
    int64_t due_birth;   // the latest for which a rebase is due; 0: none
    uint32_t are_met;    // whether the changes bounded last can be made as one
};

// Bounds the effect of write_change() on the same slots.
template <class Slots>
__device__ __forceinline__ void bound_change(const DeviceReplay& replay, const Slots& slots, ChangeBounds& bounds) {
    const DevicePriorities& priorities = replay.priorities;
    const DeviceRanks& ranks = priorities.ranks;
    const double alpha = replay.state->alpha;
    const double factor = power_of_two(priorities.tree.state->scale);
    MassBounds leaves = {};
    MassBounds weights = {};
    slots.for_each(replay, [&](int64_t slot, bool may_be_live = true) {
        leaves.add(priorities.tree, factor, slot, leaf_of(replay, slot, alpha, may_be_live));
        if (replay.decays && may_be_live && is_live(priorities.live, slot)) {
            const int64_t birth = birth_of(replay, slot);
            if (is_rebase_due(replay.state->freshness, birth)) atomic_max(&bounds.due_birth, birth);
        }
        if (!has_ranks(priorities)) return;
        const uint32_t bucket = may_be_live ? bucket_of(priorities, slot) : 0;
        weights.add(ranks.tree, power_of_two(ranks.tree.state->scale), slot, weight_of(ranks, bucket));
    });
    leaves.add_to(bounds.leaves);
    if (has_ranks(priorities)) weights.add_to(bounds.weights);
}

__device__ __forceinline__ bool surely_keeps_scale(const TreeState& state, const MassBounds& bounds) {
    return surely_keeps_scale(state.total, bounds.gained, bounds.lost, bounds.has_too_large != 0, state.low_water,
                              state.is_scale_fixed != 0);
}

// One thread calls it. A birth for which a rebase is due stays in the state until a change of one step makes it.
__device__ __forceinline__ void finish_bounds(const DeviceReplay& replay, ChangeBounds& bounds) {
    const DevicePriorities& priorities = replay.priorities;
    replay.state->due_birth = bounds.due_birth;
    const bool are_met = bounds.due_birth == 0 && surely_keeps_scale(*priorities.tree.state, bounds.leaves) &&
                         (!has_ranks(priorities) || surely_keeps_scale(*priorities.ranks.tree.state, bounds.weights));
    bounds = {};
    bounds.are_met = are_met ? 1 : 0;
}

// ---- maxima, level by level

PER_OUT_OF_LINE void refresh_live_maximum(const DevicePriorities& priorities, int level, int64_t node) {
    const uint32_t live = level == 0 ? priorities.live.words[node] : 0;
    refresh_node(priorities.live_maximum, level, node, priorities.given,
                 [&](int i, float given) { return (live >> i & 1) != 0 ? bits_in_order(given) : 0; });
}

PER_OUT_OF_LINE void refresh_smallest_leaf(const DevicePriorities& priorities, int level, int64_t node) {
    refresh_node(priorities.smallest_leaf, level, node, priorities.tree.leaves,
                 [](int, float leaf) { return __float_as_uint(reversed_leaf(leaf)); });
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

// ---- a rebase

// Makes room for the leaf of the latest birth for which a rebase is due, if there is one. The whole grid calls it, after
// all blocks can read that birth.
PER_OUT_OF_LINE void rebase_if_due(const DeviceReplay& replay) {
    ReplayState& state = *replay.state;
    if (state.due_birth == 0) return;
    const DevicePriorities& priorities = replay.priorities;
    TreeState& tree = *priorities.tree.state;
    const int64_t reference = reference_for(state.freshness, state.due_birth);
    const int64_t raised = reference - state.freshness.reference;
    const GridSpan span = grid_span();
    for (int64_t slot = span.first; slot < priorities.tree.capacity && tree.total != 0; slot += span.step)
        priorities.tree.leaves[slot] = rebased_leaf(priorities.tree.leaves[slot], raised);
    meet(tree.meeting, [&] {
        state.freshness.reference = reference;
        state.due_birth = 0;
        if (tree.total == 0 && tree.is_scale_fixed == 0) return;
        if (rebase_keeps_masses(tree.scale, raised))
            tree.scale += static_cast<int32_t>(raised);
        else
            tree.is_scale_due = 1;
    });
    const DeviceMaximum& smallest = priorities.smallest_leaf;
    for (int level = 0; level < smallest.n_levels; ++level) {
        for (int64_t node = span.first; node < smallest.n_nodes[level]; node += span.step)
            refresh_smallest_leaf(priorities, level, node);
        meet(tree.meeting);
    }
}

// ---- the end

PER_OUT_OF_LINE void finish_change_of_ranks(const DeviceRanks& ranks) {
    finish_change(ranks.tree);
}

// One thread calls it.
template <bool are_few = false, class Replay>
__device__ __forceinline__ void finish_change_of(const Replay& replay) {
    finish_change<are_few>(replay.priorities.tree);
    if (replay.keeps_ranks()) finish_change_of_ranks(replay.priorities.ranks);
}

// The whole change. Call it in a kernel of launch_together(), after clear(top) and a barrier of the block.
template <class Replay, class Slots, class Top>
__device__ __forceinline__ void change_leaves(const Replay& replay, const Slots& slots, Top& top, bool rebuilds) {
    const DevicePriorities& priorities = replay.priorities;
    Meeting& meeting = priorities.tree.state->meeting;
    if (replay.decays) rebase_if_due(replay);
    write_change(replay, slots, top);
    for (int level = 0; level < replay.levels_of_maxima(); ++level) {
        meet(meeting);
        refresh_maxima(replay, slots, level);
    }
    meet(meeting, [&] { finish_change_of<Slots::is_one_each>(replay); });
    rebuild(priorities.tree, rebuilds);
    if (replay.keeps_ranks()) rebuild(priorities.ranks.tree, rebuilds);
}

// Queues a kernel that calls change_leaves(). Its arguments are the buffer, `arguments`, and `rebuilds`.
template <class... Parameters, class... Arguments>
void queue_change(const DeviceReplay& replay, const Grid& grid, cudaStream_t stream, void (*kernel)(Parameters...),
                  const Arguments&... arguments) {
    const DevicePriorities& priorities = replay.priorities;
    const bool rebuilds = rebuilds_itself(priorities.tree, grid);
    launch_together(stream, grid, kernel, replay, arguments..., rebuilds);
    if (!rebuilds) queue_rebuild(priorities.tree, priorities.ranks.tree, stream);
}

}  // namespace per::cuda

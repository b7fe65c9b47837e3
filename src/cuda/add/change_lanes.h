// Changes a lane and its rows, like cpu/replay/replay_state.h on the host. A warp changes a lane: all its threads call
// these functions together, with the same arguments.
#pragma once

#include <cstdint>

#include "cuda/replay/leaf_change.h"
#include "cuda/replay/replay_state.h"
#include "cuda/runtime/dialect.h"
#include "cuda/tree/live_set.h"
#include "rules/window.h"

namespace per::cuda {

// The sums of one thread over the rows that it changes in a launch. 32-bit counts take fewer registers, and are enough:
// a launch adds fewer than 2^31 steps to a lane, and each thread handles fewer than 2^31 rows of the lane.
struct RowSums {
    int32_t n_live = 0;
    int32_t n_born = 0;
    bool has_waiting = false;  // as in PendingSums
};

// The priority of a row that was given none and becomes live.
template <class Replay>
__device__ __forceinline__ float priority_of_unrated(const Replay& replay) {
    const ReplayState& state = *replay.state;
    if (replay.max_priority == PER_MAX_EVER) return __uint_as_float(state.largest_bits);
    return state.n_live > 0 ? maximum_of(replay.priorities.live_maximum) : 1.0f;
}

__device__ __forceinline__ void extend(RowRange& range, const RowRange& by) {
    if (by.end <= by.first) return;
    if (range.end <= range.first) range.first = by.first;
    range.end = by.end;
}

// The sums over the lanes of a block, in its shared memory. Each block adds them to the numbers of the buffer only
// once, since atomics on these wait for each other. `Top` is TopChanges or NoTopChanges.
template <class Top>
struct LaneSums {
    Top live_top;     // of the sums of the live set
    uint32_t n_born;  // rows that became live; each is a change of ranks
    uint32_t n_live;  // modulo 2^32; this and the next two as in PendingSums
    uint32_t largest_bits;
    uint32_t has_waiting;
    uint32_t added;  // this and all below: see ReplayCounters
    uint32_t dropped;
    uint32_t episodes;
    uint32_t cuts;
    uint32_t suspected_resets;
    uint32_t rejected_updates;
};

// A warp calls it.
__device__ __forceinline__ void add_up(uint32_t& sum, uint32_t n = 1) {
    if (lane_of_thread() == 0) atomicAdd(&sum, n);
}

// The whole block calls it before its first lane. A barrier must follow.
template <class Top>
__device__ __forceinline__ void clear(LaneSums<Top>& sums) {
    clear(sums.live_top);
    if (threadIdx.x != 0) return;
    sums.n_born = sums.n_live = sums.largest_bits = sums.has_waiting = 0;
    sums.added = sums.dropped = sums.episodes = sums.cuts = sums.suspected_resets = sums.rejected_updates = 0;
}

// A lane that is being changed. In a PlainReplay its leaves change with its rows, as nothing that the call does to other
// lanes concerns them. Otherwise the rows are recorded in replay.changes, and their leaves change after all lanes.
template <class Replay>
struct LaneTask {
    using Sums = LaneSums<typename Replay::Top>;

    const Replay& replay;
    const WindowRules& rules;
    const float otherwise;  // priority of rows that were given none
    const int64_t env;
    Lane lane;
    LaneChange change;
    RowSums sums = {};
    Sums& of_block;

    __device__ __forceinline__ LaneTask(const Replay& of_replay, const WindowRules& of_rules, Sums& sums_out,
                                        int64_t of_env)
        : replay(of_replay),
          rules(of_rules),
          otherwise(priority_of_unrated(of_replay)),
          env(of_env),
          lane(of_replay.lanes[of_env]),
          change(Replay::is_plain ? LaneChange{} : of_replay.changes[of_env]),
          of_block(sums_out) {}

    __device__ __forceinline__ int64_t slot(int64_t row) const { return rules.ring.slot(env, row); }
    __device__ __forceinline__ uint8_t flags(int64_t row) const { return replay.flags[slot(row)]; }
};

// Notes the birth of a row that becomes live, if a rebase is due for it.
PER_OUT_OF_LINE void note_birth(const DeviceReplay& replay, int64_t slot, int64_t row) {
    const int64_t birth = replay.versions != nullptr ? replay.versions[slot] : row < max_birth ? row : max_birth;
    if (is_rebase_due(replay.state->freshness, birth)) atomic_max(&replay.state->pending.due_birth, birth);
}

// Changes a leaf of a plain buffer at once.
PER_OUT_OF_LINE void change_leaf(const DeviceTree& tree, int64_t slot, float leaf) {
    TreeState& state = *tree.state;
    add_to_sum(state, wide_difference(write_leaf(tree, power_of_two(state.scale), slot, leaf)));
}

// Makes those of the rows live at which a sequence starts, unless they are used up. otherwise_of(row) is the priority
// of a row that was given none: task.otherwise, or waiting_since(step).
template <class Replay, class OtherwiseOf>
__device__ __forceinline__ void make_live(LaneTask<Replay>& task, const RowRange& rows,
                                          const OtherwiseOf& otherwise_of) {
    const DevicePriorities& priorities = task.replay.priorities;
    for (int64_t row = rows.first + lane_of_thread(); row < rows.end; row += warp_size) {
        const int64_t slot = task.slot(row);
        if (!starts_sequence(task.rules, task.replay.flags[slot]) || is_used_up(task.replay, slot)) continue;
        float priority = priorities.given[slot];
        if (priority == not_given) priorities.given[slot] = priority = otherwise_of(row);
        const int32_t n_born = insert(priorities.live, slot, task.of_block.live_top);
        task.sums.n_live += n_born;
        if constexpr (Replay::is_plain) {
            change_leaf(priorities.tree, slot, priority_to_alpha(priority, task.replay.state->alpha));
        } else {
            task.sums.n_born += n_born;
            task.sums.has_waiting |= is_waiting(priority);
            if (task.replay.decays) note_birth(task.replay, slot, row);
        }
    }
    extend(task.change.born, rows);
    __syncwarp();
}

template <class Replay>
__device__ __forceinline__ void make_dead(LaneTask<Replay>& task, const RowRange& rows) {
    for (int64_t row = rows.first + lane_of_thread(); row < rows.end; row += warp_size) {
        const int64_t slot = task.slot(row);
        const int32_t n_died = erase(task.replay.priorities.live, slot, task.of_block.live_top);
        task.sums.n_live -= n_died;
        if (Replay::is_plain && n_died != 0) change_leaf(task.replay.priorities.tree, slot, 0.0f);
    }
    extend(task.change.died, rows);
    __syncwarp();
}

// Applies the result of cut_episode() to the lane's rows. `otherwise` is the priority of rows that were given none.
template <class Replay>
__device__ __forceinline__ void cut_lane(LaneTask<Replay>& task, const Cut& cut, float otherwise) {
    if (lane_of_thread() == 0) task.replay.flags[task.slot(cut.row)] |= cut.flags;
    __syncwarp();
    make_live(task, cut.completed, [otherwise](int64_t) { return otherwise; });
    add_up(task.of_block.cuts);
    add_up(task.of_block.episodes);
}

// Moves the lane's tail to where tail_of() says.
template <class Replay>
__device__ __forceinline__ void advance_tail(LaneTask<Replay>& task) {
    const auto flags_of = [&](int64_t row) { return task.flags(row); };
    const int64_t tail = tail_of(task.lane, task.rules, flags_of);
    if (tail <= task.lane.tail) return;
    make_dead(task, {task.lane.tail, tail});
    task.lane.tail = tail;
}

// The last `most` rows of a range. `most` is the number of slots of a lane: of rows that share a slot only the last
// exists.
__device__ __forceinline__ RowRange clipped(const RowRange& rows, int64_t most) {
    return {rows.end - rows.first > most ? rows.end - most : rows.first, rows.end};
}

// Stores the lane. Later kernels can read it; in this kernel the threads of the block can, after finish_lanes().
template <class Replay>
__device__ __forceinline__ void finish(const LaneTask<Replay>& task) {
    const unsigned n_live = __reduce_add_sync(all_lanes, static_cast<unsigned>(task.sums.n_live));
    const unsigned n_born =
        Replay::is_plain ? 0 : __reduce_add_sync(all_lanes, static_cast<unsigned>(task.sums.n_born));
    const bool has_waiting = !Replay::is_plain && __ballot_sync(all_lanes, task.sums.has_waiting) != 0;
    if (lane_of_thread() != 0) return;
    task.replay.lanes[task.env] = task.lane;
    if (n_live != 0) atomicAdd(&task.of_block.n_live, n_live);
    if (Replay::is_plain) return;
    const int64_t most = task.rules.ring.rows;
    task.replay.changes[task.env] = {clipped(task.change.died, most), clipped(task.change.born, most)};
    if (n_born != 0) atomicAdd(&task.of_block.n_born, n_born);
    if (has_waiting) atomicExch(&task.of_block.has_waiting, 1u);
}

// The whole block calls it after its last lane.
template <class Replay>
__device__ __forceinline__ void finish_lanes(const Replay& replay, const LaneSums<typename Replay::Top>& sums) {
    if constexpr (Replay::is_plain) __syncthreads();  // with which write_top() begins otherwise
    write_top(replay.priorities.live, sums.live_top);
    if (threadIdx.x != 0) return;
    ReplayState& state = *replay.state;
    add_if_any(Replay::is_plain ? &state.n_live : &state.pending.n_live, static_cast<int32_t>(sums.n_live));
    if (!Replay::is_plain) {
        if (replay.keeps_ranks()) add_if_any(&replay.priorities.ranks.state->n_changes, sums.n_born);
        if (sums.largest_bits > state.largest_bits) atomicMax(&state.pending.largest_bits, sums.largest_bits);
        if (sums.has_waiting != 0) atomicExch(&state.pending.has_waiting, 1u);
    }
    add_if_any(&state.counters.added, sums.added);
    add_if_any(&state.counters.dropped, sums.dropped);
    add_if_any(&state.counters.episodes, sums.episodes);
    add_if_any(&state.counters.cuts, sums.cuts);
    add_if_any(&state.counters.suspected_resets, sums.suspected_resets);
    add_if_any(&state.counters.rejected_updates, sums.rejected_updates);
}

// One thread calls it, after all lanes were changed.
__device__ __forceinline__ void apply_pending(ReplayState& state) {
    state.n_live += state.pending.n_live;
    state.largest_bits = larger(state.largest_bits, state.pending.largest_bits);
    state.due_birth = larger(state.due_birth, state.pending.due_birth);
    state.pending = {};
}

}  // namespace per::cuda

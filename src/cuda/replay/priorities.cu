#include "cuda/replay/priorities.h"

#include <algorithm>

#include "cuda/replay/changed_lanes.h"
#include "cuda/replay/leaf_change.h"
#include "cuda/tree/tree_kernels.h"
#include "rules/td_error.h"

namespace per::cuda {
namespace {

// ------------------------------------------------------------------------------------------------------------ updates

struct SequenceEntry {
    float priority;
    bool has_steps;  // false if all of its complete steps are burn-in, whose errors do not count
};

// The priority of the sequence that starts at row k of lane `env`.
PER_OUT_OF_LINE SequenceEntry sequence_entry(const DeviceReplay& replay, const ReplayUpdate& given, int64_t i,
                                             int64_t env, int64_t k) {
    const WindowRules& rules = replay.state->rules;
    const SequenceRules& sequence = rules.sequence;
    const int64_t n_steps = complete_steps(replay.lanes[env], rules, k,
                                           [&](int64_t row) { return replay.flags[rules.ring.slot(env, row)]; });
    if (n_steps <= sequence.burn_in) return {0.0f, false};
    const int64_t n_given = sequence.steps - given.n_left_out;
    const StepRange steps = {sequence.burn_in - given.n_left_out, n_steps - given.n_left_out};
    const float* const errors = given.td_errors + i * n_given;
    return {sequence_priority(errors, given.n_critics, given.count * n_given, replay.critics, steps,
                              replay.sequence_eta, replay.epsilon),
            true};
}

PER_OUT_OF_LINE bool is_pending_row(const DeviceReplay& replay, int64_t id) {
    const WindowRules& rules = replay.state->rules;
    const RowOfId row = row_of_id(replay, rules, id);
    return row.is_there && !is_used_up(replay, row.slot) && is_pending(replay.lanes[row.env], rules, row.k);
}

// Reads an entry whose row is not live, or whose priority is not valid. Counts it if it is refused.
PER_OUT_OF_LINE UpdateEntry other_entry(const DeviceReplay& replay, int64_t id, float priority) {
    ReplayState& state = *replay.state;
    const RowOfId row = row_of_id(replay, state.rules, id);
    if (!row.is_issued) {
        count_rejected_ids(state, 1);
    } else if (!is_priority(priority)) {
        atomic_add(&state.counters.rejected_updates, 1);
        atomic_add(&state.errors.n_bad_priorities, 1);
    } else if (is_pending_row(replay, id)) {
        return {row.slot, priority, false};
    } else {
        atomic_add(&state.counters.stale_updates, 1);
    }
    return {-1, 0.0f};
}

// A row that may be live: then it is the latest of its slot.
struct LatestRow {
    int64_t env;
    int64_t k;
    int64_t slot;
    bool is_live;
};

__device__ __forceinline__ LatestRow latest_row(const DeviceReplay& replay, const Ring& ring, int64_t id) {
    if (id < 0) return {0, -1, 0, false};
    const int64_t env = ring.env_of_id(id);
    const int64_t k = ring.row_of_id(id);
    const int64_t slot = ring.slot(env, k);
    const uint64_t n_later = static_cast<uint64_t>(replay.lanes[env].head - 1 - k);
    return {env, k, slot, n_later < static_cast<uint64_t>(ring.rows) && is_live(replay.priorities.live, slot)};
}

// Reads an entry; its index is -1 if it is refused, which is then counted.
template <bool is_plain, class Replay>
__device__ __forceinline__ UpdateEntry entry_of(const Replay& replay, const Ring& ring, const ReplayUpdate& given,
                                                int64_t i) {
    const int64_t id = read_once(given.ids[i]);
    const LatestRow row = latest_row(replay, ring, id);
    float priority;
    if (!is_plain && given.td_errors == nullptr) {
        priority = given.priorities[i];
    } else if (!replay.has_sequences) {
        priority = td_error_priority(given.td_errors + i, is_plain ? 1 : given.n_critics, given.count, replay.critics,
                                     replay.epsilon);
    } else {
        // The valid steps of a sequence are unknown once it can no longer be drawn.
        const bool has_row = row.is_live || is_pending_row(replay, id);
        const SequenceEntry entry =
            has_row ? sequence_entry(replay, given, i, row.env, row.k) : SequenceEntry{0.0f, true};
        if (!entry.has_steps) {
            atomic_add(&replay.state->counters.stale_updates, 1);
            return {-1, 0.0f};
        }
        priority = entry.priority;
    }
    if (row.is_live && is_priority(priority)) return {row.slot, priority};
    return other_entry(replay, id, priority);
}

// Claims the slots of accepted entries; if several have the same slot, the last one wins. Counts them. With of_source,
// entries of other sources are left out.
template <bool of_source, class Replay, class Entries>
__device__ __forceinline__ void claim_entries(const Replay& replay, const ReplayUpdate& given, Entries& entries) {
    ReplayState& state = *replay.state;
    const Ring ring = state.rules.ring;
    uint32_t n_accepted = 0;
    for_each_of<Entries::at_most_one>(grid_span(), given.count, [&](int64_t i) {
        UpdateEntry entry = {-1, 0.0f};
        const int32_t source = of_source ? read_once(given.source_of[i]) : given.source;
        const bool is_of_none = of_source && (source < 0 || source >= given.n_sources);
        if (is_of_none && given.source == 0)
            count_rejected_ids(state, 1);
        else if (source == given.source)
            entry = entry_of<Entries::at_most_one>(replay, ring, given, i);
        entries.set(i, entry);
        if (entry.index < 0) return;
        ++n_accepted;
        atomicMax(&replay.priorities.tree.claims[entry.index], static_cast<uint32_t>(i + 1));
    });
    n_accepted = __reduce_add_sync(all_lanes, n_accepted);
    if (lane_of_thread() == 0) add_if_any(&state.counters.updates, n_accepted);
}

// The slots that the entries of an update have claimed.
template <class Entries>
struct ClaimedSlots {
    static constexpr bool rows_stay = true;
    static constexpr bool is_one_each = Entries::at_most_one;
    int64_t count;
    const Entries& entries;
    uint32_t largest_bits;  // of the largest priority before the call

    // The entry that holds the claim sets its priority, and ends the claim, before it visits its slot.
    template <class Visit>
    __device__ __forceinline__ void for_each(const DeviceReplay& replay, const Visit& visit) const {
        constexpr int64_t most = int64_t{1} << 62;
        // A thread without an entry has one of index -1.
        for_each_of<is_one_each>(grid_span(), is_one_each ? most : count, [&](int64_t i) {
            const UpdateEntry entry = entries[i];
            if (entry.index < 0) return;
            const uint32_t claim = static_cast<uint32_t>(i + 1);
            if (atomicCAS(&replay.priorities.tree.claims[entry.index], claim, 0u) != claim) return;
            replay.priorities.given[entry.index] = entry.priority;
            const uint32_t bits = bits_in_order(entry.priority);
            if (bits > largest_bits) atomicMax(&replay.state->largest_bits, bits);
            visit(entry.index, entry.is_live, &entry.priority);
        });
    }

    template <class Visit>
    __device__ __forceinline__ void for_each_group(const DeviceReplay&, const Visit& visit) const {
        const GridSpan span = grid_span();
        for (int64_t i = span.first; i < count; i += span.step)
            if (entries[i].index >= 0) visit(entries[i].index);
    }
};

// ------------------------------------------------------------------------------------------------------------ kernels

__global__ void __launch_bounds__(n_threads, 1)
    change_lanes_kernel(const __grid_constant__ DeviceReplay replay, ChangedLanes<AllLanes> lanes, bool rebuilds) {
    PER_SHARED(TopChanges, top);
    clear(top);
    __syncthreads();
    change_leaves(replay, lanes, top, rebuilds);
    lanes.end(replay);
}

template <bool of_source, class Replay>
__global__ void __launch_bounds__(Replay::is_plain ? large_block : n_threads, 1)
    update_kernel(const __grid_constant__ Replay replay, const __grid_constant__ ReplayUpdate given,
                  UpdateEntry* others, bool rebuilds) {
    PER_SHARED(typename Replay::Top, top);
    clear(top);
    using Entries = EntriesOfThread<Replay::is_plain>;
    Entries entries(grid_span().first, others);
    const uint32_t largest_bits = replay.state->largest_bits;
    claim_entries<of_source>(replay, given, entries);
    meet(replay.priorities.tree.state->meeting);
    change_leaves(replay, ClaimedSlots<Entries>{given.count, entries, largest_bits}, top, rebuilds);
}

__global__ void __launch_bounds__(n_threads, 1)
    read_priorities_kernel(const __grid_constant__ DeviceReplay replay, int64_t count, const int64_t* ids,
                           float* priorities_out) {
    const WindowRules rules = replay.state->rules;
    const GridSpan span = grid_span();
    for (int64_t i = span.first; i < count; i += span.step) {
        const RowOfId row = row_of_id(replay, rules, ids[i]);
        if (!row.is_issued) atomic_add(&replay.state->errors.n_bad_ids, 1);
        const bool has_one = row.is_there && is_live(replay.priorities.live, row.slot);
        priorities_out[i] = has_one ? replay.priorities.given[row.slot] : 0.0f;
    }
}

// Whether the kernel of PlainReplay can make this update, with little more than half of the instructions.
bool is_plain(const DeviceReplay& replay, const ReplayUpdate& update, const Grid& grid) {
    return is_plain(replay) && update.td_errors != nullptr && update.n_critics == 1 &&
           update.count <= std::min(few_changes, grid.n_blocks * grid.block_size);
}

// With few units for float64, one block would take longer for the powers of 1024 priorities than several blocks wait for
// each other.
Grid plain_grid(const DeviceTree& tree, int64_t count) {
    return tree.has_fast_float64 ? grid_of_large_block(tree, count) : grid_of_change(tree, count);
}

}  // namespace

void queue_change_of_lanes(const DeviceReplay& replay, int64_t rows_per_lane, cudaStream_t stream) {
    // A lane gets as many threads as it has changed rows, up to a whole block.
    const ChangedLanes<AllLanes> lanes = {{replay.n_envs}, std::clamp<int64_t>(rows_per_lane, 1, n_threads)};
    queue_change(replay, grid_of_change(replay.priorities.tree, replay.n_envs * lanes.threads_per_lane), stream,
                 change_lanes_kernel, lanes);
}

void queue_priorities(const DeviceReplay& replay, const ReplayUpdate& update, UpdateEntry* entries,
                      cudaStream_t stream) {
    if (update.count == 0) return;
    const Grid grid = grid_of_change(replay.priorities.tree, update.count);
    const Grid of_plain = plain_grid(replay.priorities.tree, update.count);
    if (update.source_of != nullptr)
        queue_change(replay, grid, stream, update_kernel<true, DeviceReplay>, update, entries);
    else if (is_plain(replay, update, of_plain))
        queue_change(replay, of_plain, stream, update_kernel<false, PlainReplay>, update, entries);
    else
        queue_change(replay, grid, stream, update_kernel<false, DeviceReplay>, update, entries);
}

void queue_read_priorities(const DeviceReplay& replay, int64_t count, const int64_t* ids, float* priorities_out,
                           cudaStream_t stream) {
    if (count == 0) return;
    launch(stream, blocks_for(count), n_threads, read_priorities_kernel, replay, count, ids, priorities_out);
}

void load_priority_kernels() {
    load_kernels(change_lanes_kernel, update_kernel<false, PlainReplay>, update_kernel<false, DeviceReplay>,
                 update_kernel<true, DeviceReplay>, read_priorities_kernel);
    load_all_priority_kernels();
    load_rank_kernels();
    load_rebuild_kernels();
}

}  // namespace per::cuda

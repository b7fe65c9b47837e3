#include "cuda/replay/priorities.h"

#include <algorithm>
#include <type_traits>

#include "cuda/replay/changed_lanes.h"
#include "cuda/replay/leaf_change.h"
#include "cuda/tree/tree_kernels.h"
#include "rules/td_error.h"

namespace per::cuda {
namespace {

// ------------------------------------------------------------------------------------------------------------ updates

enum class Fate { never_issued, stale, rejected, pending, live, none };
inline constexpr int n_fates = 5;

__device__ __forceinline__ bool is_accepted(Fate fate) {
    return fate == Fate::pending || fate == Fate::live;
}

struct Entry {
    Fate fate;
    int64_t slot;
    float priority;
};

// The numbers of a thread's entries by fate.
template <bool at_most_one>
struct FateCounts {
    uint32_t n[n_fates] = {};

    // Not ++n[fate]: an index would move the array to memory.
    __device__ __forceinline__ void add(Fate fate) {
        for (int i = 0; i < n_fates; ++i) n[i] += i == static_cast<int>(fate);
    }
    __device__ __forceinline__ uint32_t of(Fate fate) const { return n[static_cast<int>(fate)]; }
    __device__ __forceinline__ uint32_t n_accepted() const { return of(Fate::pending) + of(Fate::live); }
    __device__ __forceinline__ bool has_refused() const {
        return (of(Fate::never_issued) | of(Fate::stale) | of(Fate::rejected)) != 0;
    }
};
template <>
struct FateCounts<true> {
    Fate fate = Fate::none;

    __device__ __forceinline__ void add(Fate of_entry) { fate = of_entry; }
    __device__ __forceinline__ uint32_t of(Fate which) const { return fate == which ? 1 : 0; }
    __device__ __forceinline__ uint32_t n_accepted() const { return is_accepted(fate) ? 1 : 0; }
    __device__ __forceinline__ bool has_refused() const { return fate < Fate::pending; }
};

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

template <bool has_one_critic, class Replay>
__device__ __forceinline__ Entry entry_of(const Replay& replay, const WindowRules& rules, const ReplayUpdate& given,
                                          int64_t i) {
    const RowOfId row = row_of_id(replay, rules, read_once(given.ids[i]));
    if (!row.is_issued) return {Fate::never_issued, 0, 0.0f};
    const bool is_row_live = row.is_there && is_live(replay.priorities.live, row.slot);
    bool is_accepted = is_row_live || (row.is_there && !is_used_up(replay, row.slot) &&
                                       is_pending(replay.lanes[row.env], rules, row.k));
    float priority;
    if (given.td_errors == nullptr) {
        priority = given.priorities[i];
    } else if (!replay.has_sequences) {
        priority = td_error_priority(given.td_errors + i, has_one_critic ? 1 : given.n_critics, given.count,
                                     replay.critics, replay.epsilon);
    } else {
        // The valid steps of a sequence are unknown once it can no longer be drawn.
        const SequenceEntry entry =
            is_accepted ? sequence_entry(replay, given, i, row.env, row.k) : SequenceEntry{0.0f, false};
        priority = entry.priority;
        is_accepted = entry.has_steps;
    }
    if (!is_priority(priority)) return {Fate::rejected, 0, 0.0f};
    if (!is_accepted) return {Fate::stale, 0, 0.0f};
    return {is_row_live ? Fate::live : Fate::pending, row.slot, priority};
}

PER_OUT_OF_LINE void count_refused(ReplayState& state, uint32_t n_never_issued, uint32_t n_stale, uint32_t n_rejected) {
    n_never_issued = __reduce_add_sync(all_lanes, n_never_issued);
    n_stale = __reduce_add_sync(all_lanes, n_stale);
    n_rejected = __reduce_add_sync(all_lanes, n_rejected);
    if (lane_of_thread() != 0) return;
    add_if_any(&state.counters.stale_updates, n_stale);
    add_if_any(&state.counters.rejected_updates, n_rejected);
    count_rejected_ids(state, n_never_issued);
    add_if_any(&state.errors.n_bad_priorities, n_rejected);
}

// Claims the slots of accepted entries; if several have the same slot, the last one wins. Counts the entries by their
// fate. With of_source, entries of other sources are left out.
template <bool of_source, class Replay, class Entries>
__device__ __forceinline__ void claim_entries(const Replay& replay, const ReplayUpdate& given, Entries& entries) {
    ReplayState& state = *replay.state;
    const WindowRules rules = state.rules;
    FateCounts<Entries::at_most_one> counts;
    for_each_of<Entries::at_most_one>(grid_span(), given.count, [&](int64_t i) {
        Entry entry;
        if constexpr (of_source) {
            const int32_t source = read_once(given.source_of[i]);
            const bool is_of_none = source < 0 || source >= given.n_sources;
            if (source != given.source && !(is_of_none && given.source == 0)) return entries.set(i, {-1, 0.0f});
            entry = is_of_none ? Entry{Fate::never_issued, 0, 0.0f} : entry_of<false>(replay, rules, given, i);
        } else {
            entry = entry_of<Entries::at_most_one>(replay, rules, given, i);
        }
        counts.add(entry.fate);
        entries.set(i, {is_accepted(entry.fate) ? entry.slot : -1, entry.priority, entry.fate == Fate::live});
        if (is_accepted(entry.fate))
            atomicMax(&replay.priorities.tree.claims[entry.slot], static_cast<uint32_t>(i + 1));
    });
    const uint32_t n_accepted = __reduce_add_sync(all_lanes, counts.n_accepted());
    if (lane_of_thread() == 0) add_if_any(&state.counters.updates, n_accepted);
    if (__ballot_sync(all_lanes, counts.has_refused()) != 0)
        count_refused(state, counts.of(Fate::never_issued), counts.of(Fate::stale), counts.of(Fate::rejected));
}

// The slots that the entries of an update have claimed.
template <class Entries>
struct ClaimedSlots {
    static constexpr bool rows_stay = true;
    static constexpr bool are_few = Entries::at_most_one;
    int64_t count;
    const Entries& entries;

    // The entry that holds the claim sets its priority, and ends the claim, before it visits its slot.
    template <class Visit>
    __device__ __forceinline__ void for_each(const DeviceReplay& replay, const Visit& visit) const {
        uint32_t largest_bits = 0;
        for_each_of<are_few>(grid_span(), count, [&](int64_t i) {
            const UpdateEntry entry = entries[i];
            if (entry.index < 0) return;
            const uint32_t claim = static_cast<uint32_t>(i + 1);
            if (atomicCAS(&replay.priorities.tree.claims[entry.index], claim, 0u) != claim) return;
            replay.priorities.given[entry.index] = entry.priority;
            largest_bits = larger(largest_bits, bits_in_order(entry.priority));
            visit(entry.index, entry.is_live, &entry.priority);
        });
        largest_bits = __reduce_max_sync(all_lanes, largest_bits);
        if (lane_of_thread() == 0 && largest_bits != 0) atomicMax(&replay.state->largest_bits, largest_bits);
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
    PER_SHARED(ChangeShared, shared);
    clear(shared.top);
    __syncthreads();
    change_leaves(replay, lanes, shared, rebuilds);
    lanes.end(replay);
}

template <bool of_source, class Replay>
__global__ void __launch_bounds__(n_threads, 1)
    update_kernel(const __grid_constant__ Replay replay, const __grid_constant__ ReplayUpdate given,
                  UpdateEntry* others, bool rebuilds) {
    PER_SHARED(ChangeShared, shared);
    clear(shared.top);
    using Entries = EntriesOfThread<std::is_same_v<Replay, PlainReplay>>;
    Entries entries(grid_span().first, others);
    claim_entries<of_source>(replay, given, entries);
    meet(replay.priorities.tree.state->meeting);
    change_leaves(replay, ClaimedSlots<Entries>{given.count, entries}, shared, rebuilds);
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

// Whether the kernel of PlainReplay can make this update. For 256 TD errors it executes 421 different instructions, and
// that of DeviceReplay a third more.
bool is_plain(const DeviceReplay& replay, const ReplayUpdate& update) {
    return is_plain(replay) && update.td_errors != nullptr && update.n_critics == 1 &&
           update.count <= n_threads * int64_t{replay.priorities.tree.max_blocks};
}

}  // namespace

void queue_change_of_lanes(const DeviceReplay& replay, int64_t rows_per_lane, cudaStream_t stream) {
    // A lane gets as many threads as it has changed rows, up to a whole block.
    const ChangedLanes<AllLanes> lanes = {{replay.n_envs}, std::clamp<int64_t>(rows_per_lane, 1, n_threads)};
    queue_change(replay, replay.n_envs * lanes.threads_per_lane, stream, change_lanes_kernel, lanes);
}

void queue_priorities(const DeviceReplay& replay, const ReplayUpdate& update, UpdateEntry* entries,
                      cudaStream_t stream) {
    if (update.count == 0) return;
    if (update.source_of != nullptr)
        queue_change(replay, update.count, stream, update_kernel<true, DeviceReplay>, update, entries);
    else if (is_plain(replay, update))
        queue_change(replay, update.count, stream, update_kernel<false, PlainReplay>, update, entries);
    else
        queue_change(replay, update.count, stream, update_kernel<false, DeviceReplay>, update, entries);
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

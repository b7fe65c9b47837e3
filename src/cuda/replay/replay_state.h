// The state of a replay buffer in device memory: the counterpart of cpu/replay/replay_state.h, with the rules of
// window.h.
#pragma once

#include <cstdint>

#include "backend/replay_statistics.h"
#include "cuda/tree/live_set.h"
#include "cuda/tree/maximum_tree.h"
#include "cuda/tree/sum_tree.h"
#include "per.h"
#include "rules/beta_schedule.h"
#include "rules/freshness.h"
#include "rules/rank.h"
#include "rules/window.h"

namespace per::cuda {

// The frames of a field, by slot.
struct DeviceField {
    std::byte* frames;
    std::byte* next_frames;  // with store_next_observation, of an observation; else NULL
    int64_t bytes;           // of a frame
    int64_t elements;
    int32_t stack;
    int32_t dtype;
    int32_t role;  // a per_role
    bool pads_with_zeros;

    __device__ __forceinline__ bool is_observation() const { return role == PER_ROLE_OBSERVATION; }
};

// Rows of a lane that the current call makes dead or live. At the end of the call the leaves of their slots are
// written, from the state that the slots have then. Both ranges only grow within a call, as rows die and are born in
// order.
struct LaneChange {
    RowRange died;
    RowRange born;
};

// Sums over the lanes that a call changes. They determine the priority of rows that become live. So they are added to
// the state only at the end of the call: a lane must not depend on lanes that happen to be changed earlier. Zero
// between calls.
struct PendingSums {
    int64_t n_live;         // rows that became live minus those that died
    uint32_t largest_bits;  // of priorities given
    uint32_t has_waiting;   // a row that became live waits for its priority
    int64_t due_birth;      // the latest birth of these rows for which a rebase is due (freshness.h); 0: none is
};

// The last batch drawn, for statistics. Its arrays lie in the memory of the draws.
struct LastDraw {
    int64_t size;
    int64_t n_weighed;  // the other rows are the newest, whose weight is 1
    double beta;
    double reference;      // the share whose weight is 1
    const int64_t* slots;  // [size]
    const int64_t* ages;   // [size] rows that the lane took after the transition, until the draw
    const double* shares;  // [n_weighed]
};

// The reason why a step is not added. The CPU refuses the whole call for each of these.
enum class StepRefusal : int32_t {
    value,              // a value does not fit its dtype, or is not a flag
    nan,                // a value is a NaN, which the buffer refuses
    next_mask,          // it ends an episode without the next_mask that the buffer's autoreset requires
    final_observation,  // it ends an episode whose final observation is neither given nor marked as unknown
    next_observation,   // missing where every step must have one
    gap,
    full,
    none
};
inline constexpr int n_step_refusals = static_cast<int>(StepRefusal::none);

// Errors on the device since the last report.
struct ReplayErrors {
    uint64_t n_bad_ids;         // never issued; in get() also not there, or incomplete
    uint64_t n_bad_priorities;  // not finite, or negative
    uint64_t n_refused_steps[n_step_refusals];
    uint64_t n_bad_values;          // of set()
    uint64_t n_refused_advantages;  // calls with wrong ids, or with values that are not finite
    uint32_t n_empty_draws;
    uint32_t n_short_draws;     // without replacement: too few could be drawn
    uint32_t n_outdated_draws;  // of graphs, with an n_step above that of the buffer

    PER_HOST_DEVICE uint64_t& n_refused(StepRefusal why) { return n_refused_steps[static_cast<int>(why)]; }
    uint64_t n_refused(StepRefusal why) const { return n_refused_steps[static_cast<int>(why)]; }
};

// Throws Error if anything went wrong: with the status of the first problem, and a message that names all. With
// skips_invalid (PER_INVALID_SKIP) bad priorities are not reported. of_sequences: the buffer draws sequences.
void report(const ReplayErrors& errors, bool skips_invalid, bool of_sequences);

// All state that changes from call to call, in one struct in device memory, so that a captured graph can be replayed.
struct ReplayState {
    WindowRules rules;  // n_step as it was set last
    BetaSchedule beta;
    double alpha;
    double gamma;
    uint64_t batches;  // drawn; with the seed the whole random state
    ReplayCounters counters;
    int64_t n_live;
    uint32_t largest_bits;  // of the largest priority ever
    PendingSums pending = {};
    Freshness freshness;
    int64_t due_birth = 0;  // of a rebase that the change under way has to make; 0: none
    int64_t version = 0;    // of rows that are added
    LastDraw last;
    uint64_t n_bad_bootstraps;  // bad ids and values of the current call for advantages
    ReplayErrors errors;
    int64_t n_ahead = 0;  // batches that beta.step counts, and a loader has not handed out yet

    PER_HOST_DEVICE int64_t beta_step() const { return beta.step - n_ahead; }
};

// Exists once the options, a draw or a loaded checkpoint have asked for PER_RANK; see cpu/tree/rank_tree.h.
struct RankState {
    int64_t n_live;
    int64_t n_changes;
};

struct DeviceRanks {
    RankState* state;
    uint32_t* buckets;  // by slot: 0, or the bucket + 1 of a live row
    uint64_t* counts;   // [n_rank_buckets]
    float* weights;     // [n_rank_buckets] the weight of each transition in the bucket, as computed last
    DeviceTree tree;    // its claims are those of the tree of priorities
};

// Priorities p of rows: p itself by slot, and p^alpha of live rows in the sum tree.
struct DevicePriorities {
    // [tree.n_nodes[0]] by slot: p of a row, live or not; or not_given; within a call also waiting_since()
    float* given;
    DeviceTree tree;
    DeviceLive live;
    DeviceMaximum live_maximum;   // of p of live rows, with PER_MAX_NOW
    DeviceMaximum smallest_leaf;  // of reversed_leaf(), once the smallest leaf was asked for
    DeviceRanks ranks;            // state NULL until they were asked for
};

PER_HOST_DEVICE bool has_ranks(const DevicePriorities& priorities) {
    return priorities.ranks.state != nullptr;
}

inline constexpr float not_given = -1.0f;

// A placeholder for the priority of a row that became live, without a given priority, at `step` of a launch of several
// steps. The priority depends on those given in other lanes before that step, so it is written after the launch.
// `step` is at most 2^24 - 2, so that the float is exact.
__device__ __forceinline__ float waiting_since(int64_t step) {
    return -2.0f - static_cast<float>(step);
}
__device__ __forceinline__ bool is_waiting(float given) {
    return given < not_given;
}
__device__ __forceinline__ int64_t step_of_waiting(float given) {
    return static_cast<int64_t>(-2.0f - given);
}

// Pointers to all arrays, and options that never change. Passed to kernels by value.
struct DeviceReplay {
    using Top = TopChanges;  // of a block of a change
    static constexpr bool is_plain = false;

    ReplayState* state;
    Lane* lanes;             // [n_envs]
    LaneChange* changes;     // [n_envs] of the call under way; empty ranges between calls
    int64_t* bootstraps;     // [n_envs + 1] of the call under way; see on_policy.h
    uint8_t* flags;          // by slot: RowFlags
    float* rewards;          // by slot
    int32_t* times_sampled;  // by slot, with keep_times_sampled; else NULL
    int32_t* versions;       // by slot, with PER_AGE_VERSIONS; else NULL
    DeviceField* fields;     // [n_fields]
    int64_t n_fields;
    int64_t capacity;  // slots: rows.ring.capacity()
    int64_t n_envs;
    DevicePriorities priorities;

    uint64_t seed;
    double epsilon;
    double sequence_eta;
    bool has_sequences;
    int32_t critics;            // a per_critics
    int32_t max_priority;       // a per_max_priority
    int32_t autoreset;          // a per_autoreset
    int32_t on_gap;             // a per_on_gap
    int32_t max_times_sampled;  // 0: any number
    int64_t max_age;            // in versions; -1: any
    bool decays;                // priorities have a half-life
    bool refuses_nan;           // in observations and rewards
    bool overwrite;

    PER_HOST_DEVICE bool keeps_ranks() const { return has_ranks(priorities); }
    // The number of levels of maxima; 0 if no maximum is kept.
    PER_HOST_DEVICE int levels_of_maxima() const {
        const int n = priorities.live_maximum.n_levels;
        return n > priorities.smallest_leaf.n_levels ? n : priorities.smallest_leaf.n_levels;
    }
};

// A buffer without rarely used options, which kernels for it leave out: see is_plain(). They change few leaves.
struct PlainReplay : DeviceReplay {
    PER_HOST_DEVICE explicit PlainReplay(const DeviceReplay& replay) : DeviceReplay(replay) {}

    using Top = NoTopChanges;
    static constexpr bool is_plain = true;
    static constexpr bool has_sequences = false;
    static constexpr int32_t max_priority = PER_MAX_EVER;
    static constexpr int32_t max_times_sampled = 0;
    static constexpr int64_t max_age = -1;
    static constexpr bool decays = false;
    static constexpr bool refuses_nan = false;
    static constexpr bool overwrite = true;
    static constexpr int32_t* times_sampled = nullptr;
    static constexpr int32_t* versions = nullptr;
    PER_HOST_DEVICE static constexpr bool keeps_ranks() { return false; }
    PER_HOST_DEVICE static constexpr int levels_of_maxima() { return 0; }
};

inline bool is_plain(const DeviceReplay& replay) {
    return !replay.has_sequences && replay.max_priority == PER_MAX_EVER && replay.max_times_sampled == 0 &&
           replay.max_age < 0 && !replay.decays && !replay.refuses_nan && replay.overwrite &&
           replay.times_sampled == nullptr && replay.versions == nullptr && !replay.keeps_ranks() &&
           replay.levels_of_maxima() == 0;
}

// True if the row in a slot was drawn as often as allowed, or its version is too old.
template <class Replay>
__device__ __forceinline__ bool is_used_up(const Replay& replay, int64_t slot) {
    return (replay.max_times_sampled != 0 || replay.max_age >= 0) && (replay.flags[slot] & row_is_used_up) != 0;
}

// The birth (freshness.h) of the row in a slot that is live.
__device__ __forceinline__ int64_t birth_of(const DeviceReplay& replay, int64_t slot) {
    if (replay.versions != nullptr) return replay.versions[slot];
    const Ring& ring = replay.state->rules.ring;
    const int64_t env = ring.env_of_slot(slot);
    const int64_t row = ring.row_of_slot(env, slot, replay.lanes[env].head);
    return row < max_birth ? row : max_birth;
}

// ---- ids

__device__ __forceinline__ RowOfId row_of_id(const DeviceReplay& replay, const WindowRules& rules, int64_t id) {
    return find_row(id, rules, [&](int64_t env) -> const Lane& { return replay.lanes[env]; });
}

// Counts entries of a writing call whose ids were never issued: for the report, and for statistics.
__device__ __forceinline__ void count_rejected_ids(ReplayState& state, uint64_t n) {
    if (n == 0) return;
    atomic_add(&state.errors.n_bad_ids, n);
    atomic_add(&state.counters.rejected_updates, static_cast<int64_t>(n));
}

}  // namespace per::cuda

// What an id names.
#pragma once

#include <cstdint>

#include "cuda/replay/replay_state.h"

namespace per::cuda {

struct RowOfId {
    int64_t env;
    int64_t k;
    int64_t slot;
    bool is_issued;
    bool is_there;  // not overwritten, not cleared; -1 is issued, and never there
};

__device__ __forceinline__ RowOfId row_of_id(const DeviceReplay& replay, const WindowRules& rules, int64_t id) {
    if (id < 0) return {0, -1, 0, id == -1, false};
    const int64_t env = rules.ring.env_of_id(id);
    const int64_t k = rules.ring.row_of_id(id);
    const Lane& lane = replay.lanes[env];
    const bool is_issued = k < lane.head;
    return {env, k, rules.ring.slot(env, k), is_issued, is_issued && k >= oldest_row(lane, rules)};
}

// Entries of a call that writes, whose ids were never issued: to be reported, and for statistics.
__device__ __forceinline__ void count_rejected_ids(ReplayState& state, uint64_t n) {
    if (n == 0) return;
    atomic_add(&state.errors.n_bad_ids, n);
    atomic_add(reinterpret_cast<uint64_t*>(&state.counters.rejected_updates), n);
}

}  // namespace per::cuda

// Weights of transitions by the rank of their priority, on the device; see cpu/tree/rank_tree.h.
#pragma once

#include <cstdint>

#include "cuda/replay/replay_state.h"
#include "rules/rank.h"

namespace per::cuda {

// 0 for a row that is not live, else its bucket + 1: as ranks.buckets has them.
__device__ __forceinline__ uint32_t bucket_of(const DevicePriorities& priorities, int64_t slot) {
    if (!is_live(priorities.live, slot)) return 0;
    return static_cast<uint32_t>(rank_bucket(priorities.given[slot])) + 1;
}

__device__ __forceinline__ float weight_of(const DeviceRanks& ranks, uint32_t bucket) {
    return bucket == 0 ? 0.0f : ranks.weights[bucket - 1];
}

// The effect of moving a row to another bucket.
struct RankChange {
    bool is_change;
    int8_t n_live;
};

// The sum of the moves of a thread.
struct RankChanges {
    uint64_t n_changes = 0;
    uint64_t n_live = 0;  // modulo 2^64

    __device__ __forceinline__ void add(const RankChange& change) {
        n_changes += change.is_change;
        n_live += static_cast<uint64_t>(static_cast<int64_t>(change.n_live));
    }
};

// Several threads may move the same row, all to the same bucket.
__device__ __forceinline__ RankChange move_to_bucket(const DeviceRanks& ranks, int64_t slot, uint32_t bucket) {
    const uint32_t before = atomicExch(&ranks.buckets[slot], bucket);
    if (bucket == before) return {false, 0};
    if (before != 0) atomic_add(&ranks.counts[before - 1], ~uint64_t{0});
    if (bucket != 0) atomic_add(&ranks.counts[bucket - 1], 1);
    return {true, static_cast<int8_t>((bucket != 0 ? 1 : 0) - (before != 0 ? 1 : 0))};
}

// All threads of a warp call it.
__device__ __forceinline__ void add_to_ranks(const DeviceRanks& ranks, const RankChanges& changes) {
    const uint64_t n_changes = sum_of_warp(changes.n_changes);
    const uint64_t n_live = sum_of_warp(changes.n_live);
    if (lane_of_thread() != 0) return;
    add_if_any(&ranks.state->n_changes, n_changes);
    add_if_any(&ranks.state->n_live, n_live);
}

void load_rank_kernels();

}  // namespace per::cuda

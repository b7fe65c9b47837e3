// The smallest mass of a live row of positive priority, by which PER_BUFFER_MAX normalises.
#pragma once

#include <cstdint>

#include "cuda/replay/replay_state.h"
#include "per.h"
#include "rules/mass.h"
#include "rules/rank.h"

namespace per::cuda {

// The lowest bucket that holds a live row of positive priority, or else that of priority 0. The whole block calls it;
// `smallest` is in its shared memory.
__device__ __forceinline__ uint32_t lowest_bucket(const DeviceRanks& ranks, uint32_t& smallest) {
    if (threadIdx.x == 0) smallest = n_rank_buckets;
    __syncthreads();
    uint32_t lowest = n_rank_buckets;
    for (uint32_t bucket = 1 + threadIdx.x; bucket < n_rank_buckets; bucket += blockDim.x)
        if (ranks.counts[bucket] != 0 && bucket < lowest) lowest = bucket;
    lowest = __reduce_min_sync(all_lanes, lowest);
    if (lane_of_thread() == 0) atomicMin(&smallest, lowest);
    __syncthreads();
    return smallest < n_rank_buckets ? smallest : 0;
}

// In the tree of that per_prioritization; of any row if no priority is positive. Some mass is not 0.
__device__ __forceinline__ uint64_t smallest_mass(const DeviceReplay& replay, int32_t prioritization,
                                                  uint32_t& shared_bucket) {
    const DevicePriorities& priorities = replay.priorities;
    if (prioritization == PER_RANK) {
        const DeviceRanks& ranks = priorities.ranks;
        return mass_of(ranks.weights[lowest_bucket(ranks, shared_bucket)], power_of_two(ranks.tree.state->scale));
    }
    return mass_of(reversed_leaf(maximum_of(priorities.smallest_leaf)), power_of_two(priorities.tree.state->scale));
}

}  // namespace per::cuda

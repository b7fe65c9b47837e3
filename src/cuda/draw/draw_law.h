// The distribution of a draw of live rows, and the share whose weight is 1.
#pragma once

#include <cstdint>

#include "cuda/draw/live_draw.h"
#include "cuda/replay/replay_state.h"
#include "per.h"
#include "rules/draw.h"
#include "rules/mass.h"
#include "rules/rank.h"

namespace per::cuda {

// For a draw without replacement, n_draws of the result is valid only after the slots have been found.
template <class Plan>
__device__ __forceinline__ DrawLaw law_of_draw(const DeviceReplay& replay, const DrawMemory& memory, const Plan& plan) {
    const uint64_t mass = plan.tree.state->total;
    return {plan.rows.n,
            plan.is_distinct(),
            uniform_part(plan.prioritization, plan.uniform_fraction, mass),
            static_cast<double>(replay.state->n_live),
            static_cast<double>(mass),
            plan.is_distinct() ? memory.facts->n_draws : 0.0};
}

struct FinishShared {
    double of_warp[n_warps];
    uint32_t smallest_bucket;
};

// The lowest bucket that holds a live row of positive priority; if there is none, 0, the bucket of priority 0. The
// whole block calls it; `smallest` is in its shared memory.
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

// The smallest mass of a live row of positive priority, which PER_BUFFER_MAX gives the weight 1. `prioritization`
// selects the tree. If no priority is positive, all masses are equal, and the result is that mass. Call it only if some
// mass is not 0.
PER_OUT_OF_LINE uint64_t smallest_mass(const DeviceReplay& replay, int32_t prioritization, uint32_t& shared_bucket) {
    const DevicePriorities& priorities = replay.priorities;
    if (prioritization == PER_RANK) {
        const DeviceRanks& ranks = priorities.ranks;
        return mass_of(ranks.weights[lowest_bucket(ranks, shared_bucket)], power_of_two(ranks.tree.state->scale));
    }
    return mass_of(reversed_leaf(maximum_of(priorities.smallest_leaf)), power_of_two(priorities.tree.state->scale));
}

// The smallest share of a batch: of `own`, and of those that the thread finds in `shares`, from its second on. The whole
// block calls it.
__device__ __forceinline__ double smallest_share(double own, const double* shares, int64_t n, FinishShared& shared) {
    PER_ROLLED
    for (int64_t i = threadIdx.x + n_threads; i < n; i += n_threads) own = smaller(own, shares[i]);
    return smallest_of_block(least_of_warp(own), shared.of_warp);
}

// The smallest share of a batch that n_blocks have drawn.
__device__ __forceinline__ double smallest_of_blocks(const DrawMemory& memory, int64_t n_blocks, FinishShared& shared) {
    const double own = threadIdx.x < n_blocks ? memory.smallest_shares[threadIdx.x] : no_share();
    return smallest_share(own, memory.smallest_shares, n_blocks, shared);
}

// The share whose weight is 1. The whole block calls it.
template <class Plan, class SmallestShare>
__device__ __forceinline__ double reference_of(const DeviceReplay& replay, const Plan& plan, const DrawLaw& law,
                                               const SmallestShare& smallest_share, FinishShared& shared) {
    if (plan.normalize_weights == PER_BATCH_MAX) return smallest_share();
    return law.reference(plan.normalize_weights,
                         [&] { return smallest_mass(replay, plan.prioritization, shared.smallest_bucket); });
}

}  // namespace per::cuda

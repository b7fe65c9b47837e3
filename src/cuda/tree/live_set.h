// The set of slots with live transitions. It finds the r-th of them, so that a uniform draw is a draw of r.
#pragma once

#include <cstdint>

#include "cuda/tree/sum_tree.h"

namespace per::cuda {

inline constexpr uint64_t slots_per_word = 32;

// A bitmap, and sums of the numbers of its bits. The leaves of the sums are words of the bitmap. Together they take
// 0.14 bytes a slot.
struct DeviceLive : DeviceSums {
    uint32_t* words;  // [n_nodes[0]]
};

__device__ __forceinline__ bool is_live(const DeviceLive& live, int64_t slot) {
    return (live.words[slot / slots_per_word] >> (slot % slots_per_word) & 1) != 0;
}

// insert() and erase() return true if the bit changed. Several threads may change bits at the same time. `top`:
// nothing, or the TopChanges of a block.
template <class... Top>
__device__ __forceinline__ bool insert(const DeviceLive& live, int64_t slot, Top&... top) {
    const uint32_t bit = 1u << (slot % slots_per_word);
    if ((atomicOr(&live.words[slot / slots_per_word], bit) & bit) != 0) return false;
    add_to_sums(live, top..., slot / slots_per_word, 1);
    return true;
}

template <class... Top>
__device__ __forceinline__ bool erase(const DeviceLive& live, int64_t slot, Top&... top) {
    const uint32_t bit = 1u << (slot % slots_per_word);
    if ((atomicAnd(&live.words[slot / slots_per_word], ~bit) & bit) == 0) return false;
    add_to_sums(live, top..., slot / slots_per_word, ~uint64_t{0});
    return true;
}

// The slot of the set that has exactly `rank` smaller slots in the set. `rank` must be below the size of the set. A
// warp searches for the slot.
PER_OUT_OF_LINE int64_t select(const DeviceLive& live, const TopRow& row, uint64_t rank) {
    const unsigned lane = lane_of_thread();
    const int64_t node = find_node(live, row, rank);
    const uint32_t word = live.words[node * fan_out + lane];
    const int child = find_child(static_cast<uint64_t>(__popc(word)), rank);
    uint32_t bits = __shfl_sync(all_lanes, word, child);
    for (uint64_t i = 0; i < rank; ++i) bits &= bits - 1;
    return (node * fan_out + child) * slots_per_word + __ffs(static_cast<int>(bits)) - 1;
}

}  // namespace per::cuda

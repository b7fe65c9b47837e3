// The maximum of many numbers that change one by one.
#pragma once

#include <cstdint>

#include "cuda/tree/sum_tree.h"

namespace per::cuda {

// Maxima of 32 leaves, of 32 such maxima, and so on; the caller has the leaves. They are the bits of floats >= 0, whose
// order is that of the floats, and take 0.13 bytes a leaf. Without levels no maximum is kept.
struct DeviceMaximum {
    uint32_t* levels[max_tree_levels + 2];  // [0]: one for 32 leaves; the last has one node
    int64_t n_nodes[max_tree_levels + 2];
    int n_levels;

    PER_HOST_DEVICE uint32_t* top() const { return levels[n_levels - 1]; }
};

__device__ __forceinline__ float maximum_of(const DeviceMaximum& maximum) {
    return __uint_as_float(*maximum.top());
}

// Computes a node from the level below, or for level 0 from the n_leaves leaves, whose bits are bits_at(i). The grid
// must have finished a level before the next begins. Several threads may compute the same node.
template <class BitsAt>
__device__ __forceinline__ void refresh_node(const DeviceMaximum& maximum, int level, int64_t node, int64_t n_leaves,
                                             const BitsAt& bits_at) {
    const int64_t n_below = level == 0 ? n_leaves : maximum.n_nodes[level - 1];
    const int64_t end = (node + 1) * fan_out < n_below ? (node + 1) * fan_out : n_below;
    uint32_t largest = 0;
    for (int64_t i = node * fan_out; i < end; ++i) {
        largest = larger(largest, level == 0 ? bits_at(i) : maximum.levels[level - 1][i]);
    }
    atomicExch(&maximum.levels[level][node], largest);
}

// The node of `level` that is above a leaf.
__device__ __forceinline__ int64_t node_above(int64_t leaf, int level) {
    for (; level >= 0; --level) leaf /= fan_out;
    return leaf;
}

}  // namespace per::cuda

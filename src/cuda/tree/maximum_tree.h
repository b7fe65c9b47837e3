// The maximum of many numbers that change one by one.
#pragma once

#include <cstdint>

#include "cuda/tree/sum_tree.h"

namespace per::cuda {

// Maxima of 32 leaves, of 32 such maxima, and so on; the caller has the leaves. They are the bits of floats >= 0, whose
// order is that of the floats, and take 0.13 bytes a leaf. Without levels no maximum is kept.
struct DeviceMaximum {
    uint32_t* levels[max_tree_levels + 2];  // [0]: one for 32 leaves; the last has one node
    int64_t n_nodes[max_tree_levels + 2];   // the arrays end with whole groups of 32, of which the rest is 0
    int n_levels;

    PER_HOST_DEVICE uint32_t* top() const { return levels[n_levels - 1]; }
};

__device__ __forceinline__ float maximum_of(const DeviceMaximum& maximum) {
    return __uint_as_float(*maximum.top());
}

// The largest of the bits of 32 children, which begin at a multiple of 16 bytes: bits_of(i, child) for child i. All of
// them are read at the same time.
template <class Child, class BitsOf>
__device__ __forceinline__ uint32_t largest_of_children(const Child* children, const BitsOf& bits_of) {
    struct alignas(16) Four {
        Child child[4];
    };
    uint32_t largest = 0;
    for (int i = 0; i < fan_out; i += 4) {
        const Four four = reinterpret_cast<const Four*>(children)[i / 4];
        for (int j = 0; j < 4; ++j) largest = larger(largest, bits_of(i + j, four.child[j]));
    }
    return largest;
}

// Computes a node from the level below, or for level 0 from its 32 leaves, whose bits are bits_of(i, leaf). The grid
// must have finished a level before the next begins. Several threads may compute the same node.
template <class BitsOf>
__device__ __forceinline__ void refresh_node(const DeviceMaximum& maximum, int level, int64_t node, const float* leaves,
                                             const BitsOf& bits_of) {
    const int64_t first = node * fan_out;
    const uint32_t largest =
        level == 0 ? largest_of_children(leaves + first, bits_of)
                   : largest_of_children(maximum.levels[level - 1] + first, [](int, uint32_t child) { return child; });
    atomicExch(&maximum.levels[level][node], largest);
}

// The node of `level` that is above a leaf.
__device__ __forceinline__ int64_t node_above(int64_t leaf, int level) {
    for (; level >= 0; --level) leaf /= fan_out;
    return leaf;
}

}  // namespace per::cuda

// The largest of many numbers that change one by one.
#pragma once

#include <cstdint>

#include "cuda/sum_tree.h"

namespace per::cuda {

// Maxima of 32 leaves, of 32 such maxima, and so on; the leaves are the caller's. As bits of floats >= 0, which are in
// the order of the floats. 0.13 bytes a leaf. No levels: it is not kept.
struct DeviceMaximum {
    uint32_t* levels[max_tree_levels + 2];  // [0]: one for 32 leaves; the last has one node
    int64_t n_nodes[max_tree_levels + 2];
    int n_levels;
};

}  // namespace per::cuda

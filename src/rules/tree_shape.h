// The shape of the CPU's sum tree, and the search in it. Level 0 has the leaves, 16 floats to a line of 64 bytes. Level
// 1 has one uint64 for each such line, the sum of its masses. Each level above has one sum for 8 of the level below,
// again a line. Sums are those of children, not prefix sums: writing a leaf changes one number a level. CUDA's tree has
// another shape and finds the same leaves, since those follow from the masses and their order alone.
#pragma once

#include <stdint.h>

#include "rules/host_device.h"

namespace per {

inline constexpr int64_t leaves_per_line = 16;
inline constexpr int64_t sums_per_line = 8;
// 2^40 leaves: 2^36 lines of leaves, and 12 levels of sums until 8 or fewer are left.
inline constexpr int max_levels = 13;

struct TreeShape {
    int n_levels;                 // leaves included
    int64_t n_nodes[max_levels];  // of each level, rounded up to whole lines; the padding is always 0
};

PER_HOST_DEVICE TreeShape tree_shape(int64_t capacity) {
    TreeShape shape = {};
    int64_t n_lines = (capacity + leaves_per_line - 1) / leaves_per_line;
    shape.n_nodes[0] = n_lines * leaves_per_line;
    shape.n_levels = 1;
    do {
        const int64_t n_nodes = n_lines;
        n_lines = (n_nodes + sums_per_line - 1) / sums_per_line;
        shape.n_nodes[shape.n_levels++] = n_lines * sums_per_line;
    } while (n_lines > 1);
    return shape;
}

// Finds the child that holds unit `rest` of the masses of n children, counted in order: m_0 + .. + m_(child-1) <= rest
// < m_0 + .. + m_child. `rest` becomes the unit within that child. The last child is chosen if no other one holds the
// unit.
template <class MassAt>
PER_HOST_DEVICE int find_child(int n, MassAt mass_at, uint64_t& rest) {
    int child = 0;
    for (; child < n - 1; ++child) {
        const uint64_t mass = mass_at(child);
        if (rest < mass) break;
        rest -= mass;
    }
    return child;
}

}  // namespace per

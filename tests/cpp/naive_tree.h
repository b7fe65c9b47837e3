// Leaves in an array, for tests of the sum tree: masses are summed from the first leaf.
#pragma once

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <random>
#include <vector>

#include "cpu/tree/sum_tree.h"

namespace per::cpu {

struct NaiveTree {
    explicit NaiveTree(int64_t capacity, float leaf = 0.0f) : leaves(static_cast<std::size_t>(capacity), leaf) {}

    uint64_t mass(int64_t i, int scale) const {
        return static_cast<uint64_t>(
            std::ceil(std::ldexp(static_cast<double>(leaves[static_cast<std::size_t>(i)]), scale)));
    }
    int64_t find(uint64_t unit, int scale) const {
        int64_t i = 0;
        for (; unit >= mass(i, scale); ++i) unit -= mass(i, scale);
        return i;
    }

    std::vector<float> leaves;
};

inline void expect_same_levels(const SumTree& tree, const NaiveTree& naive) {
    const TreeShape& shape = tree.shape();
    std::vector<uint64_t> below(static_cast<std::size_t>(shape.n_nodes[0]));
    for (int64_t i = 0; i < shape.n_nodes[0]; ++i) {
        const bool is_padding = i >= tree.capacity();
        ASSERT_EQ(tree.leaves()[i], is_padding ? 0.0f : naive.leaves[static_cast<std::size_t>(i)]) << i;
        if (!is_padding) below[static_cast<std::size_t>(i)] = naive.mass(i, tree.scale());
    }
    uint64_t total = 0;
    for (const uint64_t mass : below) total += mass;
    ASSERT_EQ(tree.total_mass(), total);
    for (int level = 1; level < shape.n_levels; ++level) {
        const std::size_t fan_out = level == 1 ? leaves_per_line : sums_per_line;
        std::vector<uint64_t> sums(static_cast<std::size_t>(shape.n_nodes[level]));
        for (std::size_t i = 0; i < below.size(); ++i) sums[i / fan_out] += below[i];
        for (std::size_t i = 0; i < sums.size(); ++i) ASSERT_EQ(tree.sums(level)[i], sums[i]) << level << " " << i;
        below = sums;
    }
}

// Leaves of one magnitude, which sometimes changes, mixed with zeros and extremes.
class RandomLeaves {
 public:
    // One in `n_kinds` changes the magnitude.
    float next(std::mt19937_64& numbers, uint64_t n_kinds) {
        const uint64_t kind = numbers() % n_kinds;
        if (kind < 20) return 0.0f;
        if (kind == 20) return FLT_TRUE_MIN;
        if (kind == 21) return FLT_MAX;
        if (kind == 22) exponent_ = static_cast<int>(numbers() % 260) - 140;
        return static_cast<float>(std::ldexp(static_cast<double>(numbers() >> 11) * 0x1p-53, exponent_));
    }

 private:
    int exponent_ = 0;
};

}  // namespace per::cpu

// The largest of many numbers that change one by one.
#pragma once

#include <cstdint>

#include "cpu/memory/memory.h"

namespace per::cpu {

// Maxima of 16 leaves, of 16 such maxima, and so on. The caller keeps the leaves, which are not negative. The maxima
// take 0.27 bytes a leaf. A change reads one line at each level until a maximum stays the same, usually at the first.
class MaximumTree {
 public:
    static constexpr int64_t fan_out = 16;

    explicit MaximumTree(int64_t capacity, const MemorySource& source = {});

    MemoryUse memory_use() const { return memory_.use(); }

    // The largest leaf. It is 0 at first.
    float maximum() const { return levels_[n_levels_ - 1][0]; }

    // Updates the maxima. Call it after a change of leaf `index`, or of any leaves among the same 16. leaf_at(i) gives
    // leaf i, 0 .. capacity - 1.
    template <class LeafAt>
    void update(int64_t index, const LeafAt& leaf_at) {
        int64_t node = index / fan_out;
        const int64_t first = node * fan_out;
        const int64_t end = first + fan_out < capacity_ ? first + fan_out : capacity_;
        float largest = 0.0f;
        for (int64_t i = first; i < end; ++i) largest = leaf_at(i) > largest ? leaf_at(i) : largest;
        set(node, largest);
    }

    // Makes all leaves 0. Takes time in proportion to those that were not.
    void reset();

 private:
    static constexpr int max_levels = 10;  // 2^40 leaves

    void set(int64_t node, float largest);
    void reset(int level, int64_t node);

    int64_t capacity_;
    Memory memory_;
    int n_levels_ = 0;
    float* levels_[max_levels];  // [0]: one node for 16 leaves; in the last level only node 0 is used
};

}  // namespace per::cpu

#include "cpu/tree/maximum_tree.h"

namespace per::cpu {

MaximumTree::MaximumTree(int64_t capacity, const MemorySource& source) : capacity_(capacity) {
    int64_t n_nodes[max_levels];
    int64_t total = 0;
    int64_t n = capacity;
    do {
        n = (n + fan_out - 1) / fan_out;
        n_nodes[n_levels_] = (n + fan_out - 1) / fan_out * fan_out;
        total += n_nodes[n_levels_++];
    } while (n > 1);
    memory_ = Memory(static_cast<std::size_t>(total) * sizeof(float), source);
    float* nodes = reinterpret_cast<float*>(memory_.data());
    for (int level = 0; level < n_levels_; ++level) {
        levels_[level] = nodes;
        nodes += n_nodes[level];
    }
}

void MaximumTree::set(int64_t node, float largest) {
    for (int level = 0; levels_[level][node] != largest; ++level) {
        levels_[level][node] = largest;
        if (level == n_levels_ - 1) return;
        node /= fan_out;
        largest = 0.0f;
        for (int64_t i = node * fan_out; i < (node + 1) * fan_out; ++i) {
            if (levels_[level][i] > largest) largest = levels_[level][i];
        }
    }
}

void MaximumTree::reset(int level, int64_t node) {
    if (levels_[level][node] == 0.0f) return;
    levels_[level][node] = 0.0f;
    if (level == 0) return;
    for (int64_t i = node * fan_out; i < (node + 1) * fan_out; ++i) reset(level - 1, i);
}

void MaximumTree::reset() {
    reset(n_levels_ - 1, 0);
}

}  // namespace per::cpu

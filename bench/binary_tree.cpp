#include "binary_tree.h"

#include <algorithm>
#include <bit>

namespace bench {

BinaryTree::BinaryTree(int64_t capacity)
    : capacity_(capacity),
      leaf_count_(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(capacity)))),
      nodes_(2 * leaf_count_) {}

void BinaryTree::fill(const float* priorities) {
    std::copy_n(priorities, capacity_, nodes_.data() + leaf_count_);
    for (int64_t node = leaf_count_ - 1; node >= 1; --node) nodes_[node] = nodes_[2 * node] + nodes_[2 * node + 1];
}

void BinaryTree::update(int64_t count, const int64_t* indices, const float* priorities) {
    for (int64_t i = 0; i < count; ++i) set(indices[i], priorities[i]);
}

void BinaryTree::set(int64_t index, float priority) {
    int64_t node = index + leaf_count_;
    nodes_[node] = priority;
    for (node /= 2; node >= 1; node /= 2) nodes_[node] = nodes_[2 * node] + nodes_[2 * node + 1];
}

int64_t BinaryTree::find(float prefix_sum) const {
    int64_t node = 1;
    while (node < leaf_count_) {
        node *= 2;
        const float left = nodes_[node];
        if (prefix_sum >= left) {
            prefix_sum -= left;
            ++node;
        }
    }
    // Rounded sums let a prefix sum pass the last leaf.
    return std::min(node - leaf_count_, capacity_ - 1);
}

int64_t BinaryTree::find_branch_free(float prefix_sum) const {
    int64_t node = 1;
    while (node < leaf_count_) {
        node *= 2;
        const float left = nodes_[node];
        const uint32_t right = prefix_sum >= left;
        // -right is all ones or all zeros; a conditional expression would be compiled to a branch.
        prefix_sum -= std::bit_cast<float>(std::bit_cast<uint32_t>(left) & -right);
        node += right;
    }
    return std::min(node - leaf_count_, capacity_ - 1);
}

float BinaryTree::stratified_prefix_sum(int64_t i, double stratum) {
    return static_cast<float>((static_cast<double>(i) + random_.uniform()) * stratum);
}

void BinaryTree::sample_stratified(Draws& draws) {
    const double stratum = total() / static_cast<double>(draws.batch());
    for (int64_t i = 0; i < draws.batch(); ++i) {
        draws.indices[i] = find(stratified_prefix_sum(i, stratum));
        draws.priorities[i] = nodes_[leaf_count_ + draws.indices[i]];
    }
}

void BinaryTree::sample_stratified_branch_free(Draws& draws) {
    const double stratum = total() / static_cast<double>(draws.batch());
    for (int64_t i = 0; i < draws.batch(); ++i) {
        draws.indices[i] = find_branch_free(stratified_prefix_sum(i, stratum));
        draws.priorities[i] = nodes_[leaf_count_ + draws.indices[i]];
    }
}

void BinaryTree::sample_independent(Draws& draws) {
    for (int64_t i = 0; i < draws.batch(); ++i) {
        draws.indices[i] = find(static_cast<float>(random_.uniform() * total()));
        draws.priorities[i] = nodes_[leaf_count_ + draws.indices[i]];
    }
}

/* Sets each drawn leaf to zero, and restores all of them at the end. */
void BinaryTree::sample_without_replacement(Draws& draws) {
    for (int64_t i = 0; i < draws.batch(); ++i) {
        int64_t index = find(static_cast<float>(random_.uniform() * total()));
        while (nodes_[leaf_count_ + index] == 0) index = find(static_cast<float>(random_.uniform() * total()));
        draws.indices[i] = index;
        draws.priorities[i] = nodes_[leaf_count_ + index];
        set(index, 0);
    }
    update(draws.batch(), draws.indices.data(), draws.priorities.data());
}

void BinaryTree::read(float* priorities_out) const {
    std::copy_n(nodes_.data() + leaf_count_, capacity_, priorities_out);
}

}  // namespace bench

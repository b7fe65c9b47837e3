#include "cpu/tree/rank_tree.h"

#include <algorithm>

#include "cpu/memory/scratch.h"

namespace per::cpu {
namespace {

std::size_t bytes_of(int64_t capacity, int64_t max_at_once) {
    return ScratchLayout::bytes_of<uint16_t>(capacity) + ScratchLayout::bytes_of<int64_t>(n_rank_buckets) +
           ScratchLayout::bytes_of<float>(n_rank_buckets) + ScratchLayout::bytes_of<float>(max_at_once);
}

}  // namespace

RankTree::RankTree(int64_t capacity, const MemorySource& source)
    : capacity_(capacity), memory_(bytes_of(capacity, max_at_once), source), tree_(capacity, source) {
    ScratchLayout layout(memory_.data());
    buckets_ = layout.array<uint16_t>(capacity);
    counts_ = layout.array<int64_t>(n_rank_buckets);
    weights_ = layout.array<float>(n_rank_buckets);
    leaves_ = layout.array<float>(max_at_once);
}

int64_t RankTree::set(int64_t n, const int64_t* slots, const float* priorities) {
    int64_t n_moved = 0;
    for (int64_t first = 0; first < n; first += max_at_once) {
        const int64_t size = std::min(max_at_once, n - first);
        for (int64_t i = first; i < first + size; ++i) {
            uint16_t& bucket = buckets_[slots[i]];
            const uint16_t before = bucket;
            bucket = priorities[i] >= 0.0f ? static_cast<uint16_t>(rank_bucket(priorities[i]) + 1) : not_live;
            if (bucket == before) continue;
            if (before != not_live) --counts_[before - 1];
            if (bucket != not_live) ++counts_[bucket - 1];
            n_live_ += (bucket != not_live) - (before != not_live);
            ++n_moved;
        }
        for (int64_t i = 0; i < size; ++i) leaves_[i] = leaf(slots[first + i]);
        tree_.change(size, slots + first, leaves_);
    }
    return n_moved;
}

void RankTree::clear(const LiveSet& live) {
    live.for_each_used_line([this](int64_t first, int64_t n) { std::fill_n(buckets_ + first, n, not_live); });
    std::fill_n(counts_, n_rank_buckets, 0);
    n_live_ = 0;
    tree_.reset();
    forget_ranks();
}

void RankTree::write_leaves() {
    float* const leaves = tree_.leaves();
    for (int64_t slot = 0; slot < capacity_; ++slot) leaves[slot] = leaf(slot);
}

bool RankTree::take_ranks_if_due(double alpha) {
    if (!are_due()) return false;
    RankWeights weights(alpha);
    for (int32_t bucket = n_rank_buckets - 1; bucket >= 0; --bucket) weights_[bucket] = weights.next(counts_[bucket]);
    write_leaves();
    tree_.rebuild();
    n_changes_ = 0;
    return true;
}

uint64_t RankTree::smallest_mass() const {
    int32_t bucket = 1;
    while (bucket < n_rank_buckets && counts_[bucket] == 0) ++bucket;
    if (bucket == n_rank_buckets) bucket = 0;
    return mass_of(weights_[bucket], power_of_two(tree_.scale()));
}

void RankTree::restore_state(const State& state) {
    n_changes_ = state.n_changes;
    tree_.restore_scale(state.tree_scale, state.tree_rescales_below);
}

void RankTree::restore(int64_t n, const int64_t* slots, const float* priorities) {
    for (int64_t first = 0; first < n; first += max_at_once) {
        const int64_t size = std::min(max_at_once, n - first);
        for (int64_t i = 0; i < size; ++i) {
            const int32_t bucket = rank_bucket(priorities[first + i]);
            buckets_[slots[first + i]] = static_cast<uint16_t>(bucket + 1);
            ++counts_[bucket];
            leaves_[i] = weights_[bucket];
        }
        n_live_ += size;
        tree_.set_at_scale(size, slots + first, leaves_);
    }
}

}  // namespace per::cpu

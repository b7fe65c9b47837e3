// What transitions weigh by the rank of their priority, in host memory.
#pragma once

#include <cstdint>

#include "cpu/memory/memory.h"
#include "cpu/tree/live_set.h"
#include "cpu/tree/sum_tree.h"
#include "rules/rank.h"

namespace per::cpu {

// A sum tree of rank weights (rank.h). Ranks are taken anew for all when ranks_are_due(), at a draw; in between a
// changed transition takes the weight that its priority had then. 6.6 bytes a row. Only the constructor allocates.
class RankTree {
 public:
    explicit RankTree(int64_t capacity, const MemorySource& source = {});

    SumTree& tree() { return tree_; }
    const SumTree& tree() const { return tree_; }
    MemoryUse memory_use() const { return memory_.use() + tree_.memory_use(); }

    // A change as SumTree has them. In between, set() gives rows' priorities as they are after it; negative for a row
    // that is not live. It returns how many slots changed their bucket. The caller counts the changes of ranks (rank.h)
    // and tells end_change(), as set() cannot see that a slot's row was replaced.
    void begin_change(int64_t n) { tree_.begin_change(n); }
    int64_t set(int64_t n, const int64_t* slots, const float* priorities);
    void end_change(int64_t n_changes) {
        tree_.end_change();
        n_changes_ += n_changes;
    }
    // The most that a transition weighs, until ranks are taken again.
    float largest_weight() const { return weights_[n_rank_buckets - 1]; }
    // No row is live; `live` has those that are so until then.
    void clear(const LiveSet& live);

    bool are_due() const { return ranks_are_due(n_changes_, n_live_); }
    // To be called before draws; whether it took them. The next call after forget_ranks() takes them anew whatever has
    // changed.
    bool take_ranks_if_due(double alpha);
    void forget_ranks() { n_changes_ = ranks_never_taken; }

    // The smallest mass of a live row of positive priority, or of any if all are 0; some row is live.
    uint64_t smallest_mass() const;

    // For checkpoints: what besides the priorities decides the weights.
    struct State {
        int64_t n_changes;
        int32_t tree_scale;
        uint64_t tree_rescales_below;
    };
    State state() const { return {n_changes_, tree_.scale(), tree_.rescales_below()}; }
    float* weights() { return weights_; }  // [n_rank_buckets]
    // Of a tree in which no row is live yet. After weights() were filled and restore_state(), restore() once for each
    // live row.
    void restore_state(const State& state);
    void restore(int64_t n, const int64_t* slots, const float* priorities);

 private:
    static constexpr uint16_t not_live = 0;
    static constexpr int64_t max_at_once = 2048;

    float leaf(int64_t slot) const { return buckets_[slot] == not_live ? 0.0f : weights_[buckets_[slot] - 1]; }
    void write_leaves();

    int64_t capacity_;
    Memory memory_;
    uint16_t* buckets_;  // by slot: not_live, or the bucket + 1
    int64_t* counts_;    // by bucket
    float* weights_;     // by bucket: of a transition in it, when ranks were taken last
    float* leaves_;      // of some slots, on their way to the tree
    SumTree tree_;
    int64_t n_live_ = 0;
    int64_t n_changes_ = ranks_never_taken;
};

}  // namespace per::cpu

// The weights of transitions by the rank of their priority, in host memory.
#pragma once

#include <cstdint>

#include "cpu/memory/memory.h"
#include "cpu/tree/live_set.h"
#include "cpu/tree/sum_tree.h"
#include "rules/rank.h"

namespace per::cpu {

// A sum tree of rank weights (rank.h). A draw takes ranks of all transitions if ranks_are_due(). If a priority changes
// before that, its transition gets the weight that the new priority had when ranks were last taken. A row takes 6.6
// bytes. Only the constructor allocates.
class RankTree {
 public:
    explicit RankTree(int64_t capacity, const MemorySource& source = {});

    SumTree& tree() { return tree_; }
    const SumTree& tree() const { return tree_; }
    MemoryUse memory_use() const { return memory_.use() + tree_.memory_use(); }

    // A change like those of SumTree. Between begin_change() and end_change(), set() takes the final priorities of
    // rows, negative for a row that is not live, and returns the number of slots that changed their bucket. The caller
    // passes the number of changes of ranks (rank.h) to end_change(), since set() cannot see that a slot's row was
    // replaced.
    void begin_change(int64_t n) { tree_.begin_change(n); }
    int64_t set(int64_t n, const int64_t* slots, const float* priorities);
    void end_change(int64_t n_changes) {
        tree_.end_change();
        n_changes_ += n_changes;
    }
    // The largest weight of a transition, until ranks are taken again.
    float largest_weight() const { return weights_[n_rank_buckets - 1]; }
    // Makes all rows dead. `live` must still hold the live ones.
    void clear(const LiveSet& live);

    bool are_due() const { return ranks_are_due(n_changes_, n_live_); }
    // Must be called before draws. Returns true if it took ranks. After forget_ranks() the next call takes them in any
    // case.
    bool take_ranks_if_due(double alpha);
    void forget_ranks() { n_changes_ = ranks_never_taken; }

    // The smallest mass of a live row of positive priority, or of any live row if all priorities are 0. Some row must
    // be live.
    uint64_t smallest_mass() const;

    // For checkpoints: the state that, with the priorities, decides the weights.
    struct State {
        int64_t n_changes;
        int32_t tree_scale;
        uint64_t tree_rescales_below;
    };
    State state() const { return {n_changes_, tree_.scale(), tree_.rescales_below()}; }
    float* weights() { return weights_; }  // [n_rank_buckets]
    // Restore a checkpoint, in a tree that has no live rows yet: fill weights(), then call restore_state(), then
    // restore() until each live row has been given once.
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
    float* weights_;     // by bucket: of a transition in it, as of the last ranks
    float* leaves_;      // scratch: leaves of some slots
    SumTree tree_;
    int64_t n_live_ = 0;
    int64_t n_changes_ = ranks_never_taken;
};

}  // namespace per::cpu

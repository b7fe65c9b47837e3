#ifndef PER_BENCH_BINARY_TREE_H
#define PER_BENCH_BINARY_TREE_H

#include <cstdint>

#include "draws.h"
#include "page_array.h"
#include "xoshiro.h"

namespace bench {

/*
 * The sum tree of most replay buffers: float32, two children a node, root at 1, children of i at 2i and 2i + 1. Sums
 * are recomputed on the way up, so that they do not drift.
 */
class BinaryTree {
 public:
    explicit BinaryTree(int64_t capacity);

    void fill(const float* priorities);
    void update(int64_t count, const int64_t* indices, const float* priorities);

    void sample_stratified(Draws& draws);

    /* The same draws with a branch-free descent. While the tree is in cache it takes half the time; beyond, more
       than twice: a branch that is guessed right fetches the next node early. */
    void sample_stratified_branch_free(Draws& draws);
    void sample_independent(Draws& draws);
    void sample_without_replacement(Draws& draws);

    void read(float* priorities_out) const;
    double total() const { return nodes_[1]; }

 private:
    int64_t find(float prefix_sum) const;
    int64_t find_branch_free(float prefix_sum) const;
    float stratified_prefix_sum(int64_t i, double stratum);
    void set(int64_t index, float priority);

    int64_t capacity_;
    int64_t leaf_count_;
    PageArray<float> nodes_;
    Xoshiro random_{1};
};

/* The branch-free draws of a binary tree, with the interface of all structures. */
struct BranchFreeTree {
    void sample_stratified(Draws& draws) { tree.sample_stratified_branch_free(draws); }
    void update(int64_t count, const int64_t* indices, const float* priorities) {
        tree.update(count, indices, priorities);
    }
    void read(float* priorities_out) const { tree.read(priorities_out); }
    double total() const { return tree.total(); }

    BinaryTree& tree;
};

}  // namespace bench

#endif

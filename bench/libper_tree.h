#ifndef PER_BENCH_LIBPER_TREE_H
#define PER_BENCH_LIBPER_TREE_H

#include <per.h>

#include <cstdint>
#include <memory>

#include "draws.h"

namespace bench {

/* A per_tree with the interface of the other structures. */
class LibperTree {
 public:
    explicit LibperTree(int64_t capacity);

    void fill(const float* priorities);
    void update(int64_t count, const int64_t* indices, const float* priorities);

    void sample_stratified(Draws& draws) { sample(draws, PER_STRATIFIED); }
    void sample_independent(Draws& draws) { sample(draws, PER_INDEPENDENT); }
    void sample_without_replacement(Draws& draws) { sample(draws, PER_WITHOUT_REPLACEMENT); }
    void sample_weighted(Draws& draws);

    void read(float* priorities_out) const;
    void mass(uint64_t& total, int32_t& scale) const;

 private:
    void sample(Draws& draws, per_scheme scheme);

    struct Free {
        void operator()(per_tree* tree) const { per_tree_free(tree); }
    };

    int64_t capacity_;
    std::unique_ptr<per_tree, Free> tree_;
};

}  // namespace bench

#endif

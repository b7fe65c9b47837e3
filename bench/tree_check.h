#ifndef PER_BENCH_TREE_CHECK_H
#define PER_BENCH_TREE_CHECK_H

#include <cstdint>
#include <vector>

#include "draws.h"
#include "libper_tree.h"

namespace bench {

/*
 * A naive model of a structure: the mass of a leaf, the total, and the tolerance of either. long double holds sums of
 * libper's masses, which are below 2^62, exactly.
 */
struct Masses {
    bool whole;         // true for libper: mass(p) = ceil(p * unit), and sums are exact. Otherwise mass(p) = p
    double unit;        // 2^scale, so that the product with a float32 is exact
    long double total;  // according to the structure

    double of(float priority) const;
    /* Tolerance for the structure's rounding at the borders of `batch` strata. */
    long double slack(int64_t batch) const;
};

Masses masses_of(const LibperTree& tree);

template <class Tree>
Masses masses_of(const Tree& tree) {
    return Masses{false, 1, tree.total()};
}

/* The following checks throw WrongResult. `priorities` are those of all leaves, in order. */

void check_total(const Masses& masses, const std::vector<float>& priorities);

/* Draw i lies in the i-th of batch equal parts of the total. */
void check_strata(const Masses& masses, const std::vector<float>& priorities, const Draws& draws);

/* Every index is a leaf with mass, and its reported priority is correct. */
void check_drawn(const std::vector<float>& priorities, const Draws& draws);

void check_distinct(const Draws& draws);

/* Weights are (q_min / q)^weights_beta. */
void check_weights(const Draws& draws);

/* `after` is `before` with the updates made, in order. */
void check_update(std::vector<float> before, const std::vector<int64_t>& indices, const std::vector<float>& priorities,
                  const std::vector<float>& after);

}  // namespace bench

#endif

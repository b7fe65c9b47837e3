// Drawing without replacement.
#pragma once

#include <cstddef>

#include "cpu/tree/sum_tree.h"

namespace per::cpu {

// What one draw without replacement found, in order.
struct DistinctDraw {
    int64_t* indices;
    uint64_t* masses;
    float* priorities;
    int64_t n_found;  // batch_size, or how many leaves have mass if those are fewer
    // K, the number of independent draws before the one that would have found another leaf; infinite if there is none.
    // The probability that a leaf of mass q is among those found is close to 1 - (1 - q / total)^K.
    double n_draws;
};

// Draws batch_size different leaves, each next one in proportion to the masses that are left.
//
// Independent draws that discard repeats have that law, and go through the tree together. They come in rounds of
// n + n/4 + 16 of them, rounded up to an even number, n being how many leaves are still to be found and one more. Where
// more than half of a round were repeats, a few leaves hold most of the mass: those found are then taken out, and a
// draw from what is left stands for a geometric number of draws from the whole. At the end all are put back.
//
// The result lies in `scratch`, of distinct_draw_scratch_bytes(). The tree is unchanged afterwards but may be written
// in between, so nothing else may run at the same time.
DistinctDraw draw_distinct(SumTree& tree, const DrawRequest& request, std::byte* scratch);
std::size_t distinct_draw_scratch_bytes(const SumTree& tree, int64_t batch_size);

}  // namespace per::cpu

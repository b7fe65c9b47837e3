// Drawing without replacement.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/draw/mixture_draw.h"
#include "cpu/memory/scratch.h"
#include "cpu/tree/live_set.h"
#include "cpu/tree/sum_tree.h"
#include "rules/draw.h"

namespace per::cpu {

// Draws batch_size different indices, each next one in proportion to what is left.
//
// Independent draws that discard repeats have that law, and go through the tree together. They come in rounds of n +
// n/4 + 16 of them, rounded up to an even number, n being how many indices are still to be found and one more. Where
// more than half of a round were repeats, a few indices hold most of the mass: those found are then taken out, and a
// draw from what is left stands for a geometric number of draws from the whole. At the end all are put back.
//
// Tree and live set are unchanged afterwards but may be written in between, so nothing else may use them at the same
// time. Throws only before it changes anything. Memory is kept from draw to draw.
class DistinctDraw {
 public:
    // What one draw found, in order.
    struct Found {
        const int64_t* indices;  // valid until the next draw
        int64_t n;               // batch_size, or how many can be drawn if those are fewer
        // K, the number of independent draws before the one that would have found another index; infinite if there is
        // none. An index that a draw gives with probability p is among those found with a probability close to
        // 1 - (1 - p)^K.
        double n_draws;
    };

    // Draws leaves of the tree in proportion to their masses.
    Found draw(SumTree& tree, const DrawRequest& request);
    // Draws live slots by a law with a uniform part, of which it needs uniform_fraction, n_live and mass.
    Found draw(SumTree& tree, LiveSet& live, MixtureDraw& mixture, const DrawLaw& law, const DrawRequest& request);

 private:
    void reserve(int64_t n_wanted);
    template <class Source>
    Found draw_from(const Source& source, const DrawRequest& request);

    ScratchPool scratch_;
    std::vector<int64_t> indices_;  // found
    std::vector<int64_t> round_;
    std::vector<uint64_t> table_;
    std::vector<float> priorities_;  // of those taken out
    std::vector<float> zeros_;
};

}  // namespace per::cpu

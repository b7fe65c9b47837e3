// Drawing without replacement.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/distinct_rounds.h"
#include "cpu/draw/mixture_draw.h"
#include "cpu/memory/scratch.h"
#include "cpu/tree/live_set.h"
#include "cpu/tree/sum_tree.h"
#include "rules/draw.h"

namespace per::cpu {

// Draws batch_size different indices: each draw gives one of the indices that are left, in proportion to its mass. The
// draws are made in the rounds of DistinctRounds. Indices that the rounds take out are put back at the end.
//
// The tree and the live set change during a draw, and are as before when it returns: nothing else may use them
// meanwhile. Throws only before it changes anything. Memory is kept from draw to draw.
class DistinctDraw {
 public:
    // The result of a draw, in order.
    struct Found {
        const int64_t* indices;  // valid until the next draw
        int64_t n;               // batch_size, or fewer if no more can be drawn
        double n_draws;          // see DistinctRounds
    };

    Found draw(SumTree& tree, const DrawRequest& request);
    // The same for live slots and a law whose uniform_fraction is not 0. Of the law it reads uniform_fraction, n_live
    // and mass.
    Found draw(SumTree& tree, LiveSet& live, MixtureDraw& mixture, const DrawLaw& law, const DrawRequest& request);

 private:
    void reserve(int64_t batch_size);
    template <class Source>
    Found draw_from(const Source& source, const DrawRequest& request);

    ScratchPool scratch_;
    DistinctRounds rounds_;
    std::vector<float> priorities_;  // of the indices taken out
    std::vector<float> zeros_;
};

}  // namespace per::cpu

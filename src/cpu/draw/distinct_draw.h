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

// Draws batch_size different indices, each in proportion to the remaining ones, in rounds by DistinctRounds. Indices
// that the rounds take out are put back at the end.
//
// Tree and live set are unchanged afterwards but may be written in between, so nothing else may use them at the same
// time. Throws only before it changes anything. Memory is kept from draw to draw.
class DistinctDraw {
 public:
    // The result of a draw, in order.
    struct Found {
        const int64_t* indices;  // valid until the next draw
        int64_t n;               // batch_size, or fewer if no more can be drawn
        double n_draws;          // see DistinctRounds
    };

    Found draw(SumTree& tree, const DrawRequest& request);
    // Draws live slots by a law with a uniform part. Reads uniform_fraction, n_live and mass of the law.
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

// Draws from a mixture of the uniform and the prioritized distribution over the live transitions (mixture.h).
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/tree/live_set.h"
#include "cpu/tree/sum_tree.h"
#include "rules/random.h"

namespace per::cpu {

// Targets of a batch of draws, as draw_target() gives them; room for draw_padding more.
void write_targets(const DrawKernels& kernels, const DrawRequest& request, uint64_t total, uint64_t* targets_out);

// Memory is kept from batch to batch.
class MixtureDraw {
 public:
    // With replacement; `uniform` of the mixture_units draw uniformly. The parts that can be drawn must have some
    // transition.
    void draw(const SumTree& tree, const LiveSet& live, uint64_t uniform, const DrawRequest& request,
              int64_t* slots_out);

    // Different slots, in the way of draw_distinct() (distinct_draw.h), for 0 < uniform_fraction <= 1 and at most as
    // many as are live; returns its n_draws. Rows leave tree and live set for the time of the call. Throws only before
    // it changes anything.
    double draw_distinct(SumTree& tree, LiveSet& live, double uniform_fraction, const DrawRequest& request,
                         std::vector<int64_t>& slots_out);

 private:
    // One of the two parts of a mixture: targets within it, the places in the batch they belong to, and what was found.
    struct Part {
        std::vector<uint64_t> targets;
        std::vector<int64_t> places;
        std::vector<int64_t> slots;
        int64_t n = 0;

        void reserve(int64_t most);
        void add(uint64_t target, int64_t place);
        void scatter(int64_t* slots_out) const;
    };

    void reserve(int64_t n);

    std::vector<uint64_t> targets_;
    Part uniform_;
    Part prioritized_;
    // Of draws without replacement.
    std::vector<int64_t> round_;
    std::vector<uint64_t> table_;
    std::vector<float> leaves_;  // of those taken out
    std::vector<float> zeros_;
};

}  // namespace per::cpu

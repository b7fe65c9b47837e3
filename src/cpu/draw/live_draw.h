// Drawing live transitions of a replay buffer, and their importance-sampling weights, in host memory.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "backend/replay_statistics.h"
#include "cpu/draw/distinct_draw.h"
#include "cpu/draw/mixture_draw.h"
#include "cpu/tree/priority_store.h"
#include "rules/draw.h"

namespace per::cpu {

// A batch of draws. Memory is kept from batch to batch.
class LiveDraw {
 public:
    // Some transition must be live, without replacement as many as are drawn, and ranks be taken if the draw goes by them.
    // Throws only before it changes anything. Returns whether it has fetched those rows of the slots that it drew: draws
    // from the tree alone do.
    bool draw(PriorityStore& priorities, const ReplaySample& sample, const DrawRequest& request,
              const RowsOfLeaves& rows);

    // Takes these slots as if they had been drawn with replacement. Not all of them are -1. Where one is, slots() has
    // another of them; weight and probability are 0 there, and wherever a draw would give the slot never.
    void take(PriorityStore& priorities, const ReplaySample& sample, const std::vector<int64_t>& slots);

    // The slots that own the units of `sample`, and what it asks of them. Throws Error for a unit that there is not.
    // Valid until the next call.
    const std::vector<int64_t>& find_units(PriorityStore& priorities, const ReplaySample& sample);

    const std::vector<int64_t>& slots() const { return slots_; }

    // (reference / share)^beta, which is (N P(i))^-beta over what `sample` normalises by (section 3.4).
    void write_weights(const PowerKernels& kernels, double beta, float* weights_out) const;
    void write_probabilities(float* probabilities_out) const;

    // Hands the batch over to be the last one, and takes that one's memory for the next.
    void become(LastBatch& last, double beta);

 private:
    bool draw_with_replacement(const SumTree& tree, const LiveSet& live, const DrawRequest& request,
                               const RowsOfLeaves& rows);
    void draw_distinct(SumTree& tree, LiveSet& live, const DrawRequest& request, bool of_sequences);
    void set_law(PriorityStore& priorities, const ReplaySample& sample, const SumTree& tree);
    void set_reference(PriorityStore& priorities, const ReplaySample& sample);

    DrawLaw law_ = {};
    bool is_batch_max_ = false;
    double reference_ = 0;  // the share whose weight is 1
    bool has_no_share_ = false;

    std::vector<int64_t> slots_;
    std::vector<double> shares_;  // no_share() in some places if has_no_share_
    std::vector<uint64_t> masses_;
    std::vector<int64_t> units_;  // as find_units() read them
    std::vector<int64_t> slots_of_units_;
    MixtureDraw mixture_;
    DistinctDraw distinct_;
};

}  // namespace per::cpu

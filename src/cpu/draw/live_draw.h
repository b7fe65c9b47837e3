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
    explicit LiveDraw(bool of_sequences) : of_sequences_(of_sequences) {}

    // At least one transition must be live. Before a draw by ranks, PriorityStore::take_ranks_if_due() must be called.
    // Throws only before it changes anything; a draw without replacement also if it finds fewer slots than a batch.
    // Returns true if it has prefetched `rows` of the slots that it drew. Only a draw with replacement and without a
    // uniform part does so. The slots in `newest` follow those drawn, with weights of 1.
    bool draw(PriorityStore& priorities, const ReplaySample& sample, const DrawRequest& request,
              const RowsOfLeaves& rows, const std::vector<int64_t>& newest);

    // Takes these slots as if they had been drawn with replacement. At least one of them must not be -1. In place of
    // each -1, slots() has one of the other slots, and its weight and probability are 0. They are also 0 for a slot
    // that no draw can give.
    void take(PriorityStore& priorities, const ReplaySample& sample, const std::vector<int64_t>& slots);

    // Returns the slots that own the units. Throws Error for a unit out of range. The result is valid until the next
    // call. write_units() writes their masses and first units.
    const std::vector<int64_t>& find_units(const PriorityStore& priorities, int64_t count, const RowsOfUnits& rows);
    void write_units(const SumTree& tree, const RowsOfUnits& rows) const;

    const std::vector<int64_t>& slots() const { return slots_; }
    const std::vector<double>& shares() const { return shares_; }
    double reference() const { return reference_; }  // not with PER_BATCH_MAX

    // The weight is (reference / share)^beta. That is (N P(i))^-beta, normalised as normalize_weights of `sample` says
    // (section 3.4).
    void write_weights(const PowerKernels& kernels, double beta, float* weights_out) const;
    void write_probabilities(float* probabilities_out) const;

    // Moves the batch to `last`, whose memory the next batch reuses.
    void become(LastBatch& last, double beta);

 private:
    bool draw_with_replacement(const SumTree& tree, const LiveSet& live, const DrawRequest& request,
                               const RowsOfLeaves& rows);
    void draw_distinct(SumTree& tree, LiveSet& live, const DrawRequest& request);
    void set_law(PriorityStore& priorities, const ReplaySample& sample, const SumTree& tree);
    void set_reference(PriorityStore& priorities, const ReplaySample& sample);

    const bool of_sequences_;  // for errors
    DrawLaw law_ = {};
    bool is_batch_max_ = false;
    double reference_ = 0;  // the share whose weight is 1
    bool has_no_share_ = false;

    std::vector<int64_t> slots_;
    std::vector<double> shares_;  // no_share() in some places if has_no_share_
    size_t n_weighed_ = 0;        // the other slots are the newest, whose weight is 1
    std::vector<uint64_t> masses_;
    std::vector<int64_t> units_;  // as read by find_units()
    std::vector<int64_t> slots_of_units_;
    MixtureDraw mixture_;
    DistinctDraw distinct_;
};

}  // namespace per::cpu

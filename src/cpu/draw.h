// Drawing live transitions, and their importance-sampling weights, in host memory.
#pragma once

#include <cstdint>
#include <vector>

#include "backend.h"
#include "cpu/mixture_draw.h"
#include "cpu/priority_store.h"
#include "cpu/scratch.h"
#include "random.h"

namespace per::cpu {

// A batch of draws: transition i with probability share_i / (sum of all shares), or without replacement of inclusion
// probability share_i. Memory is kept from batch to batch.
class LiveDraw {
 public:
    // Some transition must be live. Throws only before it changes anything.
    void draw(PriorityStore& priorities, const ReplaySample& sample, const DrawRequest& request);

    const std::vector<int64_t>& slots() const { return slots_; }

    // (reference / share)^beta, which is (N P(i))^-beta over what `sample` normalises by (section 3.4).
    void write_weights(const PowerKernels& kernels, double beta, float* weights_out) const;
    void write_probabilities(float* probabilities_out) const;

 private:
    void draw_uniform(SumTree& tree, LiveSet& live, const DrawRequest& request);
    void draw_by_priority(SumTree& tree, const DrawRequest& request);
    void draw_mixture(SumTree& tree, LiveSet& live, const DrawRequest& request);
    static void require_found(int64_t n_wanted, int64_t n_found);
    double share_of(double mass) const;
    void set_reference(PriorityStore& priorities, const ReplaySample& sample);

    // Of the batch.
    bool is_distinct_ = false;
    bool is_batch_max_ = false;
    double uniform_fraction_ = 0;  // 1 also where all priorities are 0
    double n_live_ = 0;
    double mass_ = 0;     // of the tree
    double n_draws_ = 0;  // without replacement: how many independent draws it stands for

    std::vector<int64_t> slots_;
    std::vector<double> shares_;
    double total_ = 0;      // what shares are divided by to be probabilities
    double reference_ = 0;  // the share whose weight is 1
    std::vector<uint64_t> masses_;
    MixtureDraw mixture_;
    ScratchPool scratch_;
};

}  // namespace per::cpu

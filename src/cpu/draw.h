// Drawing live transitions, and their importance-sampling weights, in host memory.
#pragma once

#include <cstdint>
#include <vector>

#include "backend.h"
#include "cpu/priority_store.h"
#include "random.h"

namespace per::cpu {

// A batch of draws: transition i with probability share_i / (sum of all shares). Shares are masses of the tree, but 1 for
// all in uniform draws. Memory is kept from batch to batch.
class LiveDraw {
 public:
    // Some transition must be live. Throws only before it changes anything.
    void draw(PriorityStore& priorities, const ReplaySample& sample, const DrawRequest& request);

    const std::vector<int64_t>& slots() const { return slots_; }

    // (reference / share)^beta, which is (N P(i))^-beta over what `sample` normalises by (section 3.4).
    void write_weights(double beta, float* weights_out) const;
    void write_probabilities(float* probabilities_out) const;

 private:
    void draw_uniform(const LiveSet& live, const DrawRequest& request);
    void draw_by_priority(const SumTree& tree, const DrawRequest& request);
    void draw_mixture(const PriorityStore& priorities, double uniform_fraction, const DrawRequest& request);
    void set_reference(PriorityStore& priorities, const ReplaySample& sample);

    std::vector<int64_t> slots_;
    std::vector<double> shares_;
    bool is_uniform_ = false;
    double total_ = 0;      // of the shares of all live transitions
    double reference_ = 0;  // the share whose weight is 1
    std::vector<uint64_t> masses_;

    // Of a mixture: places in the batch that are drawn by priority, and where.
    std::vector<size_t> places_;
    std::vector<uint64_t> units_;
    std::vector<int64_t> found_;
};

}  // namespace per::cpu

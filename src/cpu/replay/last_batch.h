// The last batch that was drawn, and what is said of it in per_replay_statistics.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "backend/batch_figures.h"
#include "cpu/draw/live_draw.h"

namespace per::cpu {

// Two draws, of the last batch and of the one being drawn, so that a call that fails leaves the last one as it was, and
// nothing is copied. What costs more than a sum is worked out when it is asked for.
class LastBatch {
 public:
    // For the next batch; drawn() makes it the last one.
    LiveDraw& spare_draw() { return batches_[1 - last_].draw; }
    void drawn(double beta, BatchAges ages);

    const LiveDraw& draw() const { return batches_[last_].draw; }
    const BatchFigures& figures(const PowerKernels& kernels);
    // Of a batch that another buffer drew, which this one goes on from; or of the one before a draw that is taken back.
    void restore(const BatchFigures& figures) { batches_[last_].figures = figures; }

 private:
    struct Batch {
        LiveDraw draw;
        double beta = 0;
        BatchAges ages;
        std::optional<BatchFigures> figures = BatchFigures();
    };

    Batch batches_[2];
    int last_ = 0;
    // Of figures(), kept from call to call.
    std::vector<float> weights_;
    std::vector<uint64_t> table_;
};

}  // namespace per::cpu

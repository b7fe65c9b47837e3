// The last batch that was drawn, and what is said of it in per_replay_statistics.
#pragma once

#include <optional>

#include "backend/batch_figures.h"
#include "cpu/replay/draw.h"

namespace per::cpu {

// Two draws, of the last batch and of the one being drawn, so that a call that fails leaves the last one as it was, and
// nothing is copied. What costs more than a sum is worked out when it is asked for.
class LastBatch {
 public:
    // For the next batch; drawn() makes it the last one.
    LiveDraw& spare_draw() {
        spare_is_whole_ = false;
        return batches_[1 - last_].draw;
    }
    void drawn(double beta, BatchAges ages);
    // Makes the batch before the last one the last again, unless another was begun since.
    void take_back();

    const LiveDraw& draw() const { return batches_[last_].draw; }
    const BatchFigures& figures(const PowerKernels& kernels);
    // Of a batch that another buffer drew, which this one goes on from.
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
    bool spare_is_whole_ = true;  // it is what was the last batch before
};

}  // namespace per::cpu

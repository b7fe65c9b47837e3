// The last batch that was drawn, and what is said of it in per_replay_statistics.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "cpu/draw.h"

namespace per::cpu {

// Ages of the transitions of a batch: rows that their lanes took after them.
struct BatchAges {
    int64_t sum = 0;
    int64_t largest = 0;

    void add(int64_t age) {
        sum += age;
        largest = std::max(largest, age);
    }
    void add(const BatchAges& other) {
        sum += other.sum;
        largest = std::max(largest, other.largest);
    }
};

struct BatchFigures {
    int64_t size = 0;
    int64_t max_age = 0;
    double mean_age = 0;
    double effective_size = 0;  // (sum of w)^2 / sum of w^2
    double duplicates = 0;
};

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

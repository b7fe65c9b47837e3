// The last batch that was drawn, and what is said of it in per_replay_statistics.
#pragma once

#include <algorithm>
#include <cstdint>

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
    LiveDraw& spare_draw() { return draws_[1 - last_]; }
    void drawn(double beta, BatchAges ages);

    const BatchFigures& figures(const PowerKernels& kernels);
    // Of a batch that another buffer drew, which this one goes on from.
    void restore(const BatchFigures& figures) { figures_ = figures; }

 private:
    LiveDraw draws_[2];
    int last_ = 0;
    double beta_ = 0;
    BatchAges ages_;
    bool is_described_ = true;  // figures_ are those of the last batch
    BatchFigures figures_;
};

}  // namespace per::cpu

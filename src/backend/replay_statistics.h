// Statistics of a replay buffer on every device: counters, and figures of its last batch.
#pragma once

#include <cstdint>
#include <vector>

#include "per.h"

namespace per {

// Counted since creation.
struct ReplayCounters {
    int64_t added = 0;
    int64_t dropped = 0;
    int64_t episodes = 0;
    int64_t cuts = 0;
    int64_t suspected_resets = 0;
    int64_t updates = 0;
    int64_t stale_updates = 0;
    int64_t rejected_updates = 0;
};

struct BatchFigures {
    int64_t size = 0;
    int64_t max_age = 0;
    double mean_age = 0;
    double effective_size = 0;  // (sum of w)^2 / sum of w^2
    double duplicates = 0;
};

// The last batch that was drawn. Its figures are computed when they are asked for.
class LastBatch {
 public:
    LastBatch() = default;
    // A batch of which only the figures are known, such as the last one of a loaded buffer.
    explicit LastBatch(const BatchFigures& figures) : figures_(figures) {}

    // By row of the batch, as of the draw.
    std::vector<int64_t> slots;
    std::vector<int64_t> ages;   // rows added to the lane after the transition
    std::vector<double> shares;  // fewer than slots if the last rows are the newest, whose weight is 1
    // With the shares these give the weights (draw.h).
    double reference = 0;  // NAN: the smallest share of the batch
    double beta = 0;

    // Computes the figures, unless they have been computed. The vectors are no longer valid after that.
    const BatchFigures& figures();

 private:
    BatchFigures figures_;  // valid if there are no slots
};

void write_statistics(const ReplayCounters& counters, const BatchFigures& last, per_replay_statistics& statistics_out);

}  // namespace per

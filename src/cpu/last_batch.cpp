#include "cpu/last_batch.h"

#include <vector>

#include "cpu/found_set.h"

namespace per::cpu {

void LastBatch::drawn(double beta, BatchAges ages) {
    last_ = 1 - last_;
    spare_is_whole_ = true;
    batches_[last_].beta = beta;
    batches_[last_].ages = ages;
    batches_[last_].figures.reset();
}

void LastBatch::take_back() {
    if (!spare_is_whole_) return;
    last_ = 1 - last_;
    spare_is_whole_ = false;
}

const BatchFigures& LastBatch::figures(const PowerKernels& kernels) {
    Batch& batch = batches_[last_];
    if (batch.figures) return *batch.figures;
    const LiveDraw& draw = batch.draw;
    const int64_t size = static_cast<int64_t>(draw.slots().size());
    std::vector<uint64_t> table(static_cast<size_t>(found_set_size(size)));
    FoundSet found(table.data(), static_cast<int64_t>(table.size()));
    int64_t n_repeats = 0;
    for (int64_t slot : draw.slots()) n_repeats += !found.insert(slot);

    std::vector<float> weights(draw.slots().size());
    draw.write_weights(kernels, batch.beta, weights.data());
    double sum = 0.0;
    double sum_of_squares = 0.0;
    for (float weight : weights) {
        sum += static_cast<double>(weight);
        sum_of_squares += static_cast<double>(weight) * static_cast<double>(weight);
    }
    const double n = static_cast<double>(size);
    // Weights all underflow to 0 for an extreme beta without normalisation.
    const double effective_size = sum_of_squares > 0.0 ? sum * sum / sum_of_squares : 0.0;
    batch.figures = BatchFigures{size, batch.ages.largest, static_cast<double>(batch.ages.sum) / n, effective_size,
                                 static_cast<double>(n_repeats) / n};
    return *batch.figures;
}

}  // namespace per::cpu

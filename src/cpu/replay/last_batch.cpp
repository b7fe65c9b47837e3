#include "cpu/replay/last_batch.h"

#include <vector>

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
    std::vector<float> weights(batch.draw.slots().size());
    batch.draw.write_weights(kernels, batch.beta, weights.data());
    batch.figures = figures_of_batch(batch.draw.slots(), weights, batch.ages);
    return *batch.figures;
}

}  // namespace per::cpu

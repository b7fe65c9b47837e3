#include "cpu/replay/last_batch.h"

namespace per::cpu {

void LastBatch::drawn(double beta, BatchAges ages) {
    last_ = 1 - last_;
    batches_[last_].beta = beta;
    batches_[last_].ages = ages;
    batches_[last_].figures.reset();
}

const BatchFigures& LastBatch::figures(const PowerKernels& kernels) {
    Batch& batch = batches_[last_];
    if (batch.figures) return *batch.figures;
    weights_.resize(batch.draw.slots().size());
    batch.draw.write_weights(kernels, batch.beta, weights_.data());
    batch.figures = figures_of_batch(batch.draw.slots(), weights_, batch.ages, table_);
    return *batch.figures;
}

}  // namespace per::cpu

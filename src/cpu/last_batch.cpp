#include "cpu/last_batch.h"

#include <vector>

#include "cpu/found_set.h"

namespace per::cpu {

void LastBatch::drawn(double beta, BatchAges ages) {
    last_ = 1 - last_;
    beta_ = beta;
    ages_ = ages;
    is_described_ = false;
}

const BatchFigures& LastBatch::figures(const PowerKernels& kernels) {
    if (is_described_) return figures_;
    const LiveDraw& draw = draws_[last_];
    const int64_t size = static_cast<int64_t>(draw.slots().size());
    std::vector<uint64_t> table(static_cast<size_t>(found_set_size(size)));
    FoundSet found(table.data(), static_cast<int64_t>(table.size()));
    int64_t n_repeats = 0;
    for (int64_t slot : draw.slots()) n_repeats += !found.insert(slot);

    std::vector<float> weights(draw.slots().size());
    draw.write_weights(kernels, beta_, weights.data());
    double sum = 0.0;
    double sum_of_squares = 0.0;
    for (float weight : weights) {
        sum += static_cast<double>(weight);
        sum_of_squares += static_cast<double>(weight) * static_cast<double>(weight);
    }
    const double n = static_cast<double>(size);
    // Weights all underflow to 0 for an extreme beta without normalisation.
    const double effective_size = sum_of_squares > 0.0 ? sum * sum / sum_of_squares : 0.0;
    figures_ = {size, ages_.largest, static_cast<double>(ages_.sum) / n, effective_size,
                static_cast<double>(n_repeats) / n};
    is_described_ = true;
    return figures_;
}

}  // namespace per::cpu

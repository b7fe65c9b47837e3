#include "backend/batch_figures.h"

#include "backend/found_set.h"

namespace per {

BatchFigures figures_of_batch(const std::vector<int64_t>& slots, const std::vector<float>& weights,
                              const BatchAges& ages, std::vector<uint64_t>& table) {
    const int64_t size = static_cast<int64_t>(slots.size());
    table.resize(static_cast<size_t>(found_set_size(size)));
    FoundSet found(table.data(), static_cast<int64_t>(table.size()));
    int64_t n_repeats = 0;
    for (int64_t slot : slots) n_repeats += !found.insert(slot);

    double sum = 0.0;
    double sum_of_squares = 0.0;
    for (float weight : weights) {
        sum += static_cast<double>(weight);
        sum_of_squares += static_cast<double>(weight) * static_cast<double>(weight);
    }
    const double n = static_cast<double>(size);
    // Weights all underflow to 0 for an extreme beta without normalisation.
    const double effective_size = sum_of_squares > 0.0 ? sum * sum / sum_of_squares : 0.0;
    return {size, ages.largest, static_cast<double>(ages.sum) / n, effective_size, static_cast<double>(n_repeats) / n};
}

}  // namespace per

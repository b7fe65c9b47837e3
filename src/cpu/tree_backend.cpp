#include "cpu/tree_backend.h"

#include <algorithm>
#include <cinttypes>

#include "backend/create.h"
#include "base/arguments.h"
#include "base/error.h"
#include "rules/td_error.h"

namespace per::cpu {
namespace {

bool is_run(int64_t count, const int64_t* indices) {
    // Most batches that are no run differ at the second index.
    int64_t i = 1;
    while (i < count && indices[i] == indices[0] + i) ++i;
    return i >= count;
}

void check_priorities(int64_t count, const float* priorities) {
    for (int64_t i = 0; i < count; ++i)
        if (!is_priority(priorities[i])) throw_no_priority(i, priorities[i], false);
}

}  // namespace

void CpuTreeBackend::require_mass() const {
    if (tree_.total_mass() == 0)
        throw Error(PER_ERROR_EMPTY, "all priorities of the tree are 0; set one above 0 first");
}

void CpuTreeBackend::check_index(int64_t i, int64_t index) const {
    if (static_cast<uint64_t>(index) < static_cast<uint64_t>(tree_.capacity())) return;
    throw_out_of_range("indices", i, index, 0, tree_.capacity() - 1);
}

void CpuTreeBackend::check_indices(int64_t count, const int64_t* indices) const {
    for (int64_t i = 0; i < count; ++i) check_index(i, indices[i]);
}

// Works on copies: if another thread of the caller wrote to the arrays between the checks and the change, the tree
// would be corrupted. The copies take 2 to 15 % of the time.
void CpuTreeBackend::update(int64_t count, const int64_t* given_indices, const float* given_priorities, void*) {
    if (count == 0) return;
    const ScratchPool::Loan loan(scratch_,
                                 ScratchLayout::bytes_of<int64_t>(count) + ScratchLayout::bytes_of<float>(count));
    ScratchLayout layout(loan.data());
    int64_t* const indices = layout.array<int64_t>(count);
    float* const priorities = layout.array<float>(count);
    std::copy_n(given_indices, count, indices);
    std::copy_n(given_priorities, count, priorities);
    if (!tree_.kernels().update.valid(count, indices, priorities, tree_.capacity())) {
        check_indices(count, indices);
        check_priorities(count, priorities);
    }
    if (is_run(count, indices))
        tree_.set_run(indices[0], count, priorities);
    else
        tree_.set(count, indices, priorities);
}

void CpuTreeBackend::sample(const TreeSample& sample, void*) {
    require_mass();
    if (sample.scheme == PER_WITHOUT_REPLACEMENT) {
        sample_distinct(sample);
        return;
    }
    const int64_t n = sample.batch_size;
    const std::size_t draw_bytes = tree_.draw_scratch_bytes(n);
    const ScratchPool::Loan loan(scratch_, draw_bytes + ScratchLayout::bytes_of<uint64_t>(n));
    uint64_t* const masses = reinterpret_cast<uint64_t*>(loan.data() + draw_bytes);
    // Nothing fails from here on, so the batch number is not lost.
    const DrawRequest request = {n, sample.scheme, seed_, batches_.fetch_add(1)};
    tree_.draw(request, sample.indices_out, masses, sample.priorities_out, loan.data());
    if (sample.weights_out != nullptr) tree_.kernels().power.weigh(n, masses, sample.beta, sample.weights_out);
}

void CpuTreeBackend::sample_distinct(const TreeSample& sample) {
    const int64_t n = sample.batch_size;
    const uint64_t batch_number = batches_.load();
    const ScratchPool::Loan loan(scratch_, ScratchLayout::bytes_of<uint64_t>(n) + ScratchLayout::bytes_of<double>(n));
    const DistinctDraw::Found found = distinct_.draw(tree_, {n, sample.scheme, seed_, batch_number});
    if (found.n < n)
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "batch_size is %" PRId64 ": only %" PRId64 " leaves have a positive priority", n, found.n);
    batches_.store(batch_number + 1);
    ScratchLayout layout(loan.data());
    uint64_t* const masses = layout.array<uint64_t>(n);
    double* const probabilities = layout.array<double>(n);
    for (int64_t i = 0; i < n; ++i) {
        const int64_t index = found.indices[i];
        sample.indices_out[i] = index;
        masses[i] = tree_.mass(index);
        if (sample.priorities_out != nullptr) sample.priorities_out[i] = tree_.priority(index);
    }
    if (sample.weights_out == nullptr) return;
    const PowerKernels& kernels = tree_.kernels().power;
    kernels.include(n, masses, tree_.total_mass(), found.n_draws, probabilities);
    kernels.weigh_shares(n, probabilities, kernels.smallest(n, probabilities), sample.beta, sample.weights_out);
}

// Both searches check all entries first, and read each again when they search for it. If another thread of the caller
// wrote to it meanwhile, the result is still within the tree.
void CpuTreeBackend::find(int64_t count, const double* prefix_sums, int64_t* indices_out, void*) {
    if (count == 0) return;
    require_mass();
    const double factor = power_of_two(tree_.scale());
    const uint64_t total = tree_.total_mass();
    uint64_t unit;
    for (int64_t i = 0; i < count; ++i)
        if (!unit_of_prefix_sum(prefix_sums[i], total, factor, unit))
            throw Error(PER_ERROR_INVALID_ARGUMENT, "prefix_sums[%" PRId64 "] is %.17g: must be >= 0 and below %.17g",
                        i, prefix_sums[i], static_cast<double>(total) / factor);
    const auto unit_of = [&](int64_t i) {
        uint64_t unit = 0;
        unit_of_prefix_sum(read_once(prefix_sums[i]), total, factor, unit);
        return unit;
    };
    tree_.find(count, unit_of, indices_out, nullptr);
}

void CpuTreeBackend::find_mass(int64_t count, const uint64_t* units, int64_t* indices_out, void*) {
    if (count == 0) return;
    require_mass();
    const uint64_t total = tree_.total_mass();
    for (int64_t i = 0; i < count; ++i)
        if (units[i] >= total)
            throw Error(PER_ERROR_INVALID_ARGUMENT,
                        "units[%" PRId64 "] is %" PRIu64 ": must be below the total mass, %" PRIu64, i, units[i],
                        total);
    const auto unit_of = [&](int64_t i) { return std::min(read_once(units[i]), total - 1); };
    tree_.find(count, unit_of, indices_out, nullptr);
}

void CpuTreeBackend::priorities(int64_t count, const int64_t* indices, float* priorities_out, void*) {
    if (indices == nullptr) {
        std::copy(tree_.leaves(), tree_.leaves() + count, priorities_out);
        return;
    }
    check_indices(count, indices);
    for (int64_t i = 0; i < count; ++i) {
        const int64_t index = read_once(indices[i]);
        check_index(i, index);
        priorities_out[i] = tree_.priority(index);
    }
}

std::unique_ptr<TreeBackend> create_tree_backend(const per_tree_options& options) {
    return std::make_unique<CpuTreeBackend>(options.capacity, options.seed);
}

}  // namespace per::cpu

#include "cpu/sum_tree.h"

#include <algorithm>
#include <cstring>

#include "random.h"

namespace per::cpu {
namespace {

std::size_t bytes_of(const TreeShape& shape) {
    std::size_t bytes = static_cast<std::size_t>(shape.n_nodes[0]) * sizeof(float);
    for (int level = 1; level < shape.n_levels; ++level)
        bytes += static_cast<std::size_t>(shape.n_nodes[level]) * sizeof(uint64_t);
    return bytes;
}

TreeArrays lay_out(const TreeShape& shape, std::byte* next) {
    TreeArrays arrays = {shape, reinterpret_cast<float*>(next), {}, 1.0};
    next += static_cast<std::size_t>(shape.n_nodes[0]) * sizeof(float);
    for (int level = 1; level < shape.n_levels; ++level) {
        arrays.sums[level] = reinterpret_cast<uint64_t*>(next);
        next += static_cast<std::size_t>(shape.n_nodes[level]) * sizeof(uint64_t);
    }
    return arrays;
}

}  // namespace

SumTree::SumTree(int64_t capacity, const Kernels& kernels)
    : capacity_(capacity),
      kernels_(kernels),
      memory_(bytes_of(tree_shape(capacity))),
      arrays_(lay_out(tree_shape(capacity), memory_.data())) {}

void SumTree::set_scale(int32_t scale) {
    scale_ = scale;
    arrays_.factor = power_of_two(scale);
}

// ---- updates

// Whether the batch can be written at the present scale.
bool SumTree::fits(int64_t count, const float* priorities) const {
    const double largest = scaled_priority(kernels_.update.largest(count, priorities), arrays_.factor);
    BatchMass batch = {largest, 0};
    if (breaks_limits(batch, total_)) return false;
    // Most batches cannot come near the limit, and need no sum.
    if ((largest + 1.0) * static_cast<double>(count) < 0x1p61 && total_ < total_mass_limit / 2) return true;
    uint64_t high;
    kernels_.update.sum_masses(count, priorities, arrays_.factor, high, batch.sum);
    return high == 0 && batch.sum < total_mass_limit && !breaks_limits(batch, total_);
}

// The scale at which these priorities keep the bounds of a rescale.
void SumTree::choose_scale(int64_t count, const float* priorities) {
    const float largest = kernels_.update.largest(count, priorities);
    if (largest == 0.0f) return;
    const int32_t scale = scale_for_largest(largest);
    uint64_t high;
    uint64_t low;
    kernels_.update.sum_masses(count, priorities, power_of_two(scale), high, low);
    set_scale(scale - scale_reduction(high, low, count));
}

void SumTree::refresh_from(int level) {
    for (; level <= top_level(); ++level)
        kernels_.update.refresh(arrays_, level, 0, arrays_.shape.n_nodes[level - 1] / (level == 1 ? 16 : 8) - 1);
}

void SumTree::rebuild() {
    choose_scale(capacity_, arrays_.leaves);
    refresh_from(1);
    finish_change(true);
}

bool SumTree::rebuild_at(int32_t scale, uint64_t rescales_below) {
    if (scale < -120 || scale > 200) return false;
    set_scale(scale);
    total_ = 0;
    if (!fits(capacity_, arrays_.leaves)) return false;
    refresh_from(1);
    finish_change(true);
    low_water_ = rescales_below;
    return true;
}

void SumTree::add_up_total() {
    const uint64_t* const top = arrays_.sums[top_level()];
    total_ = 0;
    for (int64_t i = 0; i < sums_per_line; ++i) total_ += top[i];
}

void SumTree::finish_change(bool starts_anew) {
    add_up_total();
    if (starts_anew)
        low_water_ = low_water(total_, capacity_);
    else if (total_ != 0 && total_ < low_water_)
        rebuild();
}

void SumTree::set(int64_t count, const int64_t* indices, const float* priorities) {
    const bool was_empty = total_ == 0;
    if (was_empty) {
        choose_scale(count, priorities);  // with every leaf 0 it can follow the batch, without a rebuild
    } else if (!fits(count, priorities)) {
        for (int64_t i = 0; i < count; ++i) arrays_.leaves[indices[i]] = priorities[i] + 0.0f;  // -0 becomes 0
        rebuild();
        return;
    }
    // Where a level has few nodes, computing it anew costs less than adding each difference to it.
    int level = 1;
    while (level < top_level() && arrays_.shape.n_nodes[level] > count / 2) ++level;
    kernels_.update.apply(arrays_, level - 1, count, indices, priorities);
    refresh_from(level);
    finish_change(was_empty);
}

void SumTree::set_at_scale(int64_t count, const int64_t* indices, const float* priorities) {
    kernels_.update.apply(arrays_, top_level(), count, indices, priorities);
    add_up_total();
}

void SumTree::set_run(int64_t first, int64_t count, const float* priorities) {
    if (count == 0) return;
    const bool was_empty = total_ == 0;
    const bool rescales = !was_empty && !fits(count, priorities);
    if (was_empty) choose_scale(count, priorities);
    for (int64_t i = 0; i < count; ++i) arrays_.leaves[first + i] = priorities[i] + 0.0f;
    if (rescales) {
        rebuild();
        return;
    }
    int64_t begin = first / leaves_per_line;
    int64_t last = (first + count - 1) / leaves_per_line;
    for (int level = 1; level <= top_level(); ++level) {
        kernels_.update.refresh(arrays_, level, begin, last);
        begin /= sums_per_line;
        last /= sums_per_line;
    }
    finish_change(was_empty);
}

void SumTree::reset() {
    std::memset(memory_.data(), 0, bytes_of(arrays_.shape));
    total_ = 0;
}

// ---- draws

// The lowest level with at most one entry a draw. Below it each draw goes its own way; above it nothing is read. An
// entry costs 0.9 ns, a search one level further down 1.1 ns a draw.
int SumTree::frontier_level(int64_t batch_size) const {
    int level = top_level();
    while (level > 1 && arrays_.shape.n_nodes[level - 1] <= batch_size) --level;
    return level;
}

// Lines of levels so small that a batch reads most of them: each level would be a wait of its own on the way down. They
// come while random numbers are made. The more draws, the better the way down hides its own waits.
void SumTree::prefetch_small_levels(int level, int64_t batch_size) const {
    const int64_t most_sums = std::min<int64_t>(3 * batch_size, 96) * sums_per_line;
    for (; level >= 1 && arrays_.shape.n_nodes[level] <= most_sums; --level)
        for (int64_t i = 0; i < arrays_.shape.n_nodes[level]; i += sums_per_line)
            __builtin_prefetch(arrays_.sums[level] + i);
}

std::size_t SumTree::draw_scratch_bytes(int64_t batch_size) const {
    const int64_t n_parts = arrays_.shape.n_nodes[frontier_level(batch_size)];
    return 2 * ScratchLayout::bytes_of<uint64_t>(batch_size + draw_padding) +
           ScratchLayout::bytes_of<uint64_t>(n_parts + 1) +
           ScratchLayout::bytes_of<uint32_t>(std::max(batch_size + 1, guide_size(n_parts)));
}

void SumTree::draw(const DrawRequest& request, int64_t* indices_out, uint64_t* masses_out, float* priorities_out,
                   std::byte* scratch) const {
    const int64_t n = request.batch_size;
    if (scratch == nullptr) {
        const ScratchPool::Loan loan(scratch_, draw_scratch_bytes(n));
        draw(request, indices_out, masses_out, priorities_out, loan.data());
        return;
    }
    const int level = frontier_level(n);
    const int64_t n_parts = arrays_.shape.n_nodes[level];
    ScratchLayout layout(scratch);
    uint64_t* const targets = layout.array<uint64_t>(n + draw_padding);
    uint64_t* const parts = layout.array<uint64_t>(n + draw_padding);
    uint64_t* const prefix = layout.array<uint64_t>(n_parts + 1);
    uint32_t* const table = layout.array<uint32_t>(std::max(n + 1, guide_size(n_parts)));

    const DrawKernels& kernels = kernels_.draw;
    prefetch_small_levels(level, n);
    if (request.scheme == PER_SYSTEMATIC)
        std::fill_n(targets, n, random64(request.seed, request.step, request.first));
    else
        kernels.random_numbers(request.seed, request.step, request.first, n, targets);
    kernels.sum_prefixes(arrays_.sums[level], n_parts, prefix);
    if (request.scheme == PER_STRATIFIED || request.scheme == PER_SYSTEMATIC) {
        kernels.stratify(n, total_, targets);
        kernels.invert_strata(prefix, n_parts, n, targets, parts, table);
    } else {
        kernels.spread(n, total_, targets);
        kernels.invert(prefix, n_parts, n, targets, parts, table);
    }
    kernels.descend(arrays_, level - 1, n, parts, targets, indices_out, masses_out, priorities_out);
}

void SumTree::find(int64_t count, const uint64_t* units, int64_t* indices_out, uint64_t* masses_out) const {
    constexpr int64_t run = 256;
    uint64_t lines[run + draw_padding];
    uint64_t rests[run + draw_padding];
    for (int64_t first = 0; first < count; first += run) {
        const int64_t n = std::min(run, count - first);
        std::fill_n(lines, n, 0);
        std::copy_n(units + first, n, rests);
        kernels_.draw.descend(arrays_, top_level(), n, lines, rests, indices_out + first,
                              masses_out == nullptr ? nullptr : masses_out + first, nullptr);
    }
}

}  // namespace per::cpu

#include "cpu/tree/sum_tree.h"

#include <algorithm>

#include "rules/freshness.h"
#include "rules/random.h"

namespace per::cpu {
namespace {

// The leaves of an empty tree are written at this scale, at which the sum of any leaves fits 64 bits. The final scale
// is chosen after that.
constexpr int32_t scale_while_empty = -120;

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

SumTree::SumTree(int64_t capacity, const Kernels& kernels, const MemorySource& source)
    : capacity_(capacity),
      kernels_(kernels),
      memory_(bytes_of(tree_shape(capacity)), source),
      arrays_(lay_out(tree_shape(capacity), memory_.data())) {}

void SumTree::set_scale(int32_t scale) {
    scale_ = scale;
    arrays_.factor = power_of_two(scale);
}

// ---- updates

void SumTree::begin_change(int64_t n) {
    scale_before_ = scale_;
    if (total_ == 0 && !is_scale_fixed_) set_scale(scale_while_empty);
    sums_follow_ = !is_scale_due_;
    written_ = 0.0;
    refresh_level_ = 1;
    // A level with few nodes is cheaper to recompute than to update by each difference.
    while (refresh_level_ < top_level() && arrays_.shape.n_nodes[refresh_level_] > n / 2) ++refresh_level_;
}

// Decides if the sums can still be updated together with the leaves, once these are written, too. They can if no leaf
// is too large for the scale and no sum wraps.
void SumTree::look_ahead(int64_t count, const float* priorities) {
    if (!sums_follow_) return;
    const float largest = kernels_.update.largest(count, priorities);
    const double total = static_cast<double>(total_);
    sums_follow_ = !is_too_large(largest, arrays_.factor);
    if (!sums_follow_) return;
    double mass = (scaled_priority(largest, arrays_.factor) + 1.0) * static_cast<double>(count);
    if (total + written_ + mass >= 0x1p63) {
        const WideSum sum = kernels_.update.sum_masses(count, priorities, arrays_.factor);
        mass = static_cast<double>(sum.high) * 0x1p64 + static_cast<double>(sum.low);
    }
    written_ += mass;
    sums_follow_ = total + written_ < 0x1p63;
}

void SumTree::change(int64_t count, const int64_t* indices, const float* priorities) {
    change_leaves(count, indices, priorities, false);
}

void SumTree::change_leaves(int64_t count, const int64_t* indices, const float* priorities, bool in_stages) {
    look_ahead(count, priorities);
    kernels_.update.apply(arrays_, sums_follow_ ? refresh_level_ - 1 : 0, count, indices, priorities, in_stages);
}

void SumTree::change_run(int64_t first, int64_t count, const float* priorities) {
    look_ahead(count, priorities);
    for (int64_t i = 0; i < count; ++i) arrays_.leaves[first + i] = priorities[i] + 0.0f;  // -0 becomes 0
    if (sums_follow_) refresh_above(first, count, refresh_level_);
}

void SumTree::raise_scale(int64_t raised) {
    if (total_ == 0 && !is_scale_fixed_) return;
    is_scale_due_ = !rebase_keeps_masses(scale_, raised);
    if (!is_scale_due_) set_scale(scale_ + static_cast<int32_t>(raised));
}

void SumTree::end_change() {
    if (is_scale_due_) {
        is_scale_due_ = false;
        return rebuild();
    }
    if (!sums_follow_) return end_change_of_leaves();
    const uint64_t total_before = total_;
    refresh_from(refresh_level_);
    add_up_total();
    if (total_ == 0) return set_scale(scale_before_);
    if (plan_for(total_before, {total_, 0}, false) == plan_keep) return;
    if (total_before == 0 && !is_scale_fixed_)
        rescale_used();
    else
        rebuild();
}

// Ends a change in which sums_follow_ became false. At scale_while_empty it never does, so the tree was not empty
// before the change, or its scale is fixed.
void SumTree::end_change_of_leaves() {
    const bool has_too_large = is_too_large(kernels_.update.largest(capacity_, arrays_.leaves), arrays_.factor);
    if (has_too_large) return rebuild();
    const WideSum total = kernels_.update.sum_masses(capacity_, arrays_.leaves, arrays_.factor);
    if (plan_for(total_, total, false) != plan_keep) return rebuild();
    refresh_from(1);
    add_up_total();
}

void SumTree::set(int64_t count, const int64_t* indices, const float* priorities) {
    // Prefetching in stages takes 0.8 to 0.9 of the time with 1e7 leaves, but 1.04 with 1e6: most of their lines are in
    // the cache, since a draw has read them.
    constexpr int64_t least_capacity_for_stages = int64_t{1} << 21;
    begin_change(count);
    change_leaves(count, indices, priorities, fetch_policy.in_stages && capacity_ >= least_capacity_for_stages);
    end_change();
}

void SumTree::set_run(int64_t first, int64_t count, const float* priorities) {
    if (count == 0) return;
    begin_change(0);
    change_run(first, count, priorities);
    end_change();
}

void SumTree::set_at_scale(int64_t count, const int64_t* indices, const float* priorities) {
    kernels_.update.apply(arrays_, top_level(), count, indices, priorities, false);
    add_up_total();
}

void SumTree::refresh_from(int level) {
    for (; level <= top_level(); ++level)
        kernels_.update.refresh(arrays_, level, 0, arrays_.shape.n_nodes[level - 1] / (level == 1 ? 16 : 8) - 1);
}

// Recomputes the nodes above a run of leaves, in the levels below end_level.
void SumTree::refresh_above(int64_t first, int64_t count, int end_level) {
    int64_t begin = first / leaves_per_line;
    int64_t last = (first + count - 1) / leaves_per_line;
    for (int level = 1; level < end_level; ++level) {
        kernels_.update.refresh(arrays_, level, begin, last);
        begin /= sums_per_line;
        last /= sums_per_line;
    }
}

void SumTree::add_up_total() {
    const uint64_t* const top = arrays_.sums[top_level()];
    total_ = 0;
    for (int64_t i = 0; i < sums_per_line; ++i) total_ += top[i];
}

// ---- the scale

ScalePlan SumTree::plan_for(uint64_t total_before, WideSum total, bool has_too_large) const {
    return is_scale_fixed_ ? plan_at_fixed_scale(total, has_too_large)
                           : plan_after_change(total_before, total, has_too_large, low_water_);
}

bool SumTree::keeps_scale(int64_t n, float largest, uint64_t lost) const {
    const double of_one = largest == 0.0f ? 0.0 : scaled_priority(largest, arrays_.factor) + 1.0;
    const double most = of_one * static_cast<double>(n) * (1.0 + 0x1p-50);  // covers rounding
    const uint64_t gained =
        most < static_cast<double>(total_mass_limit) ? static_cast<uint64_t>(most) + 1 : total_mass_limit;
    return surely_keeps_scale(total_, {most == 0.0 ? 0 : gained, 0}, {lost, 0}, is_too_large(largest, arrays_.factor),
                              low_water_, is_scale_fixed_);
}

void SumTree::fix_scale(int32_t scale) {
    set_scale(scale);
    is_scale_fixed_ = true;
    refresh_from(1);
    add_up_total();
    low_water_ = 0;  // so that a tree restored from a checkpoint keeps the scale, too
}

void SumTree::restore_scale(int32_t scale, uint64_t rescales_below) {
    set_scale(scale);
    low_water_ = rescales_below;
}

void SumTree::add_run(int64_t first, int64_t count) {
    refresh_above(first, count, top_level() + 1);
    add_up_total();
}

void SumTree::finish_rescale() {
    add_up_total();
    low_water_ = low_water(total_, capacity_);
}

void SumTree::rebuild() {
    is_scale_fixed_ = false;
    const float largest = kernels_.update.largest(capacity_, arrays_.leaves);
    if (largest != 0.0f) {
        const double factor = power_of_two(scale_for_largest(largest));
        set_scale(scale_of_leaves(largest, kernels_.update.sum_masses(capacity_, arrays_.leaves, factor), capacity_));
    }
    refresh_from(1);
    finish_rescale();
}

// Walks over the part of the tree that is not 0, below a line of `level`. Calls visit_leaves(first leaf) for each line
// of leaves in which one is not 0, and visit_sum(level, node) for each sum that is not 0, after all that lies below it.
template <class VisitLeaves, class VisitSum>
void SumTree::for_each_used(int level, int64_t line, const VisitLeaves& visit_leaves, const VisitSum& visit_sum) const {
    if (level == 0) return visit_leaves(arrays_.leaves + line * leaves_per_line);
    for (int64_t node = line * sums_per_line; node < (line + 1) * sums_per_line; ++node) {
        if (arrays_.sums[level][node] == 0) continue;
        for_each_used(level - 1, node, visit_leaves, visit_sum);
        visit_sum(level, node);
    }
}

// Like rebuild(), but reads only leaves that are not 0.
void SumTree::rescale_used() {
    const auto no_sum = [](int, int64_t) {};
    float largest = 0.0f;
    for_each_used(
        top_level(), 0,
        [&](const float* leaves) { largest = std::max(largest, kernels_.update.largest(leaves_per_line, leaves)); },
        no_sum);
    const double factor = power_of_two(scale_for_largest(largest));
    WideSum sum = {0, 0};
    for_each_used(
        top_level(), 0,
        [&](const float* leaves) { sum = add_wide(sum, kernels_.update.sum_masses(leaves_per_line, leaves, factor)); },
        no_sum);
    set_scale(scale_of_leaves(largest, sum, capacity_));
    for_each_used(
        top_level(), 0, [](const float*) {},
        [&](int level, int64_t node) { kernels_.update.refresh(arrays_, level, node, node); });
    finish_rescale();
}

// Memory that was never written to stays untouched.
void SumTree::reset() {
    for_each_used(
        top_level(), 0, [](float* leaves) { std::fill_n(leaves, leaves_per_line, 0.0f); },
        [&](int level, int64_t node) { arrays_.sums[level][node] = 0; });
    total_ = 0;
}

// ---- draws

// Returns the level where the draws of a batch start their way down: the lowest with at most as many entries as draws.
// A batch reads all entries of this level, which costs 0.9 ns each, and nothing above it. If it started one level
// higher, each draw would need one more search, which costs 1.1 ns.
int SumTree::frontier_level(int64_t batch_size) const {
    int level = top_level();
    while (level > 1 && arrays_.shape.n_nodes[level - 1] <= batch_size) --level;
    return level;
}

// Prefetches the levels that are so small that a batch reads most of their lines. Without this the descent would wait
// once at each of them; with it the lines arrive while random numbers are generated. Larger levels are left out even
// for large batches: the more draws, the better the descent hides its own waits.
void SumTree::prefetch_small_levels(int level, int64_t batch_size) const {
    const int64_t most_sums = std::min<int64_t>(3 * batch_size, 96) * sums_per_line;
    for (; level >= 1 && arrays_.shape.n_nodes[level] <= most_sums; --level)
        for (int64_t i = 0; i < arrays_.shape.n_nodes[level]; i += sums_per_line)
            prefetch_to_read(arrays_.sums[level] + i);
}

uint64_t SumTree::first_unit(int64_t index) const {
    uint64_t units = 0;
    for (int64_t leaf = index / leaves_per_line * leaves_per_line; leaf < index; ++leaf) units += mass(leaf);
    int64_t node = index / leaves_per_line;
    for (int level = 1; level <= top_level(); ++level) {
        for (int64_t i = node / sums_per_line * sums_per_line; i < node; ++i) units += arrays_.sums[level][i];
        node /= sums_per_line;
    }
    return units;
}

std::size_t SumTree::draw_scratch_bytes(int64_t batch_size) const {
    const int64_t n_parts = arrays_.shape.n_nodes[frontier_level(batch_size)];
    return 2 * ScratchLayout::bytes_of<uint64_t>(batch_size + draw_padding) +
           ScratchLayout::bytes_of<uint64_t>(n_parts + 1) +
           ScratchLayout::bytes_of<uint32_t>(std::max(batch_size + 1, guide_size(n_parts)));
}

void write_targets(const DrawKernels& kernels, const DrawRequest& request, uint64_t total, uint64_t* targets_out) {
    const int64_t n = request.batch_size;
    if (request.scheme == PER_SYSTEMATIC)
        std::fill_n(targets_out, n, random64(request.seed, request.batch_number, request.first));
    else
        kernels.random_numbers(request.seed, request.batch_number, request.first, n, targets_out);
    if (request.scheme == PER_INDEPENDENT)
        kernels.spread(n, total, targets_out);
    else
        kernels.stratify(n, total, targets_out);
}

void SumTree::draw(const DrawRequest& request, int64_t* indices_out, uint64_t* masses_out, float* priorities_out,
                   std::byte* scratch, const RowsOfLeaves& rows) const {
    const int64_t n = request.batch_size;
    if (scratch == nullptr) {
        const ScratchPool::Loan loan(scratch_, draw_scratch_bytes(n));
        draw(request, indices_out, masses_out, priorities_out, loan.data(), rows);
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
    write_targets(kernels, request, total_, targets);
    kernels.sum_prefixes(arrays_.sums[level], n_parts, prefix);
    if (request.scheme == PER_INDEPENDENT)
        kernels.invert(prefix, n_parts, n, targets, parts, table);
    else
        kernels.invert_strata(prefix, n_parts, n, targets, parts, table);
    kernels.descend(arrays_, level - 1, n, parts, targets, indices_out, masses_out, priorities_out, rows);
}

}  // namespace per::cpu

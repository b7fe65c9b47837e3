#include "cpu/sum_tree.h"

#include <algorithm>
#include <cstring>

#include "random.h"

namespace per::cpu {
namespace {

uint64_t sum_of_leaf_line(const float* line, double factor) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < leaves_per_line; ++i) sum += mass_of(line[i], factor);
    return sum;
}

uint64_t sum_of_line(const uint64_t* line) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < sums_per_line; ++i) sum += line[i];
    return sum;
}

float largest_of(int64_t count, const float* priorities) {
    float largest = 0.0f;
    for (int64_t i = 0; i < count; ++i) largest = std::max(largest, priorities[i]);
    return largest;
}

// The scale at which these priorities, the largest of which is `largest` > 0, keep the bounds of a rescale.
int32_t choose_scale(int64_t count, const float* priorities, float largest) {
    const int32_t scale = scale_for_largest(largest);
    const double factor = power_of_two(scale);
    unsigned __int128 sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += mass_of(priorities[i], factor);
    return scale - scale_reduction(static_cast<uint64_t>(sum >> 64), static_cast<uint64_t>(sum), count);
}

std::size_t bytes_of(const TreeShape& shape) {
    std::size_t bytes = static_cast<std::size_t>(shape.n_nodes[0]) * sizeof(float);
    for (int level = 1; level < shape.n_levels; ++level)
        bytes += static_cast<std::size_t>(shape.n_nodes[level]) * sizeof(uint64_t);
    return bytes;
}

}  // namespace

SumTree::SumTree(int64_t capacity) : capacity_(capacity), shape_(tree_shape(capacity)), memory_(bytes_of(shape_)) {
    std::byte* next = memory_.data();
    leaves_ = reinterpret_cast<float*>(next);
    next += static_cast<std::size_t>(shape_.n_nodes[0]) * sizeof(float);
    for (int level = 1; level < shape_.n_levels; ++level) {
        sums_[level] = reinterpret_cast<uint64_t*>(next);
        next += static_cast<std::size_t>(shape_.n_nodes[level]) * sizeof(uint64_t);
    }
}

void SumTree::set_scale(int32_t scale) {
    scale_ = scale;
    factor_ = power_of_two(scale);
}

void SumTree::rebuild_sums() {
    for (int64_t i = 0; i < shape_.n_nodes[0] / leaves_per_line; ++i)
        sums_[1][i] = sum_of_leaf_line(leaves_ + i * leaves_per_line, factor_);
    for (int level = 2; level < shape_.n_levels; ++level)
        for (int64_t i = 0; i < shape_.n_nodes[level - 1] / sums_per_line; ++i)
            sums_[level][i] = sum_of_line(sums_[level - 1] + i * sums_per_line);
    total_ = sum_of_line(sums_[shape_.n_levels - 1]);
}

void SumTree::rebuild() {
    const float largest = largest_of(capacity_, leaves_);
    if (largest > 0.0f) set_scale(choose_scale(capacity_, leaves_, largest));
    rebuild_sums();
    low_water_ = low_water(total_, capacity_);
}

bool SumTree::fits(int64_t count, const float* priorities) const {
    BatchMass batch = {0.0, 0};
    for (int64_t i = 0; i < count; ++i) batch = add_to_batch(batch, priorities[i], factor_);
    return !breaks_limits(batch, total_);
}

// While every leaf is 0 the scale can follow the batch without a rebuild.
void SumTree::choose_scale_while_empty(const float* priorities, int64_t count) {
    const float largest = largest_of(count, priorities);
    if (largest > 0.0f) set_scale(choose_scale(count, priorities, largest));
}

void SumTree::finish_change(bool was_empty) {
    total_ = sum_of_line(sums_[shape_.n_levels - 1]);
    if (was_empty)
        low_water_ = low_water(total_, capacity_);
    else if (total_ != 0 && total_ < low_water_)
        rebuild();
}

void SumTree::set(int64_t count, const int64_t* indices, const float* priorities) {
    const bool was_empty = total_ == 0;
    if (was_empty) {
        choose_scale_while_empty(priorities, count);
    } else if (!fits(count, priorities)) {
        for (int64_t i = 0; i < count; ++i) leaves_[indices[i]] = priorities[i] + 0.0f;
        rebuild();
        return;
    }
    for (int64_t i = 0; i < count; ++i) {
        float& leaf = leaves_[indices[i]];
        const uint64_t difference = mass_of(priorities[i], factor_) - mass_of(leaf, factor_);
        leaf = priorities[i] + 0.0f;  // -0 becomes 0
        int64_t node = indices[i] / leaves_per_line;
        for (int level = 1; level < shape_.n_levels; ++level, node /= sums_per_line) sums_[level][node] += difference;
    }
    finish_change(was_empty);
}

void SumTree::set_run(int64_t first, int64_t count, const float* priorities) {
    if (count == 0) return;
    const bool was_empty = total_ == 0;
    const bool rescales = !was_empty && !fits(count, priorities);
    if (was_empty) choose_scale_while_empty(priorities, count);
    for (int64_t i = 0; i < count; ++i) leaves_[first + i] = priorities[i] + 0.0f;
    if (rescales) {
        rebuild();
        return;
    }
    int64_t begin = first / leaves_per_line;
    int64_t last = (first + count - 1) / leaves_per_line;
    for (int64_t i = begin; i <= last; ++i) sums_[1][i] = sum_of_leaf_line(leaves_ + i * leaves_per_line, factor_);
    for (int level = 2; level < shape_.n_levels; ++level) {
        begin /= sums_per_line;
        last /= sums_per_line;
        for (int64_t i = begin; i <= last; ++i) sums_[level][i] = sum_of_line(sums_[level - 1] + i * sums_per_line);
    }
    finish_change(was_empty);
}

void SumTree::reset() {
    std::memset(memory_.data(), 0, bytes_of(shape_));
    total_ = 0;
}

void SumTree::find_one(uint64_t unit, int64_t& index_out, uint64_t& mass_out) const {
    int64_t node = 0;
    for (int level = shape_.n_levels - 1; level >= 1; --level) {
        const uint64_t* const line = sums_[level] + node * sums_per_line;
        node = node * sums_per_line + find_child(
                                          sums_per_line, [line](int i) { return line[i]; }, unit);
    }
    const float* const line = leaves_ + node * leaves_per_line;
    const int leaf = find_child(
        leaves_per_line, [line, this](int i) { return mass_of(line[i], factor_); }, unit);
    index_out = node * leaves_per_line + leaf;
    mass_out = mass_of(line[leaf], factor_);
}

void SumTree::find(int64_t count, const uint64_t* units, int64_t* indices_out, uint64_t* masses_out) const {
    for (int64_t i = 0; i < count; ++i) {
        uint64_t mass;
        find_one(units[i], indices_out[i], masses_out == nullptr ? mass : masses_out[i]);
    }
}

void SumTree::draw(const DrawRequest& request, int64_t* indices_out, uint64_t* masses_out) const {
    const uint64_t width = stratum_width(request.batch_size);
    for (int64_t i = 0; i < request.batch_size; ++i) {
        const uint64_t place = static_cast<uint64_t>(i);
        const bool same_everywhere = request.scheme == PER_SYSTEMATIC;
        const uint64_t random = random64(request.seed, request.step, same_everywhere ? 0 : place);
        const uint64_t target = request.scheme == PER_INDEPENDENT ? independent_target(random, total_)
                                                                  : stratified_target(random, place, width, total_);
        find_one(target, indices_out[i], masses_out[i]);
    }
}

}  // namespace per::cpu

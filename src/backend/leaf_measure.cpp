#include "backend/leaf_measure.h"

#include <algorithm>

#include "base/arguments.h"

namespace per {
namespace {

WideSum sum_of_masses(const float* leaves, int64_t capacity, int32_t scale) {
    const double factor = power_of_two(scale);
    WideSum sum = {0, 0};
    for (int64_t i = 0; i < capacity; ++i) sum = add_wide(sum, {limited_mass_of(leaves[i], factor), 0});
    return sum;
}

bool fits(int32_t scale, float largest, const float* leaves, int64_t capacity) {
    if (!is_scale(scale) || is_too_large(largest, power_of_two(scale))) return false;
    const WideSum sum = sum_of_masses(leaves, capacity, scale);
    return sum.high == 0 && sum.low < total_mass_limit;
}

int32_t scale_needed(float largest, const float* leaves, int64_t capacity) {
    return scale_of_leaves(largest, sum_of_masses(leaves, capacity, scale_for_largest(largest)), capacity);
}

}  // namespace

void measure_leaves(const float* leaves, int64_t capacity, int32_t measured_scale, per_shard_summary& summary_out) {
    const WideSum sum = sum_of_masses(leaves, capacity, measured_scale);
    summary_out.measured_scale = measured_scale;
    summary_out.measured_low = sum.low;
    summary_out.measured_high = sum.high;
    summary_out.largest_leaf = *std::max_element(leaves, leaves + capacity);
    const bool has_mass = summary_out.largest_leaf > 0.0f;
    summary_out.scale_needed = has_mass ? scale_needed(summary_out.largest_leaf, leaves, capacity) : summary_out.scale;
}

void check_scale(int32_t scale, const float* leaves, int64_t capacity) {
    const float largest = *std::max_element(leaves, leaves + capacity);
    if (fits(scale, largest, leaves, capacity)) return;
    int32_t most = largest > 0.0f ? scale_needed(largest, leaves, capacity) : max_scale;
    while (fits(most + 1, largest, leaves, capacity)) ++most;
    throw_out_of_range("scale", scale, min_scale, most);
}

}  // namespace per

#include "backend/leaf_measure.h"

#include <algorithm>

#include "base/arguments.h"

namespace per {
namespace {

WideSum sum_of_masses(const MeasuredLeaves& leaves, int32_t scale) {
    const double factor = power_of_two(scale);
    WideSum sum = {0, 0};
    for (int64_t i = 0; i < leaves.capacity; ++i) sum = add_wide(sum, {limited_mass_of(leaves[i], factor), 0});
    return sum;
}

bool fits(int32_t scale, float largest, const MeasuredLeaves& leaves) {
    if (!is_scale(scale) || is_too_large(largest, power_of_two(scale))) return false;
    const WideSum sum = sum_of_masses(leaves, scale);
    return sum.high == 0 && sum.low < total_mass_limit;
}

int32_t scale_needed(float largest, const MeasuredLeaves& leaves) {
    return scale_of_leaves(largest, sum_of_masses(leaves, scale_for_largest(largest)), leaves.capacity);
}

}  // namespace

// A rebase keeps the order of leaves.
float MeasuredLeaves::largest() const {
    const float largest = *std::max_element(leaves, leaves + capacity);
    return raised == 0 ? largest : rebased_leaf(largest, raised);
}

void measure_leaves(const MeasuredLeaves& leaves, int32_t measured_scale, per_shard_summary& summary_out) {
    const WideSum sum = sum_of_masses(leaves, measured_scale);
    summary_out.measured_scale = measured_scale;
    summary_out.measured_low = sum.low;
    summary_out.measured_high = sum.high;
    summary_out.largest_leaf = leaves.largest();
    const bool has_mass = summary_out.largest_leaf > 0.0f;
    summary_out.scale_needed = has_mass ? scale_needed(summary_out.largest_leaf, leaves) : summary_out.scale;
}

void check_scale(int32_t scale, const MeasuredLeaves& leaves) {
    const float largest = leaves.largest();
    if (fits(scale, largest, leaves)) return;
    int32_t most = largest > 0.0f ? scale_needed(largest, leaves) : max_scale;
    while (fits(most + 1, largest, leaves)) ++most;
    throw_out_of_range("scale", scale, min_scale, most);
}

}  // namespace per

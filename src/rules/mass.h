// The mass of a leaf is ceil(leaf * 2^scale), an integer that is 0 only for a leaf of 0. All sums are sums of masses,
// so they are exact, in whatever order. This file has the mass and every rule by which the scale is chosen. Both
// backends follow them, so they always agree on the scale and on every sum.
#pragma once

#include <stdint.h>

#include "rules/host_device.h"

namespace per {

// The mass of each leaf stays below this limit, so that it converts to double and back exactly.
inline constexpr uint64_t leaf_mass_limit = uint64_t{1} << 52;
// The total mass stays below this limit.
inline constexpr uint64_t total_mass_limit = uint64_t{1} << 62;
// After a rescale the largest leaf has a mass of at most 2^46, so that priorities can grow 64-fold before the next.
inline constexpr int rescaled_leaf_bits = 46;
// After a rescale the total is at most 2^56.
inline constexpr int rescaled_total_bits = 56;

// 2^exponent for exponents of normal doubles.
PER_HOST_DEVICE double power_of_two(int32_t exponent) {
    return bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

// The range of the scales that a rescale chooses or a call sets.
inline constexpr int32_t min_scale = -120;
inline constexpr int32_t max_scale = 200;
PER_HOST_DEVICE bool is_scale(int32_t scale) {
    return scale >= min_scale && scale <= max_scale;
}

// p * 2^scale, exactly: a float32 has 24 bits, so at such a scale the product is a normal double, also where p is
// subnormal.
PER_HOST_DEVICE double scaled_priority(float priority, double factor) {
    return static_cast<double>(priority) * factor;
}

// The mass of a leaf whose scaled priority is below 2^63: that priority, rounded up.
PER_HOST_DEVICE uint64_t mass_of_scaled(double scaled) {
#if defined(__CUDA_ARCH__)
    return static_cast<uint64_t>(__double2ll_ru(scaled));  // one instruction, of which CPUs have none
#else
    const int64_t below = static_cast<int64_t>(scaled);
    return static_cast<uint64_t>(below + (static_cast<double>(below) < scaled));
#endif
}

// The mass of a leaf of the tree; `factor` is power_of_two(scale).
PER_HOST_DEVICE uint64_t mass_of(float priority, double factor) {
    return mass_of_scaled(scaled_priority(priority, factor));
}

// The mass of a leaf that may be too large for the scale: at most leaf_mass_limit.
PER_HOST_DEVICE uint64_t limited_mass_of(float priority, double factor) {
    const double limit = static_cast<double>(leaf_mass_limit);
    const double scaled = scaled_priority(priority, factor);
    return mass_of_scaled(scaled < limit ? scaled : limit);
}

PER_HOST_DEVICE bool is_too_large(float priority, double factor) {
    return scaled_priority(priority, factor) > static_cast<double>(leaf_mass_limit - 1);
}

// A 128-bit sum of masses, for a scale at which each mass is below leaf_mass_limit, but the sum may exceed
// total_mass_limit.
struct WideSum {
    uint64_t low;
    uint64_t high;
};

PER_HOST_DEVICE WideSum add_wide(WideSum a, WideSum b) {
    const uint64_t low = a.low + b.low;
    return {low, a.high + b.high + (low < a.low)};
}

// The work that remains after a change of leaves.
enum ScalePlan : int32_t {
    plan_keep,     // none: the sums have followed the leaves
    plan_rescale,  // choose a scale for the leaves; a sum of 0 means that all leaves below it are 0
    plan_rebuild   // the same, but the sums are not valid
};

// The only rule by which the scale changes. An add applies it after each of its steps; any other call once, after all
// its changes. `total` is the exact total after them, except that a leaf that is too large counts as leaf_mass_limit.
PER_HOST_DEVICE ScalePlan plan_after_change(uint64_t total_before, WideSum total, bool has_too_large,
                                            uint64_t low_water) {
    if (total.high != 0) return plan_rebuild;  // sums of 64 bits may have wrapped
    if (total.low == 0) return plan_keep;
    const bool is_too_much = has_too_large || total.low >= total_mass_limit;
    return total_before == 0 || is_too_much || total.low < low_water ? plan_rescale : plan_keep;
}

// The same for a tree with a fixed scale, which only an overflow changes.
PER_HOST_DEVICE ScalePlan plan_at_fixed_scale(WideSum total, bool has_too_large) {
    return plan_after_change(1, total, has_too_large, 0);
}

// True if no sequence of changes that gains at most `gained` and loses at most `lost` units of mass can ask for another
// scale, in whatever order. False means that one might.
PER_HOST_DEVICE bool surely_keeps_scale(uint64_t total, WideSum gained, WideSum lost, bool has_too_large,
                                        uint64_t low_water, bool is_scale_fixed) {
    if (has_too_large || gained.high != 0 || gained.low >= total_mass_limit) return false;
    if (total + gained.low >= total_mass_limit) return false;
    if (is_scale_fixed) return true;
    if (total == 0) return gained.low == 0;
    return lost.high == 0 && lost.low < total && total - lost.low >= low_water;
}

// The largest scale at which a leaf of priority `largest` > 0 has a mass of 2^46 at most.
PER_HOST_DEVICE int32_t scale_for_largest(float largest) {
    // As a double the priority is normal, and its exponent can be read off: largest < 2^(exponent + 1).
    const int32_t exponent = static_cast<int32_t>(bit_cast<uint64_t>(static_cast<double>(largest)) >> 52) - 1023;
    return rescaled_leaf_bits - 1 - exponent;
}

// The number by which that scale must be lowered so that a total of `sum` over n_leaves leaves becomes 2^56 at most.
// Lowering a scale by d divides each mass by 2^d and rounds it up: the total becomes at most floor(sum / 2^d) +
// n_leaves.
PER_HOST_DEVICE int32_t scale_reduction(WideSum sum, int64_t n_leaves) {
    const uint64_t room = (uint64_t{1} << rescaled_total_bits) - static_cast<uint64_t>(n_leaves);
    int32_t reduction = 0;
    for (; sum.high != 0 || sum.low > room; ++reduction) sum = {sum.low >> 1 | sum.high << 63, sum.high >> 1};
    return reduction;
}

// The scale for n_leaves leaves, given the largest of them, not 0, and the sum of their masses at scale_for_largest().
PER_HOST_DEVICE int32_t scale_of_leaves(float largest, WideSum sum, int64_t n_leaves) {
    return scale_for_largest(largest) - scale_reduction(sum, n_leaves);
}

// Returns the total below which the next rescale is due, after one that gave `total`. At 2^20 units a leaf or more, the
// rounding of masses is finer than the precision of priorities, so no rescale is due. Nor is one due before the total
// falls to a 16th, which bounds the number of rescales.
PER_HOST_DEVICE uint64_t low_water(uint64_t total, int64_t n_leaves) {
    const uint64_t precise = static_cast<uint64_t>(n_leaves) << 20;
    return total / 16 < precise ? total / 16 : precise;
}

// Finds the unit of mass that a prefix sum of priorities names, in a tree of this total mass, not 0. Returns false if
// the prefix sum is not within the tree. The total is rounded to a double, perhaps up, but every double below the
// rounded total is below the exact one, too.
PER_HOST_DEVICE bool unit_of_prefix_sum(double prefix_sum, uint64_t total, double factor, uint64_t& unit) {
    if (!(prefix_sum >= 0.0 && prefix_sum < static_cast<double>(total) / factor)) return false;
    unit = static_cast<uint64_t>(prefix_sum * factor);
    return true;
}

}  // namespace per

// What a leaf weighs. A leaf of priority p has the mass ceil(p * 2^scale), a whole number, 0 only for p = 0; all sums
// are sums of masses, so they are exact and the order of adding does not matter. Here are the mass and every rule by
// which the scale is chosen; both backends follow them, so they always agree on the scale and on every sum.
#pragma once

#include <stdint.h>

#include "rules/host_device.h"

namespace per {

// Every leaf stays below, so that a mass converts to double and back exactly.
inline constexpr uint64_t leaf_mass_limit = uint64_t{1} << 52;
// The total stays below.
inline constexpr uint64_t total_mass_limit = uint64_t{1} << 62;
// A rescale leaves the largest leaf at most this, so that priorities can grow 64-fold before the next,
inline constexpr int rescaled_leaf_bits = 46;
// and the total at most this.
inline constexpr int rescaled_total_bits = 56;

// 2^exponent for exponents of normal doubles.
PER_HOST_DEVICE double power_of_two(int32_t exponent) {
    return bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

// Whether a rescale can choose it, if not more.
PER_HOST_DEVICE bool is_scale(int32_t scale) {
    return scale >= -120 && scale <= 200;
}

// p * 2^scale, exactly: a float32 has 24 bits, so at such a scale the product is a normal double, also where p is
// subnormal.
PER_HOST_DEVICE double scaled_priority(float priority, double factor) {
    return static_cast<double>(priority) * factor;
}

// The mass of a leaf whose scaled priority is below 2^63.
PER_HOST_DEVICE uint64_t mass_of_scaled(double scaled) {
    const int64_t below = static_cast<int64_t>(scaled);
    return static_cast<uint64_t>(below + (static_cast<double>(below) < scaled));
}

// The mass of a leaf of the tree; `factor` is power_of_two(scale).
PER_HOST_DEVICE uint64_t mass_of(float priority, double factor) {
    return mass_of_scaled(scaled_priority(priority, factor));
}

// Of a leaf that may be too large for the scale: taken as leaf_mass_limit at most.
PER_HOST_DEVICE uint64_t limited_mass_of(float priority, double factor) {
    const double limit = static_cast<double>(leaf_mass_limit);
    const double scaled = scaled_priority(priority, factor);
    return mass_of_scaled(scaled < limit ? scaled : limit);
}

// What the scale decisions need to know of the priorities about to be written.
struct BatchMass {
    double largest;  // largest scaled priority
    uint64_t sum;    // of the masses, each taken as leaf_mass_limit at most; total_mass_limit if it is that or more
};

PER_HOST_DEVICE BatchMass add_to_batch(BatchMass batch, float priority, double factor) {
    const double scaled = scaled_priority(priority, factor);
    const uint64_t sum = batch.sum + limited_mass_of(priority, factor);
    return {scaled > batch.largest ? scaled : batch.largest, sum < total_mass_limit ? sum : total_mass_limit};
}

// The same of a sum that was added up in 128 bits.
PER_HOST_DEVICE BatchMass batch_mass(float largest, double factor, uint64_t sum_high, uint64_t sum_low) {
    const bool fits = sum_high == 0 && sum_low < total_mass_limit;
    return {scaled_priority(largest, factor), fits ? sum_low : total_mass_limit};
}

// Whether writing the batch at the present scale could break a limit. What the written leaves weighed before is not
// subtracted: the answer must not depend on which leaves they are.
PER_HOST_DEVICE bool breaks_limits(BatchMass batch, uint64_t total) {
    return batch.largest > static_cast<double>(leaf_mass_limit - 1) || total + batch.sum >= total_mass_limit;
}

// How an update goes about the scale.
enum UpdatePlan : int32_t {
    plan_add,     // add differences to the sums, at the scale there is
    plan_anew,    // the same in an empty tree, at a scale that follows what is written
    plan_rebuild  // write leaves only, then choose a scale for all of them and sum up again
};

// The leaves that one call of a replay buffer writes are one change. What decides about its scale, besides the leaves
// as they are after it, does not depend on the order in which they are written, nor on the pieces.
struct LeafChange {
    int64_t n;  // rows that become live, and updates of live ones; each counts, also where a later one takes its slot
    float largest;  // the leaf of the largest priority among them
};

// The scale of plan_anew is that of a rebuild.
PER_HOST_DEVICE UpdatePlan plan_of(LeafChange change, uint64_t total, double factor) {
    if (change.n == 0 || change.largest == 0.0f) return plan_add;
    if (total == 0) return plan_anew;
    const double scaled = scaled_priority(change.largest, factor);
    if (scaled > static_cast<double>(leaf_mass_limit - 1)) return plan_rebuild;
    // The total after it is total + n * mass at most. Products of up to 1023 do not overflow; divisions are slow.
    const uint64_t mass = mass_of_scaled(scaled);
    const uint64_t n = static_cast<uint64_t>(change.n);
    const uint64_t room = total_mass_limit - 1 - total;
    return (n < 1024 ? n * mass <= room : n <= room / mass) ? plan_add : plan_rebuild;
}

// The largest scale at which a leaf of priority `largest` > 0 has a mass of 2^46 at most.
PER_HOST_DEVICE int32_t scale_for_largest(float largest) {
    // As a double the priority is normal, and its exponent can be read off: largest < 2^(exponent + 1).
    const int32_t exponent = static_cast<int32_t>(bit_cast<uint64_t>(static_cast<double>(largest)) >> 52) - 1023;
    return rescaled_leaf_bits - 1 - exponent;
}

// By how much that scale must be lowered for a total of sum_high * 2^64 + sum_low at it, over n_leaves leaves, to
// become 2^56 at most. Lowering a scale by d divides each mass by 2^d and rounds it up: the total becomes at most
// floor(sum / 2^d) + n_leaves.
PER_HOST_DEVICE int32_t scale_reduction(uint64_t sum_high, uint64_t sum_low, int64_t n_leaves) {
    const uint64_t room = (uint64_t{1} << rescaled_total_bits) - static_cast<uint64_t>(n_leaves);
    int32_t reduction = 0;
    while (sum_high != 0 || sum_low > room) {
        sum_low = sum_low >> 1 | sum_high << 63;
        sum_high >>= 1;
        ++reduction;
    }
    return reduction;
}

// The scale of a rebuild, given the largest of n_leaves leaves, not 0, and the sum of their masses at
// scale_for_largest().
PER_HOST_DEVICE int32_t rebuilt_scale(float largest, uint64_t sum_high, uint64_t sum_low, int64_t n_leaves) {
    return scale_for_largest(largest) - scale_reduction(sum_high, sum_low, n_leaves);
}

// With fewer leaves than these that are not 0, among 2^40 at most, the sum asks for no reduction.
inline constexpr int64_t few_leaves = int64_t{1} << (rescaled_total_bits - rescaled_leaf_bits);

// After a rescale that gave `total`: the total below which the next rescale is due. Above 2^20 units a leaf, rounding
// is below every priority's own precision; and a 16th between two rescales bounds their number.
PER_HOST_DEVICE uint64_t low_water(uint64_t total, int64_t n_leaves) {
    const uint64_t precise = static_cast<uint64_t>(n_leaves) << 20;
    return total / 16 < precise ? total / 16 : precise;
}

// The unit of mass that a prefix sum in units of priority names, for a tree of this total mass, not 0. False, and no
// unit, for one that is not within the tree. A rounded total may lie above the true one, but every double below it lies
// below the true one too.
PER_HOST_DEVICE bool unit_of_prefix_sum(double prefix_sum, uint64_t total, double factor, uint64_t& unit) {
    if (!(prefix_sum >= 0.0 && prefix_sum < static_cast<double>(total) / factor)) return false;
    unit = static_cast<uint64_t>(prefix_sum * factor);
    return true;
}

}  // namespace per

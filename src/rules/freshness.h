// Freshness: priorities that decay with the age of their transition, P(i) in proportion to p_i^alpha 2^(-age_i /
// half_life).
//
// The birth of a transition is the number of its row in its lane, or the version under which it was added. All
// priorities decay alike, so a leaf holds
//
//   p^alpha 2^(birth / half_life - reference)
//
// which time does not change. `reference` is a whole number a little above birth / half_life of the newest transition.
// It is raised when births come too close to it: each leaf is then multiplied by a power of two, and the scale of the
// tree raised by as much, so that no mass changes: a rebase.
#pragma once

#include <stdint.h>

#include "rules/host_device.h"
#include "rules/mass.h"
#include "rules/priority.h"

namespace per {

struct Freshness {
    double half_lives_per_birth = 0.0;  // 1 / half_life; 0: priorities do not decay
    int64_t reference = 0;

    PER_HOST_DEVICE bool decays() const { return half_lives_per_birth != 0.0; }
};

// The scale of masses (mass.h), and the reference of the leaves that it is for.
struct LeafScale {
    int32_t scale;
    int64_t reference;
};

// All births lie at least this many half-lives below the reference, so that no leaf exceeds its p^alpha.
inline constexpr int64_t least_below_reference = 4;
// The reference is a multiple of this, plus least_below_reference.
inline constexpr int64_t reference_step = 32;
// Leaves are at least this large, unless they are 0.
inline constexpr double least_decayed_leaf = 0x1p-126;
// The largest scale at which a rebase keeps all masses: a leaf that it leaves at the least has a mass of one unit, and
// had one before.
inline constexpr int32_t max_scale_of_rebase = 126;

// Births and half-lives beyond these count as these: far more than any buffer sees.
inline constexpr int64_t max_birth = (int64_t{1} << 52) - 1;
inline constexpr double max_half_lives = 0x1p50;

// The reference of a buffer that has no rows yet, and the largest one.
inline constexpr int64_t first_reference = reference_step + least_below_reference;
inline constexpr int64_t last_reference = static_cast<int64_t>(max_half_lives) + first_reference;

PER_HOST_DEVICE double half_lives_at(const Freshness& freshness, int64_t birth) {
    const double half_lives = static_cast<double>(birth) * freshness.half_lives_per_birth;
    return half_lives < max_half_lives ? half_lives : max_half_lives;
}

// The reference for leaves of this birth and of earlier ones.
PER_HOST_DEVICE int64_t reference_for(const Freshness& freshness, int64_t birth) {
    const int64_t whole = static_cast<int64_t>(half_lives_at(freshness, birth));
    return whole - whole % reference_step + reference_step + least_below_reference;
}

// True if the reference must be raised before a leaf of this birth is written.
PER_HOST_DEVICE bool is_rebase_due(const Freshness& freshness, int64_t birth) {
    return half_lives_at(freshness, birth) >= static_cast<double>(freshness.reference - least_below_reference);
}

// True if buffers have such a reference.
PER_HOST_DEVICE bool is_reference(const Freshness& freshness, int64_t reference) {
    if (!freshness.decays()) return reference == 0;
    return reference >= first_reference && reference <= last_reference &&
           (reference - first_reference) % reference_step == 0;
}

// True if leaves that a rebase leaves at the least keep their masses.
PER_HOST_DEVICE bool rebase_keeps_masses(int32_t scale, int64_t raised) {
    return scale + raised <= max_scale_of_rebase;
}

// The amount by which a reference must be raised to be at least this one.
PER_HOST_DEVICE int64_t raise_to(const Freshness& freshness, int64_t reference) {
    return reference > freshness.reference ? reference - freshness.reference : 0;
}

// The factor that turns leaves into p^alpha times their decay up to `now`, the birth of age 0.
PER_HOST_DEVICE double of_age_0(const Freshness& freshness, int64_t now) {
    return exp2_of<double, uint64_t>(static_cast<double>(freshness.reference) - half_lives_at(freshness, now));
}

// A leaf after a rebase that raises the reference by `raised` > 0: what decayed_leaf() gives for the new reference.
PER_HOST_DEVICE float rebased_leaf(float leaf, int64_t raised) {
    if (leaf == 0.0f) return 0.0f;
    const double scaled = static_cast<double>(leaf) * power_of_two(static_cast<int32_t>(raised < 400 ? -raised : -400));
    return static_cast<float>(scaled > least_decayed_leaf ? scaled : least_decayed_leaf);
}

// log2(p^alpha) for p > 0, within the range of positive float32; 0 if alpha is 0, also for p = 0.
template <class Real, class Bits>
PER_HOST_DEVICE Real log2_of_power(Real priority, double alpha) {
    const Real unit{};
    const Real exponent = log2_of<Real, Bits>(priority) * alpha;
    const Real above = exponent > -149.0 ? exponent : unit - 149.0;
    return above < 128.0 ? above : unit + 128.0;
}

// 2^(exponent + half_lives - reference) for an exponent of log2_of_power(), and at least least_decayed_leaf. A larger
// reference gives the same number times a power of two, exactly, as long as that is above the least. Without limits the
// result must be above it, and half_lives - reference above -600.
template <class Real, class Bits, bool has_limits = true>
PER_HOST_DEVICE Real decayed_power(Real exponent, Real half_lives, double reference) {
    const Real unit{};
    const Real whole = (half_lives + 0x1.8p52) - 0x1.8p52;
    Real shift = whole - reference;
    if (has_limits) shift = shift > -600.0 ? shift : unit - 600.0;
    // The fraction is the same for every reference, and so are the digits of the power.
    const Bits n = bit_cast<Bits>(shift + 0x1.8p52) - 0x4338000000000000u;
    const Real leaf = exp2_within<Real, Bits>(exponent + (half_lives - whole), n);
    if (!has_limits) return leaf;
    return leaf > least_decayed_leaf ? leaf : unit + least_decayed_leaf;
}

PER_HOST_DEVICE float decayed_leaf(float priority, double alpha, const Freshness& freshness, int64_t birth) {
    if (priority == 0.0f && alpha != 0.0) return 0.0f;
    const double exponent = log2_of_power<double, uint64_t>(static_cast<double>(priority), alpha);
    return static_cast<float>(decayed_power<double, uint64_t>(exponent, half_lives_at(freshness, birth),
                                                              static_cast<double>(freshness.reference)));
}

}  // namespace per

// The distribution of a draw: targets and strata, the mixture with the uniform distribution, the rounds of a draw
// without replacement, and the importance-sampling weights. Host and device run these same functions.
#pragma once

#include <stdint.h>

#include "per.h"
#include "rules/host_device.h"
#include "rules/priority.h"
#include "rules/random.h"

namespace per {

// ---- targets and strata

// Everything that decides the targets of a batch of draws, besides their total.
struct DrawRequest {
    int64_t batch_size;  // 1 .. 2^24
    int32_t scheme;      // a per_scheme but PER_WITHOUT_REPLACEMENT
    uint64_t seed;
    uint64_t batch_number;  // batches drawn before
    uint64_t first = 0;     // number of the first random number; even
};

// The width of one of `batch_size` equal strata of the 64-bit fractions.
PER_HOST_DEVICE uint64_t stratum_width(int64_t batch_size) {
    return ~uint64_t{0} / static_cast<uint64_t>(batch_size);
}

// The target of draw i in 0 .. total - 1. It lies in stratum i, at the place given by `random`; `width` is
// stratum_width(). It needs no division, and is always below `total`, because (i + 1) * width fits 64 bits.
PER_HOST_DEVICE uint64_t stratified_target(uint64_t random, uint64_t i, uint64_t width, uint64_t total) {
    return mulhi(i * width + mulhi(random, width), total);
}

PER_HOST_DEVICE uint64_t independent_target(uint64_t random, uint64_t total) {
    return mulhi(random, total);
}

// The target of draw i in 0 .. total - 1; `width` is stratum_width(batch_size).
PER_HOST_DEVICE uint64_t draw_target(const DrawRequest& request, uint64_t i, uint64_t width, uint64_t total) {
    const uint64_t random =
        random64(request.seed, request.batch_number, request.first + (request.scheme == PER_SYSTEMATIC ? 0 : i));
    return request.scheme == PER_INDEPENDENT ? independent_target(random, total)
                                             : stratified_target(random, i, width, total);
}

// ---- the mixture of the uniform distribution over the live transitions and the prioritized one
//
//   P(i) = (1 - u) q_i / T + u / N
//
// A draw has one target in 0 .. mixture_units - 1. Targets below u * mixture_units draw uniformly, the others by
// priority, so that strata of the mixture are strata of both parts.

inline constexpr uint64_t mixture_units = uint64_t{1} << 62;

// u * mixture_units, rounded down.
PER_HOST_DEVICE uint64_t uniform_units(double uniform_fraction) {
    return static_cast<uint64_t>(uniform_fraction * static_cast<double>(mixture_units));
}

// floor(target * total / units) for target < units: the same place among 0 .. total - 1.
PER_HOST_DEVICE uint64_t rescaled_target(uint64_t target, uint64_t units, uint64_t total) {
    return static_cast<uint64_t>(static_cast<unsigned __int128>(target) * total / units);
}

// The result of a draw: a unit of the tree's mass, or the rank of a live transition.
struct UnitOrRank {
    uint64_t value;
    bool is_rank;
};

// Maps a target among mixture_units, of which `uniform` draw uniformly.
PER_HOST_DEVICE UnitOrRank part_of_mixture(uint64_t target, uint64_t uniform, uint64_t mass, uint64_t n_live) {
    if (target < uniform) return {rescaled_target(target, uniform, n_live), true};
    return {rescaled_target(target - uniform, mixture_units - uniform, mass), false};
}

// ---- without replacement: independent draws in rounds, repeats discarded

// The number of independent draws in a round that is to find n more leaves. One round is usually enough. The number is
// even.
PER_HOST_DEVICE int64_t distinct_round_size(int64_t n_to_find) {
    return (n_to_find + n_to_find / 4 + 17) / 2 * 2;
}

// True if this many repeats in a round mean that a few leaves hold most of the mass. Those found are then taken out.
PER_HOST_DEVICE bool repeats_prevail(int64_t n_repeats, int64_t round_size) {
    return 2 * n_repeats > round_size;
}

// Indices that hold all but `share` of the total are taken out. Returns the number of draws from the whole up to the
// first that gives another index: a geometric number, 1, 2, .., made from 64 random bits.
PER_HOST_DEVICE double draws_until_outside(uint64_t random, double share) {
    const double uniform = (static_cast<double>(random >> 12) + 0.5) * 0x1p-52;
    const double more = log2_of<double, uint64_t>(uniform) / log2_of_1_minus<double, uint64_t>(share);
    return 1.0 + (more < 0x1p52 ? static_cast<double>(static_cast<int64_t>(more)) : more);
}

// The probability 1 - (1 - share)^draws that a leaf with this share of the total is among `draws` independent draws,
// 0 < share <= 1; draws may be infinite.
template <class Real, class Bits>
PER_HOST_DEVICE Real inclusion_probability(Real share, double draws) {
    const Real unit{};
    const Real y = log2_of_1_minus<Real, Bits>(share) * draws;
    const Real probability = y > -0.5 ? -exp2_minus_1<Real>(y) : 1.0 - exp2_of<Real, Bits>(y);
    return share < 1.0 ? probability : unit + 1.0;
}

// ---- probabilities and weights

// The fraction u of uniform draws. It is 1 if all priorities are 0.
PER_HOST_DEVICE double uniform_part(int32_t prioritization, double uniform_fraction, uint64_t mass) {
    return prioritization != PER_UNIFORM && mass != 0 ? uniform_fraction : 1.0;
}

// Stands for the share of a transition that is missing or cannot be drawn. Its weight is 0, and it is never the
// smallest of a batch.
PER_HOST_DEVICE double no_share() {
    return bit_cast<double>(uint64_t{0x7ff0000000000000});
}

// The distribution of one batch. Transition i is drawn with probability share_i / total(); without replacement its
// inclusion probability is share_i.
struct DrawLaw {
    int64_t batch_size;
    bool is_distinct;         // without replacement
    double uniform_fraction;  // as uniform_part() gives it
    double n_live;
    double mass;     // of the tree
    double n_draws;  // without replacement: the equivalent number of independent draws

    PER_HOST_DEVICE bool is_uniform() const { return uniform_fraction == 1.0; }
    PER_HOST_DEVICE bool is_mixture() const { return !is_uniform() && uniform_fraction != 0.0; }

    // True if share_of() is the mass itself.
    PER_HOST_DEVICE bool are_shares_masses() const { return uniform_fraction == 0.0 && !is_distinct; }

    PER_HOST_DEVICE double share_of(double mass_of_row) const {
        if (is_uniform()) return 1.0;
        const double share = (1.0 - uniform_fraction) * mass_of_row + uniform_fraction * (mass / n_live);
        return is_distinct ? inclusion_probability<double, uint64_t>(share / mass, n_draws) : share;
    }

    // The divisor that turns shares into probabilities.
    PER_HOST_DEVICE double total() const {
        if (is_uniform()) return n_live;
        return is_distinct ? static_cast<double>(batch_size) : mass;
    }

    // The share whose weight is 1. Not for PER_BATCH_MAX, where it is the smallest share of the batch. smallest_mass()
    // gives the smallest mass of the live transitions of positive priority.
    template <class SmallestMass>
    PER_HOST_DEVICE double reference(int32_t normalize_weights, const SmallestMass& smallest_mass) const {
        if (is_uniform()) return 1.0;
        if (normalize_weights == PER_NONE) return total() / n_live;
        return share_of(static_cast<double>(smallest_mass()));
    }

    // These are used while transitions are taken out. uniform_left() is what is left of the uniform part, share_left()
    // what is left of both parts, as shares of the whole.
    PER_HOST_DEVICE double uniform_left(uint64_t n_left) const {
        return uniform_fraction * (static_cast<double>(n_left) / n_live);
    }
    PER_HOST_DEVICE double share_left(uint64_t mass_left, uint64_t n_left) const {
        const double rest = static_cast<double>(mass_left);
        return uniform_left(n_left) + (rest > 0.0 ? (1.0 - uniform_fraction) * (rest / mass) : 0.0);
    }
    // The number of mixture_units that then draw uniformly.
    PER_HOST_DEVICE uint64_t uniform_units_left(uint64_t mass_left, uint64_t n_left) const {
        if (mass_left == 0) return mixture_units;  // even if the uniform part is so small that the quotient is 0 / 0
        return uniform_units(uniform_left(n_left) / share_left(mass_left, n_left));
    }
};

// P(i) of a row in a mixture of several buffers is its share times this factor. `share` is that of its buffer in the
// mixture, and even_share that of a row with P = 1 / n_live within the buffer.
PER_HOST_DEVICE double mixture_factor(double share, double even_share, int64_t n_live) {
    return share / (even_share * static_cast<double>(n_live));
}

// (reference / x)^beta for positive normal doubles, given log2(reference). If x is a mass and `reference` the smallest
// mass, this is the weight of section 3.4 divided by the largest weight: the total and N cancel.
template <class Real, class Bits>
PER_HOST_DEVICE Real importance_weight_of(double log2_reference, Real x, double beta) {
    const Real unit{};
    const Real weight = exp2_of<Real, Bits>((log2_reference - log2_of<Real, Bits>(x)) * beta);
    return weight < 0x1.fffffep127 ? weight : unit + 0x1.fffffep127;
}

PER_HOST_DEVICE float importance_weight(double reference, double x, double beta) {
    const double log2_reference = log2_of<double, uint64_t>(reference);
    return static_cast<float>(importance_weight_of<double, uint64_t>(log2_reference, x, beta));
}

}  // namespace per

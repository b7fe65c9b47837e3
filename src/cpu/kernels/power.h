// The functions of priority.h and freshness.h and the weights of draw.h for whole arrays, one number in each lane of a vector.
#pragma once

#include "cpu/kernels/kernels.h"
#include "cpu/kernels/lanes.h"
#include "cpu/kernels/update.h"
#include "rules/draw.h"
#include "rules/freshness.h"
#include "rules/td_error.h"

namespace per::cpu {
namespace {

// priority_to_alpha() of each lane; `of_zero` is 0^alpha.
PER_INLINE Floats raise_lanes(Floats priority, double alpha, double of_zero) {
    const Real x = to_real(priority);
    const Real power = clamp_to_positive_float(power_of<Real, Bits>(x, alpha));
    return to_floats(x == 0.0 ? Real{} + of_zero : power);
}

void raise(int64_t count, const float* priorities, double alpha, float* powers_out) {
    const double of_zero = alpha == 0.0 ? 1.0 : 0.0;
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes)
        store(powers_out + i, raise_lanes(load<Floats>(priorities + i), alpha, of_zero));
    for (; i < count; ++i) powers_out[i] = priority_to_alpha(priorities[i], alpha);
}

PER_INLINE Real half_lives_of(Real births, const Freshness& freshness) {
    const Real half_lives = births * freshness.half_lives_per_birth;
    return half_lives < max_half_lives ? half_lives : Real{} + max_half_lives;
}

void decay(int64_t count, const float* priorities, double alpha, const Freshness& freshness, const GivenBirths& births,
           float* leaves_out) {
    const double reference = static_cast<double>(freshness.reference);
    const double latest = static_cast<double>(births.latest);
    const Real offset = Real{} + static_cast<double>(births.offset);
    const Real offset_behind = Real{} + static_cast<double>(births.offset_behind);
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
        const Real x = to_real(load<Floats>(priorities + i));
        const Real number = small_to_real(load<Bits>(births.numbers + i));
        const Real half_lives = half_lives_of(number + (number > latest ? offset_behind : offset), freshness);
        const Real leaf = decayed_power<Real, Bits>(log2_of_power<Real, Bits>(x, alpha), half_lives, reference);
        store(leaves_out + i, to_floats(x == 0.0 && alpha != 0.0 ? Real{} : leaf));
    }
    for (; i < count; ++i) {
        const int64_t number = births.numbers[i];
        const int64_t birth = number + (number > births.latest ? births.offset_behind : births.offset);
        leaves_out[i] = decayed_leaf(priorities[i], alpha, freshness, birth);
    }
}

// leaf_of(births) gives the leaf of each lane.
template <class LeafOf>
PER_INLINE int64_t decay_lanes(int64_t count, int64_t first_birth, float* leaves, const LeafOf& leaf_of) {
    Real births;
    for (int lane = 0; lane < lanes; ++lane) births[lane] = static_cast<double>(first_birth + lane);
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes, births += lanes)
        store(leaves + i, load<Floats>(leaves + i) == 0.0f ? Floats{} : to_floats(leaf_of(births)));
    return i;
}

// New rows are far from all limits.
void decay_run(int64_t count, double exponent, const Freshness& freshness, int64_t first_birth, float* leaves) {
    const double reference = static_cast<double>(freshness.reference);
    const Real same = Real{} + exponent;
    const bool has_limits = half_lives_at(freshness, first_birth) - reference < -500.0 ||
                            exponent + half_lives_at(freshness, first_birth) - reference < -120.0 ||
                            half_lives_at(freshness, first_birth + count) == max_half_lives;
    const int64_t n_in_lanes =
        has_limits
            ? decay_lanes(count, first_birth, leaves,
                          [&](Real births) {
                              return decayed_power<Real, Bits>(same, half_lives_of(births, freshness), reference);
                          })
            : decay_lanes(count, first_birth, leaves, [&](Real births) {
                  return decayed_power<Real, Bits, false>(same, births * freshness.half_lives_per_birth, reference);
              });
    for (int64_t i = n_in_lanes; i < count; ++i)
        if (leaves[i] != 0.0f)
            leaves[i] = static_cast<float>(
                decayed_power<double, uint64_t>(exponent, half_lives_at(freshness, first_birth + i), reference));
}

PER_INLINE double smallest_of(int64_t count, const uint64_t* masses) {
    int64_t smallest = static_cast<int64_t>(masses[0]);
    int64_t i = 0;
    if constexpr (compares_lanes) {
        Whole least = Whole{} + smallest;
        for (; i + lanes <= count; i += lanes) {
            const Whole mass = load<Whole>(masses + i);
            least = mass < least ? mass : least;
        }
        int64_t each[lanes];
        store(each, least);
        for (const int64_t mass : each) smallest = mass < smallest ? mass : smallest;
    }
    for (; i < count; ++i) {
        const int64_t mass = static_cast<int64_t>(masses[i]);
        smallest = mass < smallest ? mass : smallest;
    }
    return static_cast<double>(smallest);
}

void weigh(int64_t count, const uint64_t* masses, double beta, float* weights_out) {
    const double smallest = smallest_of(count, masses);
    const double log2_smallest = log2_of<double, uint64_t>(smallest);
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
        const Real mass = small_to_real(load<Bits>(masses + i));
        store(weights_out + i, to_floats(importance_weight_of<Real, Bits>(log2_smallest, mass, beta)));
    }
    for (; i < count; ++i) weights_out[i] = importance_weight(smallest, static_cast<double>(masses[i]), beta);
}

void include(int64_t count, const uint64_t* masses, uint64_t total, double draws, double* probabilities_out) {
    const double whole = static_cast<double>(total);
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
        const Real share = small_to_real(load<Bits>(masses + i)) / whole;
        store(probabilities_out + i, inclusion_probability<Real, Bits>(share, draws));
    }
    for (; i < count; ++i)
        probabilities_out[i] = inclusion_probability<double, uint64_t>(static_cast<double>(masses[i]) / whole, draws);
}

double smallest_share(int64_t count, const double* shares) {
    double smallest = shares[0];
    int64_t i = 0;
    if (count >= lanes) {
        Real least = load<Real>(shares);
        for (; i + lanes <= count; i += lanes) {
            const Real share = load<Real>(shares + i);
            least = share < least ? share : least;
        }
        double each[lanes];
        store(each, least);
        for (const double share : each) smallest = share < smallest ? share : smallest;
    }
    for (; i < count; ++i) smallest = shares[i] < smallest ? shares[i] : smallest;
    return smallest;
}

void weigh_shares(int64_t count, const double* shares, double reference, double beta, float* weights_out) {
    const double log2_reference = log2_of<double, uint64_t>(reference);
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
        const Real share = load<Real>(shares + i);
        store(weights_out + i, to_floats(importance_weight_of<Real, Bits>(log2_reference, share, beta)));
    }
    for (; i < count; ++i) weights_out[i] = importance_weight(reference, shares[i], beta);
}

void from_td_errors(int64_t count, const float* td_errors, double epsilon, float* priorities_out) {
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
        const Real error = to_real(load<Floats>(td_errors + i));
        const Real magnitude = bit_cast<Real>(bit_cast<Bits>(error) & ~(uint64_t{1} << 63));
        store(priorities_out + i, to_floats(magnitude + epsilon));
    }
    for (; i < count; ++i) priorities_out[i] = td_error_priority(td_errors + i, 1, 1, PER_CRITICS_MEAN, epsilon);
}

bool are_priorities(int64_t count, const float* priorities) {
    FloatMask bad{};
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
        const Floats priority = load<Floats>(priorities + i);
        bad |= ~((priority >= 0.0f) & (priority <= 0x1.fffffep127f));
    }
    bool any_bad = false;
    int32_t each_bad[lanes];
    store(each_bad, bad);
    for (const int32_t one : each_bad) any_bad |= one != 0;
    for (; i < count; ++i) any_bad |= !is_priority(priorities[i]);
    return !any_bad;
}

}  // namespace
}  // namespace per::cpu

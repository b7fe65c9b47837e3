// Powers of many numbers: priority.h, a number a lane.
#pragma once

#include "cpu/kernels.h"
#include "cpu/kernels/lanes.h"
#include "priority.h"

namespace per::cpu {
namespace {

// leaf_priority() of each lane; `of_zero` is 0^alpha.
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
    for (; i < count; ++i) powers_out[i] = leaf_priority(priorities[i], alpha);
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

void weigh_probabilities(int64_t count, const double* probabilities, double beta, float* weights_out) {
    double smallest = probabilities[0];
    for (int64_t i = 1; i < count; ++i) smallest = probabilities[i] < smallest ? probabilities[i] : smallest;
    const double log2_smallest = log2_of<double, uint64_t>(smallest);
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
        const Real probability = load<Real>(probabilities + i);
        store(weights_out + i, to_floats(importance_weight_of<Real, Bits>(log2_smallest, probability, beta)));
    }
    for (; i < count; ++i) weights_out[i] = importance_weight(smallest, probabilities[i], beta);
}

}  // namespace
}  // namespace per::cpu

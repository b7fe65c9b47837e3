// Powers: p^alpha, which the tree holds, and those of which weights are made. The same code serves scalars, vectors of
// lanes and CUDA. It uses only operations on doubles that IEEE 754 rounds in one way, and multiply and add are never
// contracted, so every device computes the same bits. The float32 results are within 0.5001 ulp. Polynomials are summed
// in pairs, which shortens the dependency chain.
#pragma once

#include <stdint.h>

#include "rules/host_device.h"

namespace per {

// log2((1 + z) / (1 - z)) = z P(z^2) for |z| <= 0.1716. P: minimax, relative error 2^-45.
template <class Real>
PER_HOST_DEVICE Real log2_of_ratio(Real z) {
    const Real s = z * z;
    const Real s2 = s * s;
    const Real low = s * 0x1.ec709dc53c671p-1 + 0x1.71547652b8251p+1;
    const Real middle = s * 0x1.a61a2ec9d8ef4p-2 + 0x1.2776c2933e77fp-1;
    const Real high = s * 0x1.21b0ea9bb311ep-2 + 0x1.47955632bd750p-2;
    const Real p = (low + s2 * middle) + (s2 * s2) * high;
    return z * p;
}

// log2(x) for normal x > 0: x = 2^k m with m in [1/sqrt 2, sqrt 2), and z = (m - 1) / (m + 1). Real is double and Bits
// uint64_t, or both are vectors of as many lanes.
template <class Real, class Bits>
PER_HOST_DEVICE Real log2_of(Real x) {
    const Bits bits = bit_cast<Bits>(x);
    // Shifted so that the exponent field counts from sqrt(1/2); k + 1023 is then a plain unsigned number.
    const Bits biased_k = (bits + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu)) >> 52;
    const Real m = bit_cast<Real>(bits - (biased_k << 52) + 0x3ff0000000000000u);
    // Integers below 2^52 are converted to doubles through the bits of 2^52 + k.
    const Real k = bit_cast<Real>(biased_k | 0x4330000000000000u) - (0x1p52 + 1023.0);
    return k + log2_of_ratio<Real>((m - 1.0) / (m + 1.0));
}

// log2(1 - x) for 0 <= x < 1 - 2^-53, with a small relative error also where x is small.
template <class Real, class Bits>
PER_HOST_DEVICE Real log2_of_1_minus(Real x) {
    const Real of_rest = log2_of<Real, Bits>(1.0 - x);
    return x < 0.25 ? log2_of_ratio<Real>(x / (x - 2.0)) : of_rest;
}

// f Q(f) = 2^f - 1 for |f| <= 1/2. Q: minimax, error of the product 2^-40.
template <class Real>
PER_HOST_DEVICE Real exp2_minus_1(Real f) {
    const Real f2 = f * f;
    const Real q01 = f * 0x1.ebfbdff80d10ep-3 + 0x1.62e42fef85663p-1;
    const Real q23 = f * 0x1.3b2ab7391d983p-7 + 0x1.c6b08dd62aca2p-5;
    const Real q45 = f * 0x1.430874fa30e53p-13 + 0x1.5d87464ed1ad7p-10;
    const Real q67 = f * 0x1.640a21e1ddaccp-20 + 0x1.00dbf99b26e44p-16;
    const Real q = (q01 + f2 * q23) + (f2 * f2) * (q45 + f2 * q67);
    return q * f;
}

// 2^(y + whole), for a sum and a y within -1000 .. 1000. `whole` may be negative, as a signed number.
template <class Real, class Bits>
PER_HOST_DEVICE Real exp2_within(Real y, Bits whole) {
    // Adding 1.5 * 2^52 rounds to a whole number and leaves it in the low bits.
    const Real shifted = y + 0x1.8p52;
    const Bits n = bit_cast<Bits>(shifted) - 0x4338000000000000u;
    const Real f = y - (shifted - 0x1.8p52);
    const Real two_to_n = bit_cast<Real>((n + whole + 1023) << 52);
    return two_to_n + two_to_n * exp2_minus_1<Real>(f);
}

// 2^y, clamped to 2^-1000 .. 2^1000, far outside of float32.
template <class Real, class Bits>
PER_HOST_DEVICE Real exp2_of(Real y) {
    const Real unit{};
    y = y > -1000.0 ? y : unit - 1000.0;
    y = y < 1000.0 ? y : unit + 1000.0;
    return exp2_within<Real, Bits>(y, Bits{});
}

// x^exponent for normal x > 0.
template <class Real, class Bits>
PER_HOST_DEVICE Real power_of(Real x, double exponent) {
    return exp2_of<Real, Bits>(log2_of<Real, Bits>(x) * exponent);
}

// Bounds a positive number, so that as a float32 it is finite and not 0, and a positive priority stays positive.
template <class Real>
PER_HOST_DEVICE Real clamp_to_positive_float(Real x) {
    const Real unit{};
    x = x > 0x1p-149 ? x : unit + 0x1p-149;
    return x < 0x1.fffffep127 ? x : unit + 0x1.fffffep127;
}

// p^alpha for p >= 0, alpha >= 0 (equation 1): p^0 = 1 also for p = 0, 0^alpha = 0 otherwise, and p^1 = p.
PER_HOST_DEVICE float priority_to_alpha(float priority, double alpha) {
    if (priority == 0.0f) return alpha == 0.0 ? 1.0f : 0.0f;
    const double power = power_of<double, uint64_t>(static_cast<double>(priority), alpha);
    return static_cast<float>(clamp_to_positive_float(power));
}

// Positive float32 mapped to positive float32 in the opposite order; 0 stays 0, below all of them. Its own inverse.
PER_HOST_DEVICE float reversed_leaf(float leaf) {
    constexpr uint32_t bits_of_infinity = 0x7f800000;
    return leaf > 0.0f ? bit_cast<float>(bits_of_infinity - bit_cast<uint32_t>(leaf)) : 0.0f;
}

}  // namespace per

// The types of elements: the C++ type, the size and the name of each per_dtype.
#pragma once

#include <cstdint>
#include <type_traits>

#include "per.h"
#include "rules/host_device.h"

namespace per {

// A flag in a byte. C++ has no type for this dtype, nor for the two below.
struct Bool {
    uint8_t byte;

    static constexpr Bool lowest() { return {0}; }
    static constexpr Bool max() { return {1}; }
};

// A float of 16 bits, fraction_bits of them the fraction.
template <int fraction_bits>
struct SmallFloat {
    uint16_t bits;

    static constexpr int exponent_bits = 15 - fraction_bits;
    static constexpr int bias = (1 << (exponent_bits - 1)) - 1;
    static constexpr uint16_t sign_bit = 0x8000;
    static constexpr uint16_t infinity = ((1 << exponent_bits) - 1) << fraction_bits;

    static constexpr SmallFloat max() { return {infinity - 1}; }
    static constexpr SmallFloat lowest() { return {sign_bit | (infinity - 1)}; }

    // Rounds once, to nearest even. A number that is too large becomes infinity; a NaN stays one.
    PER_HOST_DEVICE static SmallFloat from_double(double value) {
        const uint64_t source = bit_cast<uint64_t>(value);
        const uint32_t sign = source >> 48 & sign_bit;
        const uint64_t fraction = source & ((uint64_t{1} << 52) - 1);
        const int exponent = static_cast<int>(source >> 52 & 0x7ff) - 1023;
        if (exponent == 1024 && fraction != 0) return make(sign | infinity | 1u << (fraction_bits - 1));
        if (exponent > bias) return make(sign | infinity);
        // A subnormal number of this format keeps fewer bits. If more than 53 bits are dropped, the number is below
        // half of the smallest one, and rounds to 0.
        const int below_normal = exponent < 1 - bias ? 1 - bias - exponent : 0;
        const int drop = 52 - fraction_bits + below_normal;
        if (drop > 53) return make(sign);
        const uint64_t significand = fraction | uint64_t{1} << 52;
        const uint64_t less_than_half = (uint64_t{1} << (drop - 1)) - 1;
        const uint64_t kept = (significand + less_than_half + (significand >> drop & 1)) >> drop;
        // The leading 1 of a normal number is in `kept` and adds one to the exponent, as the carry of rounding does.
        const auto exponent_less_one = static_cast<uint32_t>(below_normal ? 0 : exponent + bias - 1);
        return make(sign | ((exponent_less_one << fraction_bits) + static_cast<uint32_t>(kept)));
    }

    PER_HOST_DEVICE float to_float() const {
        const uint32_t sign = static_cast<uint32_t>(bits & sign_bit) << 16;
        const uint32_t magnitude = bits & (sign_bit - 1u);
        if constexpr (exponent_bits == 8) return bit_cast<float>(sign | magnitude << 16);
        const uint32_t exponent = magnitude >> fraction_bits;
        const uint32_t fraction = magnitude & ((1u << fraction_bits) - 1);
        if (exponent == 0) {
            // The fraction counts units of the smallest number, so the product is exact, and normal as a float.
            const float number =
                static_cast<float>(fraction) * bit_cast<float>((127u + 1 - bias - fraction_bits) << 23);
            return bit_cast<float>(sign | bit_cast<uint32_t>(number));
        }
        const uint32_t wide_exponent = magnitude >= infinity ? 255 : exponent + (127 - bias);
        return bit_cast<float>(sign | wide_exponent << 23 | fraction << (23 - fraction_bits));
    }

 private:
    PER_HOST_DEVICE static SmallFloat make(uint32_t bits) { return {static_cast<uint16_t>(bits)}; }
};

using Float16 = SmallFloat<10>;
using Bfloat16 = SmallFloat<7>;

constexpr bool is_dtype(int32_t dtype) {
    return dtype >= PER_BOOL && dtype <= PER_FLOAT64;
}

// Calls visit(std::type_identity<Element>{}) for the element type of a dtype, which must be one of per_dtype.
template <class Visit>
PER_HOST_DEVICE decltype(auto) with_element_type(int32_t dtype, Visit&& visit) {
    switch (dtype) {
        case PER_BOOL:
            return visit(std::type_identity<Bool>{});
        case PER_UINT8:
            return visit(std::type_identity<uint8_t>{});
        case PER_INT8:
            return visit(std::type_identity<int8_t>{});
        case PER_UINT16:
            return visit(std::type_identity<uint16_t>{});
        case PER_INT16:
            return visit(std::type_identity<int16_t>{});
        case PER_UINT32:
            return visit(std::type_identity<uint32_t>{});
        case PER_INT32:
            return visit(std::type_identity<int32_t>{});
        case PER_UINT64:
            return visit(std::type_identity<uint64_t>{});
        case PER_INT64:
            return visit(std::type_identity<int64_t>{});
        case PER_FLOAT16:
            return visit(std::type_identity<Float16>{});
        case PER_BFLOAT16:
            return visit(std::type_identity<Bfloat16>{});
        case PER_FLOAT32:
            return visit(std::type_identity<float>{});
        default:
            return visit(std::type_identity<double>{});
    }
}

PER_HOST_DEVICE constexpr int64_t dtype_size(int32_t dtype) {
    return 0x8422884422111 >> (4 * dtype) & 15;  // a digit for each dtype, as device code has no constant arrays
}

PER_HOST_DEVICE constexpr bool is_floating(int32_t dtype) {
    return dtype >= PER_FLOAT16 && dtype <= PER_FLOAT64;
}

// The name of the dtype in numpy.
constexpr const char* dtype_name(int32_t dtype) {
    constexpr const char* names[] = {"bool",   "uint8", "int8",    "uint16",   "int16",   "uint32", "int32",
                                     "uint64", "int64", "float16", "bfloat16", "float32", "float64"};
    return names[dtype];
}

}  // namespace per

#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "per.h"

namespace per {

// Element types of C++ for those per_dtypes that it has none for.
struct Bool {
    uint8_t byte;
};
struct Float16 {
    uint16_t bits;
};
struct Bfloat16 {
    uint16_t bits;
};

constexpr bool is_dtype(int32_t dtype) {
    return dtype >= PER_BOOL && dtype <= PER_FLOAT64;
}

// Calls visit(std::type_identity<Element>{}) for the element type of a dtype that is one.
template <class Visit>
decltype(auto) with_element_type(int32_t dtype, Visit&& visit) {
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

// Bytes of an element.
constexpr int64_t dtype_size(int32_t dtype) {
    constexpr int8_t sizes[] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8};
    return sizes[dtype];
}

// As numpy calls it.
constexpr const char* dtype_name(int32_t dtype) {
    constexpr const char* names[] = {"bool",   "uint8", "int8",    "uint16",   "int16",   "uint32", "int32",
                                     "uint64", "int64", "float16", "bfloat16", "float32", "float64"};
    return names[dtype];
}

// A float format of 16 bits by the width of its fraction: 10 for Float16, 7 for Bfloat16. Integer arithmetic only, so
// that a process which flushes subnormals to zero gets the same values.
template <int fraction_bits>
struct SmallFloat {
    static constexpr int exponent_bits = 15 - fraction_bits;
    static constexpr int bias = (1 << (exponent_bits - 1)) - 1;
    static constexpr uint32_t infinity = ((1u << exponent_bits) - 1) << fraction_bits;

    // Rounds to nearest even, once; what is too large becomes infinity, a NaN stays one.
    static uint16_t from_double(double value) {
        const uint64_t bits = std::bit_cast<uint64_t>(value);
        const auto sign = static_cast<uint16_t>(bits >> 48 & 0x8000);
        const uint64_t fraction = bits & ((uint64_t{1} << 52) - 1);
        const int exponent = static_cast<int>(bits >> 52 & 0x7ff) - 1023;
        if (exponent == 1024 && fraction != 0) return sign | infinity | 1u << (fraction_bits - 1);
        if (exponent > bias) return sign | infinity;
        // A subnormal of this format keeps fewer bits; with more than 53 to drop, less than half of one is left.
        const int below = exponent < 1 - bias ? 1 - bias - exponent : 0;
        const int drop = 52 - fraction_bits + below;
        if (drop > 53) return sign;
        const uint64_t significand = fraction | uint64_t{1} << 52;
        const uint64_t half_less = (uint64_t{1} << (drop - 1)) - 1;
        const uint64_t kept = (significand + half_less + (significand >> drop & 1)) >> drop;
        // kept has the leading 1 of a normal number, which counts as one exponent; so does its carry.
        const auto biased = static_cast<uint32_t>(below ? 0 : exponent + bias - 1);
        return static_cast<uint16_t>(sign | ((biased << fraction_bits) + static_cast<uint32_t>(kept)));
    }

    static float to_float(uint16_t bits) {
        const uint32_t sign = (bits & 0x8000u) << 16;
        const uint32_t magnitude = bits & 0x7fffu;
        uint32_t exponent = magnitude >> fraction_bits;
        uint32_t fraction = magnitude & ((1u << fraction_bits) - 1);
        if constexpr (exponent_bits == 8) return std::bit_cast<float>(sign | magnitude << 16);
        if (magnitude >= infinity) {
            exponent = 255;
        } else if (exponent != 0) {
            exponent += 127 - bias;
        } else if (fraction != 0) {
            const int shift = std::countl_zero(fraction) - (31 - fraction_bits);
            fraction = fraction << shift & ((1u << fraction_bits) - 1);
            exponent = static_cast<uint32_t>(127 - bias + 1 - shift);
        }
        return std::bit_cast<float>(sign | exponent << 23 | fraction << (23 - fraction_bits));
    }
};

inline float to_float(Float16 value) {
    return SmallFloat<10>::to_float(value.bits);
}
inline float to_float(Bfloat16 value) {
    return SmallFloat<7>::to_float(value.bits);
}

}  // namespace per

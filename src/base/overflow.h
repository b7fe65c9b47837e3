// Sums and products of sizes.
#pragma once

#include <cstdint>

namespace per {

// Both are for numbers that are not negative, and return INT64_MAX if the result is larger.
inline int64_t saturated_sum(int64_t a, int64_t b) {
    int64_t result;
    return __builtin_add_overflow(a, b, &result) ? INT64_MAX : result;
}

inline int64_t saturated_product(int64_t a, int64_t b) {
    int64_t result;
    return __builtin_mul_overflow(a, b, &result) ? INT64_MAX : result;
}

}  // namespace per

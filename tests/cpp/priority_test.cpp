#include "rules/draw.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <random>

namespace per {
namespace {

// Distance of a float32 from the true value, in units of the last place at the true value.
double error_in_ulps(float result, long double truth) {
    const auto nearest = static_cast<float>(truth);
    const long double ulp = static_cast<long double>(std::nextafterf(nearest, FLT_MAX)) - nearest;
    return static_cast<double>(std::fabs(result - truth) / ulp);
}

TEST(Priority, powers_are_within_one_ulp_over_the_whole_range) {
    std::mt19937 numbers(7);
    double worst = 0.0;
    for (const double alpha : {1e-9, 0.1, 0.5, 0.6, 1.0, 1.3, 2.0, 7.5}) {
        // Every 4001st float32, subnormals included.
        for (uint32_t bits = 1 + numbers() % 1000; bits < 0x7f800000u; bits += 4001) {
            const auto priority = bit_cast<float>(bits);
            const long double truth = powl(priority, alpha);
            const float result = priority_to_alpha(priority, alpha);
            if (truth >= 0x1.fffffep127L)
                EXPECT_EQ(result, FLT_MAX);
            else if (truth <= 0x1p-149L)
                EXPECT_EQ(result, FLT_TRUE_MIN);
            else
                worst = std::max(worst, error_in_ulps(result, truth));
        }
    }
    EXPECT_LT(worst, 0.501);
}

TEST(Priority, powers_near_one_are_within_one_ulp_for_large_exponents) {
    double worst = 0.0;
    for (uint32_t bits = bit_cast<uint32_t>(0.9999f); bits < bit_cast<uint32_t>(1.0001f); ++bits)
        for (const double alpha : {3.0, 1000.0, 100000.0}) {
            const auto priority = bit_cast<float>(bits);
            worst = std::max(worst, error_in_ulps(priority_to_alpha(priority, alpha), powl(priority, alpha)));
        }
    EXPECT_LT(worst, 0.501);
}

TEST(Priority, exponent_zero_gives_one_and_exponent_one_the_priority) {
    for (uint32_t bits = 0; bits < 0x7f800000u; bits += 997) {
        const auto priority = bit_cast<float>(bits);
        EXPECT_EQ(priority_to_alpha(priority, 0.0), 1.0f);
        EXPECT_EQ(priority_to_alpha(priority, 1.0), priority);
    }
}

TEST(Priority, zero_stays_zero_and_no_other_priority_becomes_zero_or_infinite) {
    EXPECT_EQ(priority_to_alpha(0.0f, 1e-300), 0.0f);
    EXPECT_EQ(priority_to_alpha(0.0f, 0.6), 0.0f);
    for (const double alpha : {0.6, 2.0, 1e6, 1e300, DBL_MAX})
        for (const float priority : {FLT_TRUE_MIN, FLT_MIN, 1e-20f, 0.999f, 1.001f, 1e20f, FLT_MAX}) {
            EXPECT_GE(priority_to_alpha(priority, alpha), FLT_TRUE_MIN);
            EXPECT_LE(priority_to_alpha(priority, alpha), FLT_MAX);
        }
}

TEST(Priority, weights_are_powers_of_the_ratio) {
    EXPECT_EQ(importance_weight(5.0, 5.0, 0.4), 1.0f);
    EXPECT_EQ(importance_weight(3.0, 12.0, 0.5), 0.5f);
    EXPECT_EQ(importance_weight(3.0, 12.0, 0.0), 1.0f);
    EXPECT_EQ(importance_weight(12.0, 3.0, 1.0), 4.0f);
    double worst = 0.0;
    std::mt19937_64 numbers(3);
    for (int i = 0; i < 300000; ++i) {
        const double beta = 2.0 * static_cast<double>(numbers() % 1000) / 1000;
        const auto smaller = static_cast<double>(numbers() % (uint64_t{1} << (1 + i % 52)) + 1);
        const auto larger = smaller + static_cast<double>(numbers() % (uint64_t{1} << (1 + i / 7 % 51)));
        worst = std::max(worst, error_in_ulps(importance_weight(smaller, larger, beta),
                                              powl(static_cast<long double>(smaller) / larger, beta)));
    }
    EXPECT_LT(worst, 0.501);
}

}  // namespace
}  // namespace per

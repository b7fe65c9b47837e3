#include "rules/mass.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <random>

namespace per {
namespace {

// ceil(p * 2^scale) in integers: p = m * 2^e.
uint64_t exact_mass(float priority, int scale) {
    if (priority == 0.0f) return 0;
    int exponent;
    auto m = static_cast<uint64_t>(std::ldexp(std::frexp(priority, &exponent), 24));
    const int shift = exponent - 24 + scale;
    if (shift >= 0) return m << shift;
    if (shift <= -64) return 1;
    const uint64_t below = m >> -shift;
    return below + (below << -shift != m);
}

TEST(Mass, is_the_ceiling_of_the_scaled_priority) {
    std::mt19937 numbers(1);
    for (int i = 0; i < 2000000; ++i) {
        const float priority = bit_cast<float>(static_cast<uint32_t>(numbers() % 0x7f800000u));
        // Any scale at which the mass stays below the limit, down to those at which only one unit is left.
        const int largest_scale = 51 - (std::ilogb(priority == 0.0f ? 1.0f : priority) + 1);
        const int scale = largest_scale - static_cast<int>(numbers() % 300);
        if (scale < -120) continue;
        EXPECT_EQ(mass_of(priority, power_of_two(scale)), exact_mass(priority, scale)) << priority << " " << scale;
    }
}

TEST(Mass, is_zero_for_zero_only) {
    for (const int scale : {-120, -1, 0, 46, 195}) {
        EXPECT_EQ(mass_of(0.0f, power_of_two(scale)), 0u);
        EXPECT_GE(mass_of(FLT_TRUE_MIN, power_of_two(scale)), 1u);
    }
    EXPECT_EQ(mass_of(FLT_TRUE_MIN, power_of_two(-120)), 1u);
    EXPECT_EQ(mass_of(FLT_TRUE_MIN, power_of_two(195)), uint64_t{1} << 46);
}

TEST(Mass, a_scale_from_the_largest_leaf_gives_it_more_than_2_to_the_45_and_at_most_2_to_the_46) {
    for (const float largest : {FLT_TRUE_MIN, FLT_MIN, 0.3f, 1.0f, std::nextafterf(2.0f, 0.0f), 7e20f, FLT_MAX}) {
        const uint64_t mass = mass_of(largest, power_of_two(scale_for_largest(largest)));
        EXPECT_GE(mass, uint64_t{1} << 45) << largest;
        EXPECT_LE(mass, uint64_t{1} << 46) << largest;
    }
}

TEST(Mass, a_reduced_scale_keeps_the_total_between_2_to_the_55_and_2_to_the_56) {
    const uint64_t limit = uint64_t{1} << 56;
    EXPECT_EQ(scale_reduction({limit - 10, 0}, 10), 0);
    EXPECT_EQ(scale_reduction({limit - 9, 0}, 10), 1);
    EXPECT_EQ(scale_reduction({limit, 0}, 0), 0);
    EXPECT_EQ(scale_reduction({0, 1}, 0), 8);
    EXPECT_EQ(scale_reduction({0, 1 << 22}, int64_t{1} << 40), 31);
}

TEST(Mass, a_leaf_is_too_large_from_2_to_the_52_on) {
    const double factor = power_of_two(10);
    EXPECT_FALSE(is_too_large(std::nextafterf(0x1p42f, 0.0f), factor));
    EXPECT_TRUE(is_too_large(0x1p42f, factor));
    EXPECT_TRUE(is_too_large(FLT_MAX, factor));
    EXPECT_EQ(limited_mass_of(FLT_MAX, factor), uint64_t{1} << 52);
}

TEST(Mass, a_rescale_follows_from_the_tree_before_and_after_a_change) {
    const uint64_t limit = uint64_t{1} << 62;
    const uint64_t low_water = 1000;
    EXPECT_EQ(plan_after_change(5000, {5000, 0}, false, low_water), plan_keep);
    EXPECT_EQ(plan_after_change(5000, {limit - 1, 0}, false, low_water), plan_keep);
    EXPECT_EQ(plan_after_change(5000, {limit, 0}, false, low_water), plan_rescale);
    EXPECT_EQ(plan_after_change(5000, {5000, 1}, false, low_water), plan_rebuild);
    EXPECT_EQ(plan_after_change(5000, {0, 1}, false, low_water), plan_rebuild);
    EXPECT_EQ(plan_after_change(5000, {uint64_t{1} << 52, 0}, true, low_water), plan_rescale);
    EXPECT_EQ(plan_after_change(5000, {1000, 0}, false, low_water), plan_keep);
    EXPECT_EQ(plan_after_change(5000, {999, 0}, false, low_water), plan_rescale);
    // An emptied tree keeps its scale; the next leaves choose theirs.
    EXPECT_EQ(plan_after_change(5000, {0, 0}, false, low_water), plan_keep);
    EXPECT_EQ(plan_after_change(0, {0, 0}, false, low_water), plan_keep);
    EXPECT_EQ(plan_after_change(0, {5000, 0}, false, low_water), plan_rescale);
}

}  // namespace
}  // namespace per

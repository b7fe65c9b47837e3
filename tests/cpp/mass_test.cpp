#include "rules/mass.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <random>

namespace per {
namespace {

// ceil(p * 2^scale) by whole numbers: p = m * 2^e.
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
        // Any scale at which the mass stays below the limit, down to ones where only a unit is left.
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
    EXPECT_EQ(scale_reduction(0, limit - 10, 10), 0);
    EXPECT_EQ(scale_reduction(0, limit - 9, 10), 1);
    EXPECT_EQ(scale_reduction(0, limit, 0), 0);
    EXPECT_EQ(scale_reduction(1, 0, 0), 8);
    EXPECT_EQ(scale_reduction(1 << 22, 0, int64_t{1} << 40), 31);
}

TEST(Mass, a_batch_that_could_break_a_limit_is_seen) {
    const double factor = power_of_two(10);
    const float largest_allowed = std::nextafterf(0x1p42f, 0.0f);
    EXPECT_FALSE(breaks_limits(add_to_batch({0.0, 0}, largest_allowed, factor), 0));
    EXPECT_TRUE(breaks_limits(add_to_batch({0.0, 0}, 0x1p42f, factor), 0));
    EXPECT_TRUE(breaks_limits(add_to_batch({0.0, 0}, FLT_MAX, factor), 0));

    BatchMass batch = {0.0, 0};
    for (int i = 0; i < 1024; ++i) batch = add_to_batch(batch, 0x1p41f, factor);
    EXPECT_EQ(batch.sum, uint64_t{1} << 61);
    EXPECT_FALSE(breaks_limits(batch, (uint64_t{1} << 61) - 1));
    EXPECT_TRUE(breaks_limits(batch, uint64_t{1} << 61));
    // However long the batch, the sum does not wrap.
    for (int i = 0; i < 100000; ++i) batch = add_to_batch(batch, 0x1p41f, factor);
    EXPECT_TRUE(breaks_limits(batch, 0));
}

TEST(Mass, a_change_is_planned_by_its_number_of_leaves_and_the_largest) {
    const double factor = power_of_two(10);
    EXPECT_EQ(plan_of({0, 1.0f}, 0, factor), plan_add);
    EXPECT_EQ(plan_of({5, 0.0f}, 0, factor), plan_add);
    EXPECT_EQ(plan_of({1, FLT_MAX}, 0, factor), plan_anew);
    EXPECT_EQ(plan_of({1, std::nextafterf(0x1p42f, 0.0f)}, 1, factor), plan_add);
    EXPECT_EQ(plan_of({1, 0x1p42f}, 1, factor), plan_rebuild);
    // n leaves of 2^51 each, and what is there: below 2^62.
    EXPECT_EQ(plan_of({1023, 0x1p41f}, (uint64_t{1} << 62) - (1023 * (uint64_t{1} << 51)) - 1, factor), plan_add);
    EXPECT_EQ(plan_of({1023, 0x1p41f}, (uint64_t{1} << 62) - (1023 * (uint64_t{1} << 51)), factor), plan_rebuild);
    EXPECT_EQ(plan_of({2047, 0x1p41f}, (uint64_t{1} << 51) - 1, factor), plan_add);
    EXPECT_EQ(plan_of({2047, 0x1p41f}, uint64_t{1} << 51, factor), plan_rebuild);
    EXPECT_EQ(plan_of({int64_t{1} << 40, 0x1p41f}, 1, factor), plan_rebuild);
    EXPECT_EQ(plan_of({(int64_t{1} << 52) - 1, 0x1p0f}, 1023, factor), plan_add);
    EXPECT_EQ(plan_of({(int64_t{1} << 52) - 1, 0x1p0f}, 1024, factor), plan_rebuild);
}

TEST(Mass, few_leaves_take_the_scale_of_the_largest) {
    const auto scale_of_equal_leaves = [](int64_t n) {
        const uint64_t sum = static_cast<uint64_t>(n) << rescaled_leaf_bits;
        return rebuilt_scale(1.5f, 0, sum, int64_t{1} << 40);
    };
    EXPECT_EQ(scale_of_equal_leaves(few_leaves - 1), scale_for_largest(1.5f));
    EXPECT_EQ(scale_of_equal_leaves(few_leaves), scale_for_largest(1.5f) - 1);
}

}  // namespace
}  // namespace per

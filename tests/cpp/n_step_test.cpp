// Returns whose values tests/c/replay_n_step_windows.c does not distinguish, and the distribution of n_step in a range.
#include "rules/n_step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace per {
namespace {

TEST(NStepReturn, rows_behind_the_window_are_not_looked_at) {
    const std::vector<uint8_t> flags(2, row_is_step);
    const Return result = n_step_return(
        2, 0.5, [&](int64_t k) { return flags.at(static_cast<size_t>(k)); }, [](int64_t) { return 1.0f; });
    EXPECT_EQ(result.n_steps, 2);
}

// float32 sums would give 16777216: the 1s are lost one by one.
TEST(NStepReturn, sums_in_double_and_rounds_once) {
    const Return result = n_step_return(
        4, 1.0, [](int64_t) { return uint8_t{row_is_step}; }, [](int64_t k) { return k == 0 ? 16777216.0f : 1.0f; });
    EXPECT_EQ(result.reward, 16777220.0f);  // 16777219, rounded to even
}

// Seed 11; chi-square with 4 degrees of freedom: uniform draws exceed the bound with probability 1e-6.
TEST(NSteps, of_a_range_are_equally_likely_at_every_place) {
    for (const int64_t place : {0, 1, 255}) {
        int64_t counts[8] = {};
        for (uint64_t batch = 0; batch < 50'000; ++batch) ++counts[NSteps{7, 3, 11, batch}.of_place(place)];
        double chi_square = 0.0;
        for (int64_t n = 3; n <= 7; ++n) chi_square += std::pow(static_cast<double>(counts[n]) - 1e4, 2) / 1e4;
        EXPECT_LT(chi_square, 33.4);
        EXPECT_EQ(counts[0] + counts[1] + counts[2], 0);
    }
}

}  // namespace
}  // namespace per

// Returns whose values tests/c/replay_n_step_windows.c does not distinguish.
#include "rules/n_step.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace per

// Returns by hand: gamma 1/2, rewards 1, 2, 4, 8.
#include "rules/n_step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace per {
namespace {

Return return_of(int64_t n_step, std::vector<uint8_t> flags, double gamma = 0.5) {
    const float rewards[] = {1, 2, 4, 8};
    return n_step_return(
        n_step, gamma, [&](int64_t k) { return flags.at(static_cast<size_t>(k)); },
        [&](int64_t k) { return rewards[k]; });
}

constexpr uint8_t step = row_is_step;
constexpr uint8_t terminated = row_is_step | row_terminated;
constexpr uint8_t truncated = row_is_step | row_truncated;

TEST(NStepReturn, one_step_is_the_reward_and_gamma) {
    const Return result = return_of(1, {step});
    EXPECT_EQ(result.reward, 1.0f);
    EXPECT_EQ(result.discount(), 0.5f);
    EXPECT_EQ(result.n_steps, 1);
    EXPECT_EQ(result.bootstrap, 1);
}

TEST(NStepReturn, sums_discounted_rewards_of_the_whole_window) {
    const Return result = return_of(3, {step, step, step});
    EXPECT_EQ(result.reward, 1.0f + 1.0f + 1.0f);
    EXPECT_EQ(result.discount(), 0.125f);
    EXPECT_EQ(result.n_steps, 3);
    EXPECT_EQ(result.bootstrap, 3);
}

TEST(NStepReturn, rows_behind_the_window_are_not_looked_at) {
    EXPECT_EQ(return_of(2, {step, step}).n_steps, 2);
}

TEST(NStepReturn, termination_ends_the_window_and_takes_the_bootstrap) {
    const Return result = return_of(4, {step, terminated});
    EXPECT_EQ(result.reward, 2.0f);
    EXPECT_EQ(result.discount(), 0.0f);
    EXPECT_EQ(result.gamma_m, 0.25f);
    EXPECT_EQ(result.n_steps, 2);
    EXPECT_EQ(result.last_flags, terminated);
    EXPECT_EQ(result.bootstrap, 2);
}

TEST(NStepReturn, truncation_ends_the_window_and_keeps_the_bootstrap) {
    const Return result = return_of(4, {step, truncated});
    EXPECT_EQ(result.discount(), 0.25f);
    EXPECT_EQ(result.gamma_m, 0.25f);
    EXPECT_EQ(result.n_steps, 2);
    EXPECT_EQ(result.last_flags, truncated);
    EXPECT_EQ(result.bootstrap, 2);
}

TEST(NStepReturn, unknown_observation_of_a_termination_is_replaced_by_the_last_one) {
    const Return result = return_of(4, {step, terminated | row_final_unknown});
    EXPECT_EQ(result.discount(), 0.0f);
    EXPECT_EQ(result.n_steps, 2);
    EXPECT_EQ(result.bootstrap, 1);
}

TEST(NStepReturn, window_stops_before_a_step_truncated_at_an_unknown_observation) {
    const Return result = return_of(4, {step, step, truncated | row_final_unknown});
    EXPECT_EQ(result.reward, 2.0f);
    EXPECT_EQ(result.discount(), 0.25f);
    EXPECT_EQ(result.n_steps, 2);
    EXPECT_EQ(result.last_flags, step);
    EXPECT_EQ(result.bootstrap, 2);
}

TEST(NStepReturn, window_that_ends_at_such_a_step_is_whole) {
    const Return result = return_of(2, {step, step, truncated | row_final_unknown});
    EXPECT_EQ(result.n_steps, 2);
    EXPECT_EQ(result.bootstrap, 2);
}

TEST(NStepReturn, gamma_zero_and_one_are_exact) {
    EXPECT_EQ(return_of(3, {step, step, step}, 0.0).reward, 1.0f);
    EXPECT_EQ(return_of(3, {step, step, step}, 0.0).discount(), 0.0f);
    EXPECT_EQ(return_of(3, {step, step, step}, 1.0).reward, 7.0f);
    EXPECT_EQ(return_of(3, {step, step, step}, 1.0).discount(), 1.0f);
}

TEST(NStepReturn, step_as_it_was_added_has_gamma_whatever_ended_it) {
    EXPECT_EQ(own_step(3.0f, 0.5, step).discount(), 0.5f);
    EXPECT_EQ(own_step(3.0f, 0.5, terminated).discount(), 0.0f);
    EXPECT_EQ(own_step(3.0f, 0.5, terminated).gamma_m, 0.5f);
}

TEST(NSteps, are_the_longest_where_there_is_no_range) {
    for (int64_t i = 0; i < 100; ++i) EXPECT_EQ((NSteps{7}.of_place(i)), 7);
    for (int64_t i = 0; i < 100; ++i) EXPECT_EQ((NSteps{7, 7, 3, 5}.of_place(i)), 7);
}

// Seed 11; chi-square with 4 degrees of freedom, which a fair draw exceeds with probability 1e-6.
TEST(NSteps, of_a_range_are_equally_likely_at_every_place) {
    for (const uint64_t place : {0, 1, 255}) {
        int64_t counts[8] = {};
        for (uint64_t batch = 0; batch < 50'000; ++batch)
            ++counts[NSteps{7, 3, 11, batch}.of_place(static_cast<int64_t>(place))];
        double chi_square = 0.0;
        for (int64_t n = 3; n <= 7; ++n) chi_square += std::pow(static_cast<double>(counts[n]) - 1e4, 2) / 1e4;
        EXPECT_LT(chi_square, 33.4);
        EXPECT_EQ(counts[0] + counts[1] + counts[2], 0);
    }
}

// float32 sums would give 16777216: the 1s are lost one by one.
TEST(NStepReturn, sums_in_double_and_rounds_once) {
    const Return result = n_step_return(
        4, 1.0, [](int64_t) { return step; }, [](int64_t k) { return k == 0 ? 16777216.0f : 1.0f; });
    EXPECT_EQ(result.reward, 16777220.0f);  // 16777219, rounded to even
}

}  // namespace
}  // namespace per

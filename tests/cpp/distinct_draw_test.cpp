#include "cpu/draw/distinct_draw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "rules/draw.h"

namespace per::cpu {
namespace {

TEST(InclusionProbability, is_that_of_independent_draws) {
    for (const double share : {1e-15, 1e-9, 1e-4, 0.01, 0.2, 0.24, 0.26, 0.5, 0.9, 0.999999})
        for (const double draws : {1.0, 2.0, 10.0, 1000.0, 1e6, 1e12}) {
            const long double truth = -expm1l(draws * log1pl(-static_cast<long double>(share)));
            const double result = inclusion_probability<double, uint64_t>(share, draws);
            EXPECT_NEAR(result / static_cast<double>(truth), 1.0, 1e-8) << share << " " << draws;
        }
    EXPECT_EQ((inclusion_probability<double, uint64_t>(1.0, 1.0)), 1.0);
    EXPECT_EQ((inclusion_probability<double, uint64_t>(1e-15, std::numeric_limits<double>::infinity())), 1.0);
}

// A uniform part below the normal doubles rounds to zero once some of it has been taken out.
TEST(DrawLaw, all_that_is_left_without_mass_is_drawn_uniformly) {
    for (const double fraction : {5e-324, 1e-310, 1e-9, 0.5}) {
        const DrawLaw law = {100, true, fraction, 100.0, 6000.0, 0.0};
        EXPECT_EQ(law.uniform_units_left(0, 40), mixture_units) << fraction;
    }
}

// A quarter of the 2^62 targets selects one of 100 ranks, the others one of 6000 units of mass.
TEST(PartOfMixture, begins_and_ends_where_its_share_does) {
    constexpr uint64_t uniform = mixture_units / 4;
    const auto part = [](uint64_t target) { return part_of_mixture(target, uniform, 6000, 100); };
    for (const auto& [target, value] : {std::pair<uint64_t, uint64_t>{0, 0}, {uniform - 1, 99}}) {
        EXPECT_TRUE(part(target).is_rank) << target;
        EXPECT_EQ(part(target).value, value) << target;
    }
    for (const auto& [target, value] : {std::pair<uint64_t, uint64_t>{uniform, 0}, {mixture_units - 1, 5999}}) {
        EXPECT_FALSE(part(target).is_rank) << target;
        EXPECT_EQ(part(target).value, value) << target;
    }
}

// A geometric number has mean 1 / share and variance (1 - share) / share^2; seed 5, tolerance 5 standard errors.
TEST(DrawsUntilOutside, has_the_mean_of_a_geometric_number) {
    constexpr int n = 100000;
    for (const double share : {1.0, 0.9, 0.5, 0.1, 1e-3, 1e-12}) {
        double sum = 0.0;
        for (int i = 0; i < n; ++i) {
            const double draws = draws_until_outside(random64(5, 0, static_cast<uint64_t>(i)), share);
            EXPECT_GE(draws, 1.0);
            sum += draws;
        }
        EXPECT_NEAR(sum / n * share, 1.0, 5 * std::sqrt((1 - share) / n) + 1e-12) << share;
    }
}

// The Horvitz-Thompson estimate: a leaf counts 1 / pi when it is drawn, and 1 on average. Using the share of the total
// as pi would be wrong by 9 to 60 % for the heaviest leaves. Seeds are fixed; the tolerance is 5 standard errors, plus
// the 1.5 % to which pi is known.
void expect_unbiased(const std::vector<float>& priorities, int64_t batch_size) {
    constexpr int n_batches = 20000;
    SumTree tree(static_cast<int64_t>(priorities.size()));
    tree.set_run(0, tree.capacity(), priorities.data());
    DistinctDraw draw;
    std::vector<double> estimates(priorities.size());
    std::vector<double> squares(priorities.size());
    const auto total = static_cast<double>(tree.total_mass());
    for (uint64_t step = 0; step < n_batches; ++step) {
        const DistinctDraw::Found found = draw.draw(tree, {batch_size, PER_WITHOUT_REPLACEMENT, 17, step});
        ASSERT_EQ(found.n, batch_size);
        ASSERT_GE(found.n_draws, static_cast<double>(batch_size));
        for (int64_t i = 0; i < batch_size; ++i) {
            const double share = static_cast<double>(tree.mass(found.indices[i])) / total;
            const double counts = 1.0 / inclusion_probability<double, uint64_t>(share, found.n_draws);
            estimates[found.indices[i]] += counts / n_batches;
            squares[found.indices[i]] += counts * counts / n_batches;
        }
    }
    for (std::size_t i = 0; i < priorities.size(); ++i) {
        const double error = std::sqrt((squares[i] - estimates[i] * estimates[i]) / n_batches);
        EXPECT_NEAR(estimates[i], 1.0, 5 * error + 0.015) << i;
    }
}

TEST(DistinctDraw, inclusion_probabilities_make_estimates_unbiased) {
    std::vector<float> priorities(100);
    for (std::size_t i = 0; i < priorities.size(); ++i) priorities[i] = 1.0f / static_cast<float>(i + 1);
    expect_unbiased(priorities, 30);
}

// Five leaves hold all but a millionth, so they are taken out, and draws are counted by geometric numbers.
TEST(DistinctDraw, inclusion_probabilities_hold_where_few_leaves_have_the_mass) {
    std::vector<float> priorities(60, 1e-6f);
    for (std::size_t i = 0; i < 5; ++i) priorities[i * 11] = 10.0f;
    expect_unbiased(priorities, 20);
}

// The same for the mixture: the five are also taken out of the live set, and half a percent of the draws are uniform.
// Seed 23; the tolerance is 5 standard errors, plus the 1.5 % to which pi is known.
TEST(DistinctDraw, inclusion_probabilities_of_a_mixture_hold_where_few_leaves_have_the_mass) {
    constexpr int n_batches = 20000;
    constexpr int64_t n = 60;
    constexpr int64_t batch_size = 20;
    SumTree tree(n);
    std::vector<float> priorities(n, 1e-6f);
    for (std::size_t i = 0; i < 5; ++i) priorities[i * 11] = 10.0f;
    tree.set_run(0, n, priorities.data());
    LiveSet live(n);
    live.insert(0, n);
    MixtureDraw mixture;
    DistinctDraw draw;
    DrawLaw law = {batch_size, true, 0.005, double{n}, static_cast<double>(tree.total_mass()), 0.0};
    std::vector<double> estimates(n);
    std::vector<double> squares(n);
    for (uint64_t step = 0; step < n_batches; ++step) {
        const DistinctDraw::Found found =
            draw.draw(tree, live, mixture, law, {batch_size, PER_WITHOUT_REPLACEMENT, 23, step});
        ASSERT_EQ(found.n, batch_size);
        ASSERT_EQ(live.count(), n);
        law.n_draws = found.n_draws;
        for (int64_t i = 0; i < batch_size; ++i) {
            const int64_t slot = found.indices[i];
            const double counts = 1.0 / law.share_of(static_cast<double>(tree.mass(slot)));
            estimates[static_cast<std::size_t>(slot)] += counts / n_batches;
            squares[static_cast<std::size_t>(slot)] += counts * counts / n_batches;
        }
    }
    for (std::size_t i = 0; i < n; ++i) {
        const double error = std::sqrt((squares[i] - estimates[i] * estimates[i]) / n_batches);
        EXPECT_NEAR(estimates[i], 1.0, 5 * error + 0.015) << i;
    }
}

}  // namespace
}  // namespace per::cpu

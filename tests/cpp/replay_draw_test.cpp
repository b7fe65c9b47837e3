// Draws and weights of a replay buffer. Statistical tests have fixed seeds, so they are deterministic. Chi-square
// bounds have a false-alarm rate of 1e-6 for a random seed. On CUDA there are fewer draws.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "replay_call.h"
#include "rules/draw.h"
#include "rules/rank.h"

namespace per::test {
namespace {

// A buffer with one live transition for each priority: ids 0 .. n - 1.
class Filled : public Buffer {
 public:
    Filled(const std::vector<float>& priorities, per_replay_options options) : Buffer(sized(options, priorities)) {
        for (size_t i = 0; i < priorities.size(); ++i) {
            const float serial = static_cast<float>(i);
            EXPECT_EQ(step({.observation = {0, serial}, .next = {0, serial + 1}}), static_cast<int64_t>(i));
        }
        for (size_t i = 0; i < priorities.size(); ++i)
            EXPECT_EQ(set_priority(static_cast<int64_t>(i), priorities[i]), PER_OK);
    }

    std::vector<Row> rows(int64_t batch_size, const per_sample_options& options) {
        std::vector<Row> rows;
        EXPECT_OK(sample(batch_size, rows, &options));
        return rows;
    }

 private:
    static per_replay_options sized(per_replay_options options, const std::vector<float>& priorities) {
        options.capacity = static_cast<int64_t>(priorities.size()) + 1;
        return options;
    }
};

per_replay_options with_alpha(double alpha) {
    per_replay_options options = Buffer::options(0);
    options.alpha = alpha;
    return options;
}

per_sample_options sample_options(double beta, int32_t scheme = -1, int32_t prioritization = -1,
                                  int32_t normalize_weights = -1) {
    per_sample_options options = initialized(per_sample_options_init);
    options.beta = beta;
    options.scheme = scheme;
    options.prioritization = prioritization;
    options.normalize_weights = normalize_weights;
    return options;
}

constexpr int32_t schemes_with_replacement[] = {PER_STRATIFIED, PER_INDEPENDENT, PER_SYSTEMATIC};

// Compares counts with probabilities[i] of id i. `bound` is the 1 - 1e-6 quantile of chi-square.
void expect_distribution(Filled& buffer, const per_sample_options& options, const std::vector<double>& probabilities,
                         double bound) {
    const int n_batches = on_cuda() ? 100 : 400;
    const int64_t batch_size = 64;
    std::vector<double> counts(probabilities.size(), 0.0);
    for (int i = 0; i < n_batches; ++i)
        for (const Row& row : buffer.rows(batch_size, options)) counts[static_cast<size_t>(row.id)] += 1;
    double chi_square = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
        const double expected = probabilities[i] * n_batches * static_cast<double>(batch_size);
        if (expected == 0) {
            EXPECT_EQ(counts[i], 0) << "id " << i;
        } else {
            chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
        }
    }
    EXPECT_LT(chi_square, bound);
}

constexpr double chi_square_3 = 30.66;  // 3 degrees of freedom
constexpr double chi_square_4 = 33.38;

TEST(ReplayDraw, follows_priority_to_the_alpha) {
    for (const int32_t scheme : schemes_with_replacement) {
        Filled buffer({1, 4, 9, 0, 16}, with_alpha(0.5));
        expect_distribution(buffer, sample_options(1.0, scheme), {0.1, 0.2, 0.3, 0.0, 0.4}, chi_square_3);
    }
}

TEST(ReplayDraw, uniform_prioritization_ignores_priorities_and_weighs_1) {
    for (const int32_t scheme : schemes_with_replacement) {
        Filled buffer({1, 4, 9, 0, 16}, with_alpha(0.5));
        per_sample_options options = sample_options(1.0, scheme, PER_UNIFORM);
        expect_distribution(buffer, options, {0.2, 0.2, 0.2, 0.2, 0.2}, chi_square_4);
        for (int32_t normalization : {PER_BATCH_MAX, PER_BUFFER_MAX, PER_NONE}) {
            options.normalize_weights = normalization;
            for (const Row& row : buffer.rows(16, options)) {
                EXPECT_EQ(row.weight, 1.0f);
                EXPECT_EQ(row.probability, 0.2f);
            }
        }
    }
}

// u = 1/2 of priorities {1, 4, 9, 0, 16}, alpha 1/2: P = q / 20 + 1/10.
TEST(ReplayDraw, uniform_fraction_mixes_both_distributions) {
    for (const int32_t scheme : schemes_with_replacement) {
        per_replay_options buffer_options = with_alpha(0.5);
        buffer_options.uniform_fraction = 0.5;
        Filled buffer({1, 4, 9, 0, 16}, buffer_options);
        per_sample_options options = sample_options(1.0, scheme);
        const std::vector<double> expected = {0.15, 0.2, 0.25, 0.1, 0.3};
        expect_distribution(buffer, options, expected, chi_square_4);
        options.normalize_weights = PER_NONE;
        for (const Row& row : buffer.rows(64, options)) {
            const double p = expected[static_cast<size_t>(row.id)];
            EXPECT_FLOAT_EQ(row.probability, static_cast<float>(p));
            EXPECT_FLOAT_EQ(row.weight, static_cast<float>(1.0 / (5 * p)));
        }
    }
}

TEST(ReplayDraw, uniform_fraction_of_0_and_1_are_the_pure_distributions) {
    Filled buffer({1, 4, 9, 0, 16}, with_alpha(0.5));
    per_sample_options options = sample_options(1.0);
    options.uniform_fraction = 1.0;
    expect_distribution(buffer, options, {0.2, 0.2, 0.2, 0.2, 0.2}, chi_square_4);
    options.uniform_fraction = 0.0;
    expect_distribution(buffer, options, {0.1, 0.2, 0.3, 0.0, 0.4}, chi_square_3);
}

// P = 0.1, 0.2, 0.3, 0.4 and N = 4.
TEST(ReplayWeights, are_normalised_as_asked) {
    Filled buffer({1, 4, 9, 16}, with_alpha(0.5));
    const double p[] = {0.1, 0.2, 0.3, 0.4};
    for (double beta : {0.0, 0.4, 1.0, 2.0}) {
        per_sample_options options = sample_options(beta);
        for (int repeat = 0; repeat < 20; ++repeat) {
            options.normalize_weights = PER_NONE;
            for (const Row& row : buffer.rows(3, options))
                EXPECT_FLOAT_EQ(row.weight, static_cast<float>(std::pow(4 * p[row.id], -beta)));
            options.normalize_weights = PER_BUFFER_MAX;
            for (const Row& row : buffer.rows(3, options))
                EXPECT_FLOAT_EQ(row.weight, static_cast<float>(std::pow(p[row.id] / 0.1, -beta)));
            options.normalize_weights = PER_BATCH_MAX;
            const std::vector<Row> rows = buffer.rows(3, options);
            double smallest = 1;
            for (const Row& row : rows) smallest = std::min(smallest, p[row.id]);
            for (const Row& row : rows)
                EXPECT_FLOAT_EQ(row.weight, static_cast<float>(std::pow(p[row.id] / smallest, -beta)));
        }
    }
}

TEST(ReplayWeights, buffer_maximum_follows_updates_deaths_and_alpha) {
    Filled buffer({1, 4, 9, 16}, with_alpha(1.0));
    const per_sample_options options = sample_options(1.0, -1, -1, PER_BUFFER_MAX);
    const auto weight_of_3 = [&] {
        for (;;)
            for (const Row& row : buffer.rows(64, options))
                if (row.id == 3) return row.weight;
    };
    EXPECT_FLOAT_EQ(weight_of_3(), 1.0f / 16);
    ASSERT_OK(buffer.set_priority(0, 0));  // transitions of priority 0 do not count
    EXPECT_FLOAT_EQ(weight_of_3(), 4.0f / 16);
    ASSERT_OK(buffer.set_priority(0, 2));
    EXPECT_FLOAT_EQ(weight_of_3(), 2.0f / 16);
    ASSERT_OK(change_alpha(buffer.get(), 2.0, nullptr));
    EXPECT_FLOAT_EQ(weight_of_3(), 4.0f / 256);
    ASSERT_OK(change_alpha(buffer.get(), 1.0, nullptr));
    buffer.step({.observation = {0, 4}, .next = {0, 5}});  // overwrites id 0
    EXPECT_FLOAT_EQ(weight_of_3(), 4.0f / 16);
}

TEST(ReplayWeights, probabilities_sum_to_1_over_the_live_transitions) {
    Filled buffer({1, 4, 9, 0, 16, 3}, with_alpha(0.7));
    std::map<int64_t, double> seen;
    for (int i = 0; i < 30; ++i)
        for (const Row& row : buffer.rows(64, sample_options(1.0))) seen[row.id] = static_cast<double>(row.probability);
    double sum = 0;
    for (const auto& [id, probability] : seen) sum += probability;
    EXPECT_EQ(seen.size(), 5u);
    EXPECT_NEAR(sum, 1.0, 1e-6);
}

// Two distinct draws, the second in proportion to the remaining ones: P(i, j) = p_i p_j / (1 - p_i).
void expect_distinct_pairs(Filled& buffer, const per_sample_options& options, const std::vector<double>& p) {
    const int n_batches = on_cuda() ? 1000 : 20000;
    std::map<std::pair<int64_t, int64_t>, double> counts;
    for (int i = 0; i < n_batches; ++i) {
        const std::vector<Row> rows = buffer.rows(2, options);
        counts[{rows[0].id, rows[1].id}] += 1;
    }
    double chi_square = 0;
    for (size_t i = 0; i < p.size(); ++i) {
        for (size_t j = 0; j < p.size(); ++j) {
            const double count = counts[{static_cast<int64_t>(i), static_cast<int64_t>(j)}];
            const double expected = i == j ? 0.0 : n_batches * p[i] * p[j] / (1 - p[i]);
            if (expected == 0)
                EXPECT_EQ(count, 0);
            else
                chi_square += (count - expected) * (count - expected) / expected;
        }
    }
    EXPECT_LT(chi_square, 51.2);  // 11 degrees of freedom, false alarms 4e-7
}

per_sample_options without_replacement(double uniform_fraction) {
    per_sample_options options = sample_options(1.0, PER_WITHOUT_REPLACEMENT);
    options.uniform_fraction = uniform_fraction;
    return options;
}

TEST(ReplayDistinct, each_next_draw_is_in_proportion_to_what_is_left) {
    Filled buffer({1, 2, 3, 4}, with_alpha(1.0));
    expect_distinct_pairs(buffer, without_replacement(0.0), {0.1, 0.2, 0.3, 0.4});
    expect_distinct_pairs(buffer, without_replacement(0.5), {0.175, 0.225, 0.275, 0.325});
    expect_distinct_pairs(buffer, without_replacement(1.0), {0.25, 0.25, 0.25, 0.25});
}

TEST(ReplayDistinct, law_holds_where_few_transitions_hold_the_mass) {
    // The first one is taken out here, as draws from all would hardly ever find a second one.
    Filled buffer({1e6f, 1, 2, 1}, with_alpha(1.0));
    const double rest = 4 / 1e6;
    expect_distinct_pairs(buffer, without_replacement(0.5),
                          {0.5 + 0.125, 0.125 + rest / 8, 0.125 + rest / 4, 0.125 + rest / 8});
    std::map<int64_t, int> second;
    const int n = rounds(2000);
    for (int i = 0; i < n; ++i) second[buffer.rows(2, without_replacement(0.0))[1].id] += 1;
    EXPECT_NEAR(second[2], n / 2.0, 5 * std::sqrt(n / 4.0));  // 5 standard deviations
    EXPECT_NEAR(second[1], n / 4.0, 5 * std::sqrt(n * 3 / 16.0));
}

TEST(ReplayDistinct, all_transitions_are_found_and_the_buffer_is_as_before) {
    for (double uniform_fraction : {0.0, 0.3, 1.0}) {
        Filled buffer({1e6f, 1, 2, 1, 1e-3f, 7}, with_alpha(0.6));
        const double total = buffer.statistics().total;
        const auto before = buffer.live_rows();
        std::vector<int64_t> ids;
        per_sample_options options = without_replacement(uniform_fraction);
        options.normalize_weights = PER_NONE;
        for (const Row& row : buffer.rows(6, options)) {
            ids.push_back(row.id);
            EXPECT_FLOAT_EQ(row.probability, 1.0f / 6);
            EXPECT_FLOAT_EQ(row.weight, 1.0f);
        }
        std::sort(ids.begin(), ids.end());
        EXPECT_EQ(ids, (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
        EXPECT_EQ(buffer.statistics().total, total);
        EXPECT_EQ(buffer.live_rows(), before);
    }
}

TEST(ReplayDistinct, where_all_priorities_are_0_all_can_be_drawn_and_weigh_1) {
    Filled buffer({0, 0, 0, 0, 0}, with_alpha(0.6));
    std::set<int64_t> ids;
    for (const Row& row : buffer.rows(5, without_replacement(0.0))) {
        ids.insert(row.id);
        EXPECT_EQ(row.weight, 1.0f);
    }
    EXPECT_EQ(ids.size(), 5u);
}

TEST(ReplayDistinct, more_than_can_be_drawn_is_an_error_and_no_draw) {
    Filled buffer({1, 0, 2, 3}, with_alpha(1.0));
    std::vector<Row> rows;
    per_sample_options options = without_replacement(0.0);
    EXPECT_EQ(buffer.sample(4, rows, &options), PER_ERROR_INVALID_ARGUMENT);
    const char* const reason = on_cuda() ? "1 draws without replacement" : "batch_size is 4: only 3";
    EXPECT_NE(std::string(per_last_error()).find(reason), std::string::npos) << per_last_error();
    options = without_replacement(0.5);
    EXPECT_EQ(buffer.sample(5, rows, &options), PER_ERROR_INVALID_ARGUMENT);
    EXPECT_OK(buffer.sample(4, rows, &options));
    options = without_replacement(1.0);
    EXPECT_EQ(buffer.sample(5, rows, &options), PER_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(buffer.statistics().samples, 1);
}

// (N pi_i / B)^-beta: if pi_i is the true inclusion probability, the mean of count_i * weight_i is 1 for each i. Then
// the weights of 10 of 100 transitions sum to a tenth of the batch size. The tolerance is 3 %: 2 for the approximation,
// and 5 standard deviations of the rarest, which are 1 % in 40000 batches.
TEST(ReplayDistinct, weights_undo_the_inclusion_probabilities) {
    for (float largest : {1.0f, 1e6f}) {  // the second one is drawn repeatedly, and taken out
        std::vector<float> priorities;
        for (int i = 0; i < 100; ++i) priorities.push_back(static_cast<float>(i % 10 + 1));
        priorities[0] = largest;
        Filled buffer(priorities, with_alpha(1.0));
        per_sample_options options = without_replacement(largest == 1.0f ? 0.1 : 0.01);
        options.normalize_weights = PER_NONE;
        const int n_batches = on_cuda() ? 1000 : 40000;
        const int64_t batch_size = 30;
        const double bound = 0.06 + 0.03 * std::sqrt(40000.0 / n_batches);
        std::vector<double> sums(10, 0.0);
        for (int i = 0; i < n_batches; ++i)
            for (const Row& row : buffer.rows(batch_size, options))
                sums[static_cast<size_t>(row.id % 10)] += static_cast<double>(row.weight);
        for (double sum : sums) EXPECT_NEAR(sum / n_batches, batch_size / 10.0, bound);
    }
}

// Ranks 4, 2, 3, 1: weights 1/4, 1/2, 1/3, 1 of 25/12.
TEST(ReplayRank, probability_follows_the_rank_and_not_the_size) {
    for (const int32_t scheme : schemes_with_replacement) {
        Filled buffer({0, 5, 1, 1e9f}, with_alpha(1.0));
        per_sample_options options = sample_options(1.0, scheme, PER_RANK);
        expect_distribution(buffer, options, {0.12, 0.24, 0.16, 0.48}, chi_square_3);
        options.normalize_weights = PER_NONE;
        for (const Row& row : buffer.rows(64, options)) {
            const double p[] = {0.12, 0.24, 0.16, 0.48};
            EXPECT_FLOAT_EQ(row.probability, static_cast<float>(p[row.id]));
            EXPECT_FLOAT_EQ(row.weight, static_cast<float>(1 / (4 * p[row.id])));
        }
    }
}

// Expected weights by id. A priority of 0 has the last rank, and a larger weight than any positive priority.
TEST(ReplayRank, buffer_maximum_is_that_of_the_last_positive_priority) {
    const struct {
        const char* promise;
        std::vector<float> priorities, weights;
    } cases[] = {
        {"the last rank", {2, 5, 1, 1e9f}, {3.0f / 4, 2.0f / 4, 1, 1.0f / 4}},
        {"the last rank but that of priority 0", {0, 1, 2, 4}, {4.0f / 3, 1, 2.0f / 3, 1.0f / 3}},
        {"the least positive priority has a bucket of its own", {0, 1e-45f, 1}, {3.0f / 2, 1, 1.0f / 2}},
    };
    for (const auto& each : cases) {
        SCOPED_TRACE(each.promise);
        Filled buffer(each.priorities, with_alpha(1.0));
        for (const Row& row : buffer.rows(64, sample_options(1.0, -1, PER_RANK, PER_BUFFER_MAX)))
            EXPECT_FLOAT_EQ(row.weight, each.weights[static_cast<size_t>(row.id)]);
    }
}

TEST(ReplayRank, where_all_priorities_are_0_all_weights_are_1) {
    Filled buffer({0, 0, 0}, with_alpha(1.0));
    for (const Row& row : buffer.rows(64, sample_options(1.0, -1, PER_RANK, PER_BUFFER_MAX)))
        EXPECT_EQ(row.weight, 1.0f);
}

// Ranks of priorities 0, 1, 2 and 4: 4, 3, 2 and 1.
TEST(ReplayRank, buffer_maximum_of_mixtures_and_of_distinct_draws_is_that_of_the_last_positive_priority) {
    Filled buffer({0, 1, 2, 4}, with_alpha(1.0));
    per_sample_options options = sample_options(1.0, -1, PER_RANK, PER_BUFFER_MAX);
    // Half of the draws are uniform: P is the mean of 12, 16, 24 and 48 hundredths, by rank, and of 25 hundredths.
    options.uniform_fraction = 0.5;
    const float mixed[] = {20.5f / 18.5f, 1, 20.5f / 24.5f, 20.5f / 36.5f};
    for (const Row& row : buffer.rows(64, options)) EXPECT_FLOAT_EQ(row.weight, mixed[row.id]);
    // Weights by the probability of being in a batch of two.
    options.uniform_fraction = 0;
    options.scheme = PER_WITHOUT_REPLACEMENT;
    for (int i = 0; i < 20; ++i)
        for (const Row& row : buffer.rows(2, options))
            EXPECT_TRUE(row.id == 1 ? row.weight == 1.0f : row.id == 0 ? row.weight > 1.0f : row.weight < 1.0f);
}

TEST(ReplayRank, equal_priorities_share_their_ranks) {
    per_replay_options buffer_options = with_alpha(1.0);
    buffer_options.prioritization = PER_RANK;
    Filled buffer({2, 2, 2, 2, 2}, buffer_options);
    expect_distribution(buffer, sample_options(1.0), {0.2, 0.2, 0.2, 0.2, 0.2}, chi_square_4);
    ASSERT_OK(buffer.set_priority(4, 3));  // rank 1: 60 of 137; the others share 77
    const double rest = 77.0 / 137 / 4;
    expect_distribution(buffer, sample_options(1.0), {rest, rest, rest, rest, 60.0 / 137}, chi_square_4);
}

TEST(ReplayRank, follows_updates_alpha_clear_and_overwriting) {
    per_replay_options buffer_options = with_alpha(1.0);
    buffer_options.prioritization = PER_RANK;
    buffer_options.normalize_weights = PER_NONE;
    Filled buffer({1, 2, 4}, buffer_options);
    const auto probability_of = [&](int64_t id) {
        for (;;)
            for (const Row& row : buffer.rows(64, sample_options(1.0)))
                if (row.id == id) return row.probability;
    };
    EXPECT_FLOAT_EQ(probability_of(0), 2.0f / 11);
    ASSERT_OK(buffer.set_priority(0, 3));
    EXPECT_FLOAT_EQ(probability_of(0), 3.0f / 11);
    ASSERT_OK(change_alpha(buffer.get(), 0.0, nullptr));
    EXPECT_FLOAT_EQ(probability_of(0), 1.0f / 3);
    ASSERT_OK(change_alpha(buffer.get(), 1.0, nullptr));
    buffer.step({.observation = {0, 3}, .next = {0, 4}});  // id 3 with priority 4 in place of id 0
    EXPECT_FLOAT_EQ(probability_of(1), 2.0f / 11);
    ASSERT_OK(per_replay_clear(buffer.get(), nullptr));
    std::vector<Row> rows;
    EXPECT_EQ(buffer.sample(1, rows), PER_ERROR_EMPTY);
    buffer.step({.observation = {0, 5}, .next = {0, 6}});
    ASSERT_OK(buffer.sample(1, rows));
    EXPECT_EQ(rows[0].probability, 1.0f);
}

TEST(ReplayRank, differing_ranks_combine_with_the_other_schemes) {
    Filled buffer({1, 2, 4, 8}, with_alpha(1.0));
    per_sample_options options = without_replacement(0.0);
    options.prioritization = PER_RANK;
    expect_distinct_pairs(buffer, options, {0.12, 0.16, 0.24, 0.48});
    options = sample_options(1.0);
    options.prioritization = PER_RANK;
    options.uniform_fraction = 0.5;
    expect_distribution(buffer, options, {0.185, 0.205, 0.245, 0.365}, chi_square_3);
}

// Ranks of 320 transitions with different priorities are recomputed after more than 10 have changed.
TEST(ReplayRank, ranks_are_taken_anew_after_a_32nd_has_changed) {
    std::vector<float> priorities;
    for (int i = 0; i < 320; ++i) priorities.push_back(std::pow(1.1f, static_cast<float>(i)));
    Filled buffer(priorities, with_alpha(1.0));
    const per_sample_options options = sample_options(1.0, -1, PER_RANK);
    // The ratio of the rank of id 160 to that of id 319.
    const auto ratio = [&] {
        std::map<int64_t, double> probabilities;
        for (const Row& row : buffer.rows(on_cuda() ? 4096 : 8192, options))
            probabilities[row.id] = static_cast<double>(row.probability);
        return probabilities.at(319) / probabilities.at(160);
    };
    EXPECT_NEAR(ratio(), 160.0, 1e-3);
    for (int i = 0; i < 11; ++i) {
        EXPECT_NEAR(ratio(), 160.0, 1e-3) << i;
        ASSERT_OK(buffer.set_priority(i, std::pow(1.1f, static_cast<float>(400 + i))));
    }
    EXPECT_NEAR(ratio(), 171.0 / 12.0, 1e-4);
}

TEST(RankWeights, are_means_of_powers_of_ranks) {
    for (double alpha : {0.0, 0.5, 0.7, 1.0, 1.0000001, 2.0, 5.0}) {
        RankWeights weights(alpha);
        int64_t rank = 0;
        for (int64_t count : {1, 1, 3, 0, 11, 1, 1, 18, 1, 2, 100, 7, 100000, 1}) {
            double sum = 0;
            for (int64_t r = rank + 1; r <= rank + std::max<int64_t>(count, 1); ++r)
                sum += std::pow(static_cast<double>(r), -alpha);
            const double mean = sum / static_cast<double>(std::max<int64_t>(count, 1));
            EXPECT_NEAR(static_cast<double>(weights.next(count)) / mean, 1.0, 2e-7) << alpha << " after rank " << rank;
            rank += count;
        }
    }
}

TEST(RankBucket, keeps_the_order_and_parts_what_differs_by_a_32nd) {
    EXPECT_EQ(rank_bucket(0.0f), 0);
    EXPECT_EQ(rank_bucket(-0.0f), 0);
    EXPECT_EQ(rank_bucket(1e-45f), 1);
    EXPECT_EQ(rank_bucket(3.4028235e38f), n_rank_buckets - 1);
    for (float p = 1e-37f; p < 1e38f; p *= 1.03125f) EXPECT_LT(rank_bucket(p), rank_bucket(p * 1.0323f)) << p;
}

TEST(Mixture, targets_keep_their_place_when_rescaled) {
    EXPECT_EQ(uniform_units(0.0), 0u);
    EXPECT_EQ(uniform_units(0.5), mixture_units / 2);
    EXPECT_EQ(uniform_units(1.0), mixture_units);
    const uint64_t units = mixture_units - 3;
    for (uint64_t total : {uint64_t{1}, uint64_t{7}, units}) {
        EXPECT_EQ(rescaled_target(0, units, total), 0u);
        EXPECT_EQ(rescaled_target(units - 1, units, total), total - 1);
    }
    EXPECT_EQ(rescaled_target(units / 2, units, 10), 4u);
}

}  // namespace
}  // namespace per::test

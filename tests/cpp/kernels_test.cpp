// Each variant of the kernels is bit-identical to the functions that are shared with the device.
#include "cpu/kernels/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "cpu/tree/sum_tree.h"
#include "rules/draw.h"
#include "rules/td_error.h"

namespace per::cpu {
namespace {

class EachVariant : public testing::TestWithParam<const char*> {
 protected:
    void SetUp() override {
        kernels_ = kernels_named(GetParam());
        if (kernels_ == nullptr) GTEST_SKIP() << "this machine does not have " << GetParam();
    }

    const Kernels* kernels_ = nullptr;
    std::mt19937_64 numbers_{1};
};

INSTANTIATE_TEST_SUITE_P(Kernels, EachVariant, testing::Values("baseline", "v3", "v4"),
                         [](const auto& variant) { return std::string(variant.param); });

TEST_P(EachVariant, is_named_as_asked) {
    EXPECT_STREQ(kernels_->name, GetParam());
}

TEST_P(EachVariant, random_numbers_are_those_of_random64) {
    for (const int64_t count : {0, 1, 2, 3, 15, 16, 17, 31, 32, 33, 1000}) {
        std::vector<uint64_t> drawn(static_cast<std::size_t>(count) + 1, 7);
        const uint64_t seed = numbers_();
        const uint64_t batch_number = numbers_();
        const uint64_t first = numbers_() & ~uint64_t{1};
        kernels_->draw.random_numbers(seed, batch_number, first, count, drawn.data());
        for (int64_t i = 0; i < count; ++i)
            EXPECT_EQ(drawn[i], random64(seed, batch_number, first + static_cast<uint64_t>(i)));
        EXPECT_EQ(drawn[count], 7u);
    }
}

TEST_P(EachVariant, targets_are_those_of_the_shared_functions) {
    for (const int64_t n : {1, 2, 7, 8, 9, 100, 257}) {
        for (const uint64_t total : {uint64_t{1}, uint64_t{1000}, (uint64_t{1} << 62) - 1}) {
            std::vector<uint64_t> random(static_cast<std::size_t>(n));
            for (uint64_t& number : random) number = numbers_();
            random[0] = ~uint64_t{0};
            std::vector<uint64_t> stratified = random;
            std::vector<uint64_t> spread = random;
            kernels_->draw.stratify(n, total, stratified.data());
            kernels_->draw.spread(n, total, spread.data());
            for (int64_t i = 0; i < n; ++i) {
                EXPECT_EQ(stratified[i],
                          stratified_target(random[i], static_cast<uint64_t>(i), stratum_width(n), total));
                EXPECT_EQ(spread[i], independent_target(random[i], total));
            }
        }
    }
}

TEST_P(EachVariant, targets_of_a_batch_are_those_that_a_device_draws_one_by_one) {
    constexpr uint64_t total = (uint64_t{1} << 61) + 12345;
    for (const int32_t scheme : {PER_STRATIFIED, PER_INDEPENDENT, PER_SYSTEMATIC}) {
        for (const int64_t n : {1, 2, 9, 100}) {
            const DrawRequest request = {n, scheme, numbers_(), numbers_(), numbers_() & ~uint64_t{1}};
            std::vector<uint64_t> targets(static_cast<std::size_t>(n + draw_padding));
            write_targets(kernels_->draw, request, total, targets.data());
            for (int64_t i = 0; i < n; ++i)
                EXPECT_EQ(targets[static_cast<std::size_t>(i)],
                          draw_target(request, static_cast<uint64_t>(i), stratum_width(n), total))
                    << scheme << " " << i;
        }
    }
}

TEST_P(EachVariant, prefix_sums_are_exact) {
    for (const int64_t n : {1, 7, 8, 9, 64, 777}) {
        std::vector<uint64_t> parts(static_cast<std::size_t>(n));
        std::vector<uint64_t> prefix(parts.size() + 2, 7);
        for (uint64_t& part : parts) part = numbers_() >> 12;
        uint64_t sum = 0;
        EXPECT_EQ(kernels_->draw.sum_prefixes(parts.data(), n, prefix.data()), prefix[n]);
        for (int64_t i = 0; i < n; sum += parts[i++]) EXPECT_EQ(prefix[i], sum);
        EXPECT_EQ(prefix[n], sum);
        EXPECT_EQ(prefix[n + 1], 7u);
    }
}

// Room for targets. The padding holds INT64_MAX, so that UBSan detects a kernel that adds to it.
std::vector<uint64_t> padded_targets(int64_t count) {
    return std::vector(static_cast<std::size_t>(count + draw_padding), static_cast<uint64_t>(INT64_MAX));
}

// Expects each unit to lie in the part and at the offset that were found for it.
void expect_inverted(const std::vector<uint64_t>& prefix, const std::vector<uint64_t>& units, int64_t count,
                     const std::vector<uint64_t>& parts, const std::vector<uint64_t>& places) {
    for (int64_t i = 0; i < count; ++i) {
        const auto end = std::upper_bound(prefix.begin(), prefix.end(), units[i]);
        const auto part = static_cast<uint64_t>(end - prefix.begin() - 1);
        ASSERT_EQ(parts[i], part);
        ASSERT_EQ(places[i], units[i] - prefix[part]);
    }
}

// Parts of all widths, from empty to many strata, with targets at the very ends of strata and parts.
TEST_P(EachVariant, strata_are_inverted_exactly) {
    for (int round = 0; round < 3000; ++round) {
        const int64_t n = 1 + static_cast<int64_t>(numbers_() % 300);
        const int64_t batch_size = 1 + static_cast<int64_t>(numbers_() % 150);
        std::vector<uint64_t> prefix(static_cast<std::size_t>(n) + 1);
        const int bits = static_cast<int>(numbers_() % 52);  // from strata of a few units to fine ones
        for (int64_t i = 0; i < n; ++i) {
            const uint64_t width =
                numbers_() % 3 == 0 ? 0 : numbers_() % (uint64_t{1} << (1 + numbers_() % (bits + 1)));
            prefix[i + 1] = prefix[i] + width;
        }
        const uint64_t total = prefix[n] += 1;
        std::vector<uint64_t> targets = padded_targets(batch_size);
        for (int64_t i = 0; i < batch_size; ++i) {
            const uint64_t random = numbers_() % 4 == 0 ? uint64_t{0} - numbers_() % 2 : numbers_();
            targets[i] = stratified_target(random, static_cast<uint64_t>(i), stratum_width(batch_size), total);
        }
        const std::vector<uint64_t> units = targets;
        std::vector<uint64_t> parts(targets.size());
        std::vector<uint32_t> counts(static_cast<std::size_t>(batch_size) + 1);
        kernels_->draw.invert_strata(prefix.data(), n, batch_size, targets.data(), parts.data(), counts.data());
        expect_inverted(prefix, units, batch_size, parts, targets);
    }
}

// Few and many parts, some of them empty, and targets at their first and last units.
TEST_P(EachVariant, targets_in_any_order_are_inverted_exactly) {
    for (int round = 0; round < 3000; ++round) {
        const int64_t n = 1 + static_cast<int64_t>(numbers_() % (round % 2 == 0 ? 40 : 300));
        const int64_t count = 1 + static_cast<int64_t>(numbers_() % 150);
        std::vector<uint64_t> prefix(static_cast<std::size_t>(n) + 1);
        for (int64_t i = 0; i < n; ++i)
            prefix[i + 1] = prefix[i] + (numbers_() % 3 == 0 ? 0 : numbers_() >> (8 + numbers_() % 50));
        const uint64_t total = prefix[n] += 1;
        std::vector<uint64_t> targets = padded_targets(count);
        for (int64_t i = 0; i < count; ++i) {
            const uint64_t end = prefix[1 + numbers_() % n];
            const uint64_t near = end - std::min(end, numbers_() % 3);
            targets[i] = numbers_() % 4 == 0 ? std::min(near, total - 1) : numbers_() % total;
        }
        const std::vector<uint64_t> units = targets;
        std::vector<uint64_t> parts(targets.size());
        std::vector<uint32_t> guide(static_cast<std::size_t>(guide_size(n)));
        kernels_->draw.invert(prefix.data(), n, count, targets.data(), parts.data(), guide.data());
        expect_inverted(prefix, units, count, parts, targets);
    }
}

// Ends of parts exactly on borders of strata, and one unit before and after.
TEST_P(EachVariant, parts_that_end_at_borders_of_strata_are_inverted_exactly) {
    constexpr int64_t batch_size = 64;
    constexpr uint64_t total = uint64_t{1} << 56;
    for (int round = 0; round < 300; ++round) {
        std::vector<uint64_t> prefix = {0};
        for (uint64_t i = 1; i < batch_size; ++i) prefix.push_back(i * (total / batch_size) + numbers_() % 3 - 1);
        prefix.push_back(total);
        std::vector<uint64_t> targets(batch_size + draw_padding), parts(batch_size + draw_padding);
        for (uint64_t i = 0; i < batch_size; ++i)
            targets[i] = stratified_target(uint64_t{0} - numbers_() % 2, i, stratum_width(batch_size), total);
        const std::vector<uint64_t> units = targets;
        std::vector<uint32_t> counts(batch_size + 1);
        kernels_->draw.invert_strata(prefix.data(), batch_size, batch_size, targets.data(), parts.data(),
                                     counts.data());
        for (int64_t i = 0; i < batch_size; ++i) {
            const auto end = std::upper_bound(prefix.begin(), prefix.end(), units[i]);
            ASSERT_EQ(parts[i], static_cast<uint64_t>(end - prefix.begin() - 1));
        }
    }
}

TEST_P(EachVariant, validity_is_judged_entry_by_entry) {
    constexpr int64_t capacity = 1000;
    for (const int64_t count : {1, 2, 7, 8, 9, 40}) {
        std::vector<int64_t> indices(static_cast<std::size_t>(count), 999);
        std::vector<float> priorities(indices.size(), FLT_MAX);
        priorities[0] = -0.0f;
        EXPECT_TRUE(kernels_->update.valid(count, indices.data(), priorities.data(), capacity));
        for (int64_t i = 0; i < count; ++i) {
            for (const int64_t bad : {int64_t{-1}, capacity, INT64_MAX, INT64_MIN}) {
                indices[i] = bad;
                EXPECT_FALSE(kernels_->update.valid(count, indices.data(), priorities.data(), capacity));
                indices[i] = 0;
            }
            const float good = priorities[i];
            for (const float bad : {-FLT_TRUE_MIN, -1.0f, INFINITY, -INFINITY, NAN}) {
                priorities[i] = bad;
                EXPECT_FALSE(kernels_->update.valid(count, indices.data(), priorities.data(), capacity));
                priorities[i] = good;
            }
        }
    }
}

TEST_P(EachVariant, sums_of_masses_are_exact) {
    for (const int64_t count : {0, 1, 7, 8, 9, 100, 20000}) {
        std::vector<float> priorities(static_cast<std::size_t>(count));
        for (float& priority : priorities) priority = std::ldexp(1.0f + static_cast<float>(numbers_() % 999) / 999, -3);
        const double factor = power_of_two(54);  // masses of nearly 2^52
        unsigned __int128 sum = 0;
        for (const float priority : priorities) sum += mass_of(priority, factor);
        const WideSum summed = kernels_->update.sum_masses(count, priorities.data(), factor);
        EXPECT_EQ(summed.high, static_cast<uint64_t>(sum >> 64));
        EXPECT_EQ(summed.low, static_cast<uint64_t>(sum));
        const float largest = count == 0 ? 0.0f : *std::max_element(priorities.begin(), priorities.end());
        EXPECT_EQ(kernels_->update.largest(count, priorities.data()), largest);
    }
}

TEST_P(EachVariant, powers_are_those_of_priority_to_alpha) {
    std::vector<float> priorities = {0.0f, FLT_TRUE_MIN, FLT_MIN, 1.0f, FLT_MAX};
    for (int i = 0; i < 100000; ++i)
        priorities.push_back(bit_cast<float>(static_cast<uint32_t>(numbers_() % 0x7f800000)));
    std::vector<float> powers(priorities.size() + 1, 7.0f);
    const auto n = static_cast<int64_t>(priorities.size());
    for (const double alpha : {0.0, 0.3, 0.6, 1.0, 2.5, 1e9}) {
        kernels_->power.raise(n, priorities.data(), alpha, powers.data());
        for (int64_t i = 0; i < n; ++i) ASSERT_EQ(powers[i], priority_to_alpha(priorities[i], alpha)) << priorities[i];
        ASSERT_EQ(powers[n], 7.0f);
    }
}

TEST_P(EachVariant, decayed_leaves_are_those_of_decayed_leaf) {
    std::vector<float> priorities = {0.0f, FLT_TRUE_MIN, FLT_MIN, 1.0f, FLT_MAX};
    std::vector<int64_t> births = {0, max_birth, 7, 1, 0};
    for (int i = 0; i < 20000; ++i) {
        priorities.push_back(bit_cast<float>(static_cast<uint32_t>(numbers_() % 0x7f800000)));
        births.push_back(static_cast<int64_t>(numbers_() >> (12 + numbers_() % 50)));
    }
    std::vector<float> leaves(priorities.size() + 1, 7.0f);
    const auto n = static_cast<int64_t>(priorities.size());
    for (const double half_life : {0.01, 3.0, 1e5, 1e12}) {
        for (const double alpha : {0.0, 0.6, 1.0, 9.0}) {
            const Freshness freshness = {1 / half_life, static_cast<int64_t>(numbers_() % 100)};
            kernels_->power.decay(n, priorities.data(), alpha, freshness, {births.data()}, leaves.data());
            for (int64_t i = 0; i < n; ++i)
                ASSERT_EQ(leaves[i], decayed_leaf(priorities[i], alpha, freshness, births[i])) << priorities[i];
            ASSERT_EQ(leaves[n], 7.0f);
        }
    }
}

// A lane of 1,000 rows, of which the latest, row 123'456, is in slot 456.
TEST_P(EachVariant, decayed_leaves_take_slots_as_births) {
    std::vector<int64_t> slots(1001);
    for (int64_t& slot : slots) slot = static_cast<int64_t>(numbers_() % 1000);
    slots[0] = 456, slots[1] = 457, slots[2] = 999, slots[3] = 0;
    const std::vector<float> priorities(slots.size(), 0.3f);
    std::vector<float> leaves(slots.size());
    const Freshness freshness = {1 / 50.0, 2500};
    const GivenBirths births = {slots.data(), 456, 123'000, 122'000};
    kernels_->power.decay(std::ssize(slots), priorities.data(), 0.6, freshness, births, leaves.data());
    for (std::size_t i = 0; i < slots.size(); ++i) {
        const int64_t row = slots[i] + (slots[i] <= 456 ? 123'000 : 122'000);
        ASSERT_EQ(leaves[i], decayed_leaf(0.3f, 0.6, freshness, row)) << slots[i];
    }
}

TEST_P(EachVariant, decayed_runs_are_those_of_decayed_leaf) {
    for (const int64_t n : {1, 7, 8, 9, 1001}) {
        for (const float priority : {FLT_TRUE_MIN, 0.3f, FLT_MAX}) {
            for (const double half_life : {0.01, 3.0, 1e5, 1e12}) {
                for (const int64_t first : {int64_t{0}, int64_t{123'456'789}, max_birth - n}) {
                    Freshness freshness = {1 / half_life, 0};
                    const uint64_t raised = numbers_() % (numbers_() % 2 == 0 ? 150 : 800);
                    freshness.reference = reference_for(freshness, first + n) + static_cast<int64_t>(raised);
                    const double exponent = log2_of_power<double, uint64_t>(static_cast<double>(priority), 0.6);
                    std::vector<float> leaves(static_cast<std::size_t>(n) + 1, priority);
                    for (std::size_t i = 0; i < leaves.size(); i += 3) leaves[i] = 0.0f;
                    const std::vector<float> priorities = leaves;
                    kernels_->power.decay_run(n, exponent, freshness, first, leaves.data());
                    for (int64_t i = 0; i < n; ++i)
                        ASSERT_EQ(leaves[i], decayed_leaf(priorities[i], 0.6, freshness, first + i)) << i;
                    ASSERT_EQ(leaves[n], priorities[n]);
                }
            }
        }
    }
}

TEST_P(EachVariant, weights_are_those_of_importance_weight) {
    for (const int64_t n : {1, 2, 7, 8, 9, 1001}) {
        std::vector<uint64_t> masses(static_cast<std::size_t>(n));
        for (uint64_t& mass : masses) mass = 1 + (numbers_() >> (12 + numbers_() % 50));
        const auto smallest = static_cast<double>(*std::min_element(masses.begin(), masses.end()));
        std::vector<float> weights(masses.size());
        for (const double beta : {0.0, 0.4, 1.0, 300.0}) {
            kernels_->power.weigh(n, masses.data(), beta, weights.data());
            for (int64_t i = 0; i < n; ++i)
                ASSERT_EQ(weights[i], importance_weight(smallest, static_cast<double>(masses[i]), beta));
        }
    }
}

TEST_P(EachVariant, weights_of_shares_are_those_of_importance_weight) {
    for (const int64_t n : {1, 3, 8, 17, 100}) {
        std::vector<double> shares(static_cast<std::size_t>(n));
        for (double& share : shares) share = std::ldexp(static_cast<double>(numbers_() >> 12 | 1), -60);
        EXPECT_EQ(kernels_->power.smallest(n, shares.data()), *std::min_element(shares.begin(), shares.end()));
        std::vector<float> weights(shares.size());
        for (const double reference : {shares[0], 0x1p-70, 3.0}) {
            kernels_->power.weigh_shares(n, shares.data(), reference, 0.7, weights.data());
            for (std::size_t i = 0; i < shares.size(); ++i)
                ASSERT_EQ(weights[i], importance_weight(reference, shares[i], 0.7));
        }
    }
}

TEST_P(EachVariant, priorities_are_those_of_td_error_priority) {
    std::vector<float> errors = {0.0f, -0.0f, 1.0f, -1.0f, FLT_MAX, -FLT_MAX, FLT_TRUE_MIN, -FLT_MIN, 1e-6f};
    while (errors.size() < 100) errors.push_back(std::ldexp(static_cast<float>(numbers_() >> 40), -30));
    for (std::size_t i = 9; i < errors.size(); i += 2) errors[i] = -errors[i];
    std::vector<float> priorities(errors.size());
    for (const double epsilon : {0.0, 1e-6, 0.25, 1e32}) {
        kernels_->power.from_td_errors(static_cast<int64_t>(errors.size()), errors.data(), epsilon, priorities.data());
        for (std::size_t i = 0; i < errors.size(); ++i)
            ASSERT_EQ(priorities[i], td_error_priority(&errors[i], 1, 1, PER_CRITICS_MEAN, epsilon)) << errors[i];
    }
}

TEST_P(EachVariant, one_value_that_is_no_priority_is_found_wherever_it_is) {
    for (const int64_t n : {1, 7, 8, 9, 33}) {
        std::vector<float> priorities(static_cast<std::size_t>(n), 1.0f);
        priorities[0] = FLT_MAX;
        EXPECT_TRUE(kernels_->power.are_priorities(n, priorities.data()));
        for (float& priority : priorities)
            for (const float bad : {-1.0f, -FLT_TRUE_MIN, INFINITY, -INFINITY, NAN, 0.0f}) {
                const float before = std::exchange(priority, bad);
                EXPECT_EQ(kernels_->power.are_priorities(n, priorities.data()), bad == 0.0f) << bad;
                priority = before;
            }
    }
}

TEST(KernelsNamed, there_are_none_for_other_names) {
    EXPECT_EQ(kernels_named("v5"), nullptr);
    EXPECT_EQ(kernels_named(""), nullptr);
    EXPECT_NE(kernels_named("baseline"), nullptr);
}

}  // namespace
}  // namespace per::cpu

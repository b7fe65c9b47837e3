// Walks of replay_walk.h with all pairs of options.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "replay_walk.h"

namespace per::test {
namespace {

// Two choices and a value of each.
struct ValuePair {
    size_t first, first_value, second, second_value;

    bool is_in(const ChosenValues& row) const { return row[first] == first_value && row[second] == second_value; }
};

std::vector<ValuePair> every_pair() {
    std::vector<ValuePair> pairs;
    for (size_t a = 0; a < varied_options().size(); ++a)
        for (size_t b = a + 1; b < varied_options().size(); ++b)
            for (size_t x = 0; x < varied_options()[a].values.size(); ++x)
                for (size_t y = 0; y < varied_options()[b].values.size(); ++y) pairs.push_back({a, x, b, y});
    return pairs;
}

// Few rows in which each pair of values occurs: greedily, the best of some random ones that have the next missing pair.
std::vector<ChosenValues> covering_rows() {
    std::mt19937_64 random(1);
    std::vector<ValuePair> missing = every_pair();
    std::vector<ChosenValues> rows;
    while (!missing.empty()) {
        const auto covered_by = [&](const ChosenValues& row) {
            return std::count_if(missing.begin(), missing.end(),
                                 [&](const ValuePair& pair) { return pair.is_in(row); });
        };
        ChosenValues best;
        for (int candidate = 0; candidate < 30; ++candidate) {
            ChosenValues row;
            for (const VariedOption& option : varied_options()) row.push_back(random() % option.values.size());
            row[missing[0].first] = missing[0].first_value;
            row[missing[0].second] = missing[0].second_value;
            if (best.empty() || covered_by(row) > covered_by(best)) best = row;
        }
        std::erase_if(missing, [&](const ValuePair& pair) { return pair.is_in(best); });
        rows.push_back(best);
    }
    return rows;
}

TEST(ReplayModel, every_pair_of_options_meets_in_some_walk) {
    const std::vector<ChosenValues> rows = covering_rows();
    for (const ValuePair& pair : every_pair())
        EXPECT_TRUE(std::any_of(rows.begin(), rows.end(), [&](const ChosenValues& row) { return pair.is_in(row); }))
            << "choices " << pair.first << " and " << pair.second;
}

TEST(ReplayModel, random_use_agrees_with_the_model_after_every_call) {
    const std::vector<ChosenValues> rows = covering_rows();
    const uint64_t n_walks = on_cuda() ? rows.size() : std::max<uint64_t>(300, rows.size());
    for (uint64_t seed = 0; seed < n_walks && !HasFailure(); ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        // On a simulated GPU each call takes its time.
        RandomUse(rows[seed % rows.size()], seed, Choices(seed)).run(on_cuda() ? 12 : 60, on_cuda() ? 4 : 1);
    }
}

TEST(ReplayModel, rows_in_a_file_agree_with_the_model_after_every_call) {
    if (on_cuda()) GTEST_SKIP() << "rows lie in the memory of the device";
    const std::vector<ChosenValues> rows = covering_rows();
    const OwnFolder folder;
    for (uint64_t seed = 0; seed < rows.size() && !HasFailure(); ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        RandomUse(rows[seed], seed, Choices(seed), folder.path()).run(60, 2);
    }
}

TEST(ReplayModel, compressed_fields_agree_with_the_model_after_every_call) {
    if (on_cuda()) GTEST_SKIP() << "frames are kept as they are on the device";
    const std::vector<ChosenValues> rows = covering_rows();
    for (uint64_t seed = 0; seed < rows.size() && !HasFailure(); ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        RandomUse(rows[seed], seed, Choices(seed), nullptr, PER_COMPRESSION_DELTA).run(60, 2);
    }
}

}  // namespace
}  // namespace per::test

// Walks of replay_walk.h with all pairs of options.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "replay_walk.h"

namespace per::test {
namespace {

std::vector<size_t> n_values() {
    std::vector<size_t> n;
    for (const VariedOption& option : varied_options()) n.push_back(option.values.size());
    return n;
}

TEST(ReplayModel, every_pair_of_options_meets_in_some_walk) {
    const std::vector<ChosenValues> rows = covering_rows(n_values());
    for (const ValuePair& pair : every_pair(n_values()))
        EXPECT_TRUE(std::any_of(rows.begin(), rows.end(), [&](const ChosenValues& row) { return pair.is_in(row); }))
            << "options " << pair.first << " and " << pair.second;
}

TEST(ReplayModel, random_use_agrees_with_the_model_after_every_call) {
    const std::vector<ChosenValues> rows = covering_rows(n_values());
    const uint64_t n_walks = on_cuda() ? rows.size() : std::max<uint64_t>(300, rows.size());
    for (uint64_t seed = 0; seed < n_walks && !HasFailure(); ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        // On a simulated GPU each call takes its time.
        RandomUse(rows[seed % rows.size()], seed, Choices(seed)).run(on_cuda() ? 12 : 60, on_cuda() ? 4 : 1);
    }
}

TEST(ReplayModel, rows_in_a_file_agree_with_the_model_after_every_call) {
    if (on_cuda()) GTEST_SKIP() << "rows lie in the memory of the device";
    const std::vector<ChosenValues> rows = covering_rows(n_values());
    const OwnFolder folder;
    for (uint64_t seed = 0; seed < rows.size() && !HasFailure(); ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        RandomUse(rows[seed], seed, Choices(seed), folder.path()).run(60, 2);
    }
}

TEST(ReplayModel, compressed_fields_agree_with_the_model_after_every_call) {
    if (on_cuda()) GTEST_SKIP() << "frames are kept as they are on the device";
    const std::vector<ChosenValues> rows = covering_rows(n_values());
    for (uint64_t seed = 0; seed < rows.size() && !HasFailure(); ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        RandomUse(rows[seed], seed, Choices(seed), nullptr, PER_COMPRESSION_DELTA).run(60, 2);
    }
}

}  // namespace
}  // namespace per::test

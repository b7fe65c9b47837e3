#include "cpu/tree/maximum_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace per::cpu {
namespace {

TEST(MaximumTree, agrees_with_a_scan_through_random_changes) {
    for (int64_t capacity : {1, 15, 16, 17, 255, 256, 257, 5000}) {
        std::mt19937_64 random(static_cast<uint64_t>(capacity));
        std::vector<float> leaves(static_cast<size_t>(capacity), 0.0f);
        MaximumTree tree(capacity);
        EXPECT_EQ(tree.maximum(), 0.0f);
        for (int i = 0; i < 2000; ++i) {
            const size_t index = random() % leaves.size();
            leaves[index] = random() % 4 == 0 ? 0.0f : static_cast<float>(random() % 1000);
            tree.update(static_cast<int64_t>(index), [&](int64_t j) { return leaves.at(static_cast<size_t>(j)); });
            ASSERT_EQ(tree.maximum(), *std::max_element(leaves.begin(), leaves.end()));
        }
        tree.reset();
        EXPECT_EQ(tree.maximum(), 0.0f);
    }
}

}  // namespace
}  // namespace per::cpu

#include "cpu/tree/live_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <vector>

namespace per::cpu {
namespace {

int64_t selected(const LiveSet& live, uint64_t rank) {
    int64_t slot = -1;
    live.select(1, &rank, &slot);
    return slot;
}

// Compares everything with a std::set.
void expect_equal(const LiveSet& live, const std::set<int64_t>& expected, int64_t capacity) {
    ASSERT_EQ(live.count(), static_cast<int64_t>(expected.size()));
    for (int64_t slot = 0; slot < capacity; ++slot) ASSERT_EQ(live.contains(slot), expected.count(slot) == 1) << slot;
    std::vector<uint64_t> ranks(expected.size());
    std::iota(ranks.begin(), ranks.end(), 0);
    std::vector<int64_t> slots(expected.size());
    live.select(live.count(), ranks.data(), slots.data());
    ASSERT_EQ(slots, std::vector<int64_t>(expected.begin(), expected.end()));
}

TEST(LiveSet, agrees_with_a_set_through_random_changes) {
    for (int64_t capacity : {1, 63, 64, 65, 511, 512, 513, 4096, 4097, 40000}) {
        std::mt19937_64 random(static_cast<uint64_t>(capacity));
        LiveSet live(capacity);
        std::set<int64_t> expected;
        for (int i = 0; i < 3000; ++i) {
            const int64_t slot = std::uniform_int_distribution<int64_t>(0, capacity - 1)(random);
            if (random() % 3 != 0) {
                ASSERT_EQ(live.insert(slot), expected.insert(slot).second);
            } else {
                ASSERT_EQ(live.erase(slot), expected.erase(slot) == 1);
            }
            if (i % 500 == 0) expect_equal(live, expected, capacity);
        }
        expect_equal(live, expected, capacity);
    }
}

TEST(LiveSet, takes_and_loses_runs_of_slots) {
    const int64_t capacity = 3000;
    std::mt19937_64 random(11);
    LiveSet live(capacity);
    std::set<int64_t> expected;
    for (int i = 0; i < 400; ++i) {
        const int64_t first = std::uniform_int_distribution<int64_t>(0, capacity - 1)(random);
        const int64_t n = std::uniform_int_distribution<int64_t>(0, std::min<int64_t>(capacity - first, 700))(random);
        const int64_t before = static_cast<int64_t>(expected.size());
        if (random() % 2 != 0) {
            for (int64_t slot = first; slot < first + n; ++slot) expected.insert(slot);
            ASSERT_EQ(live.insert(first, n), static_cast<int64_t>(expected.size()) - before);
        } else {
            for (int64_t slot = first; slot < first + n; ++slot) expected.erase(slot);
            ASSERT_EQ(live.erase(first, n), before - static_cast<int64_t>(expected.size()));
        }
        expect_equal(live, expected, capacity);
    }
}

TEST(LiveSet, selects_first_and_last_slot_of_a_large_set) {
    const int64_t capacity = 10'000'019;
    LiveSet live(capacity);
    live.insert(0);
    live.insert(5'000'000);
    live.insert(capacity - 1);
    EXPECT_EQ(selected(live, 0), 0);
    EXPECT_EQ(selected(live, 1), 5'000'000);
    EXPECT_EQ(selected(live, 2), capacity - 1);
}

TEST(LiveSet, clear_empties_every_level) {
    LiveSet live(5000);
    for (int64_t slot = 0; slot < 5000; ++slot) live.insert(slot);
    live.clear();
    expect_equal(live, {}, 5000);
    live.insert(4999);
    EXPECT_EQ(selected(live, 0), 4999);
}

}  // namespace
}  // namespace per::cpu

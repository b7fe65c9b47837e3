// All leaves that one call writes are one change: scale, sums and the next rescale depend only on the leaves before and
// after it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "backend/replay_options.h"
#include "core/checks.h"
#include "cpu/replay/replay_state.h"
#include "cpu/replay/step_writer.h"
#include "naive_tree.h"

namespace per::cpu {
namespace {

// The rules of mass.h in integers, applied to all leaves. It keeps no sums.
struct NaiveChanges : NaiveTree {
    using NaiveTree::NaiveTree;

    int scale = 0;
    uint64_t low_water = 0;

    unsigned __int128 total(int at_scale) const {
        unsigned __int128 sum = 0;
        for (const float leaf : leaves)
            sum += static_cast<unsigned __int128>(std::ceil(std::ldexp(static_cast<long double>(leaf), at_scale)));
        return sum;
    }

    void rescale() {
        scale = 45 - std::ilogb(*std::max_element(leaves.begin(), leaves.end()));
        for (unsigned __int128 sum = total(scale); sum > (uint64_t{1} << 56) - leaves.size(); sum /= 2) --scale;
        const auto sum = static_cast<uint64_t>(total(scale));
        low_water = std::min<uint64_t>(sum / 16, leaves.size() << 20);
    }

    void change(const std::vector<float>& after) {
        const bool was_empty = total(scale) == 0;
        leaves = after;
        if (total(scale) == 0) return;
        const float largest = *std::max_element(leaves.begin(), leaves.end());
        const bool is_too_much =
            std::ldexp(static_cast<long double>(largest), scale) > 0x1p52L - 1 || total(scale) >= uint64_t{1} << 62;
        if (was_empty || is_too_much || total(scale) < low_water) rescale();
    }
};

void expect_same(const SumTree& tree, const NaiveChanges& naive) {
    ASSERT_EQ(tree.scale(), naive.scale);
    ASSERT_EQ(tree.total_mass(), static_cast<uint64_t>(naive.total(naive.scale)));
    ASSERT_EQ(tree.rescales_below(), naive.low_water);
    expect_same_levels(tree, naive);
}

// Random changes like those of calls. Leaves are set once or repeatedly, or become 0; they are set as runs or one by
// one, in any order and in pieces of any size.
class RandomChanges {
 public:
    RandomChanges(int64_t capacity, uint64_t seed) : numbers_(seed), tree_(capacity), naive_(capacity) {}

    void step() {
        const uint64_t capacity = naive_.leaves.size();
        std::vector<float> after = naive_.leaves;
        std::vector<uint64_t> touched;
        const uint64_t n = numbers_() % 3 == 0 ? numbers_() % (2 * capacity) : numbers_() % 4;
        for (uint64_t i = 0; i < n; ++i) {
            const uint64_t slot = numbers_() % capacity;
            after[slot] = any_leaf();
            touched.push_back(slot);
        }
        const bool empties = numbers_() % 40 == 0;
        const uint64_t n_zeros = empties ? capacity : numbers_() % 3;
        for (uint64_t i = 0; i < n_zeros; ++i) {
            const uint64_t slot = empties ? i : numbers_() % capacity;
            after[slot] = 0.0f;
            touched.push_back(slot);
        }
        std::shuffle(touched.begin(), touched.end(), numbers_);

        tree_.begin_change(static_cast<int64_t>(n));
        write_pieces(touched, after);
        tree_.end_change();
        naive_.change(after);
        expect_same(tree_, naive_);
    }

 private:
    float any_leaf() { return leaves_.next(numbers_, 300); }

    void write_pieces(const std::vector<uint64_t>& touched, const std::vector<float>& after) {
        for (std::size_t first = 0; first < touched.size();) {
            const std::size_t size = std::min(1 + numbers_() % 300, touched.size() - first);
            std::vector<int64_t> slots;
            std::vector<float> leaves;
            for (std::size_t i = first; i < first + size; ++i) {
                slots.push_back(static_cast<int64_t>(touched[i]));
                leaves.push_back(after[touched[i]]);
            }
            tree_.change(static_cast<int64_t>(size), slots.data(), leaves.data());
            first += size;
            if (numbers_() % 2 == 0) continue;
            const uint64_t run = touched[first - 1];
            const uint64_t length = 1 + numbers_() % (after.size() - run);
            tree_.change_run(static_cast<int64_t>(run), static_cast<int64_t>(length), after.data() + run);
        }
    }

    std::mt19937_64 numbers_;
    SumTree tree_;
    NaiveChanges naive_;
    RandomLeaves leaves_;
};

TEST(LeafChange, neither_order_nor_pieces_matter) {
    for (const int64_t capacity : {1, 2, 16, 17, 129, 777, 5000}) {
        RandomChanges changes(capacity, static_cast<uint64_t>(capacity));
        for (int step = 0; step < (capacity > 1000 ? 60 : 400); ++step) {
            changes.step();
            if (testing::Test::HasFatalFailure()) FAIL() << "capacity " << capacity << ", step " << step;
        }
    }
}

// ---- leaves whose sums cannot be maintained, as they would overflow 64 bits

class FullTree : public testing::Test {
 protected:
    static constexpr int64_t capacity = 8192;

    FullTree() {
        std::iota(all_.begin(), all_.end(), 0);
        const std::vector<float> ones(capacity, 1.0f);
        tree_.set(capacity, all_.data(), ones.data());
    }

    // At scale 45 the total is 8192 * 2^45 = 2^58. At a scale 2 lower it could slightly exceed 2^56, if masses are
    // rounded up.
    static constexpr int scale = 45 - 3;

    std::vector<int64_t> all_ = std::vector<int64_t>(capacity);
    SumTree tree_{capacity};
};

TEST_F(FullTree, one_leaf_named_six_thousand_times_weighs_once) {
    const std::vector<int64_t> slots(6000, 7);
    const std::vector<float> priorities(6000, 0x1p9f);  // 6000 * 2^51 is more than 2^63
    tree_.set(6000, slots.data(), priorities.data());
    EXPECT_EQ(tree_.scale(), scale);
    EXPECT_EQ(tree_.total_mass(), (uint64_t{capacity - 1} << 42) + (uint64_t{1} << 51));
    EXPECT_EQ(tree_.sums(1)[0], (uint64_t{15} << 42) + (uint64_t{1} << 51));
}

TEST_F(FullTree, a_leaf_that_is_too_large_and_overwritten_at_once_does_not_count) {
    const int64_t slots[] = {7, 7, 8};
    const float priorities[] = {FLT_MAX, 1.0f, 0x1p3f};
    tree_.set(3, slots, priorities);
    EXPECT_EQ(tree_.scale(), scale);
    EXPECT_EQ(tree_.total_mass(), (uint64_t{capacity - 1} << 42) + (uint64_t{1} << 45));
    EXPECT_EQ(tree_.sums(1)[0], (uint64_t{15} << 42) + (uint64_t{1} << 45));
}

TEST_F(FullTree, a_total_beyond_64_bits_asks_for_another_scale) {
    // 2^52 - 2^28 each: together more than 2^64.
    const std::vector<float> priorities(capacity, std::nextafterf(0x1p10f, 0.0f));
    tree_.set(capacity, all_.data(), priorities.data());
    EXPECT_EQ(tree_.scale(), 45 - 9 - 3);
    EXPECT_EQ(tree_.total_mass(), capacity * ((uint64_t{1} << 43) - (uint64_t{1} << 19)));
}

// ---- whole calls, with alpha 1: the leaves are the priorities

constexpr int64_t capacity = 8192;
constexpr int64_t n_steps = 5000;
constexpr uint64_t precise_total = uint64_t{capacity} << 20;

class WholeCalls : public testing::Test {
 protected:
    WholeCalls() { use_capacity(capacity); }

    // Begins with an empty buffer.
    void use_capacity(int64_t n, double half_life = 0.0) {
        state_.reset();
        options_ = default_replay_options;
        options_.capacity = n;
        options_.alpha = 1.0;
        options_.prioritization = half_life == 0.0 ? PER_RANK : PER_PROPORTIONAL;
        options_.freshness.half_life = half_life;
        options_.fields = &field_;
        options_.n_fields = 1;
        options_.field_size = sizeof(per_field);
        fields_.emplace(options_);
        options_ = resolve_replay_options(options_, *fields_);
        state_.emplace(options_, *fields_);
    }

    const SumTree& tree() const { return state_->priorities.tree(); }

    // One call; every step ends its episode, so each is live at once.
    void add(const std::vector<float>& priorities) {
        const std::vector<float> values(priorities.size());
        const std::vector<uint8_t> ends(priorities.size(), 1);
        const std::vector<uint8_t> none(priorities.size(), 0);
        const GivenArray given = {{values.data(), nullptr, 0, PER_FLOAT32, nullptr}, 1};
        ReplaySteps steps = {};
        steps.length = static_cast<int64_t>(priorities.size());
        steps.n_envs = 1;
        steps.fields = &given;
        steps.reward = {values.data(), nullptr, 0, PER_FLOAT32, nullptr};
        steps.terminated = {ends.data(), nullptr, 0, PER_BOOL, nullptr};
        steps.truncated = {none.data(), nullptr, 0, PER_BOOL, nullptr};
        steps.next_mask = {none.data(), nullptr, 0, PER_BOOL, nullptr};
        steps.priorities = {priorities.data(), nullptr, 0, PER_FLOAT32, nullptr};
        StepWriter(*state_, options_).add(steps, nullptr);
    }

    void update(const std::vector<int64_t>& slots, const std::vector<float>& priorities) {
        state_->priorities.update(static_cast<int64_t>(slots.size()), slots.data(), priorities.data());
    }

    static std::vector<int64_t> first_slots() {
        std::vector<int64_t> slots(n_steps);
        std::iota(slots.begin(), slots.end(), 0);
        return slots;
    }

    per_field field_ = {"x", nullptr, 0, PER_FLOAT32, PER_ROLE_OBSERVATION, 1, nullptr, 0, 0, 0};
    per_replay_options options_ = default_replay_options;
    std::optional<Fields> fields_;
    std::optional<ReplayState> state_;
};

// The steps of a call change the scale one by one. The first step chooses 45, at which 2^20 is too large. The first
// step with 2^20 chooses 45 - 20, at which the total stays below 2^62.
TEST_F(WholeCalls, a_long_add_to_an_empty_buffer_has_the_scale_of_single_steps) {
    std::vector<float> priorities(n_steps, 1.0f);
    std::fill(priorities.begin() + 2500, priorities.end(), 0x1p20f);
    add(priorities);
    EXPECT_EQ(tree().scale(), 25);
    EXPECT_EQ(tree().total_mass(), 2500 * (uint64_t{1} << 25) + 2500 * (uint64_t{1} << 45));
    EXPECT_EQ(tree().rescales_below(), precise_total);
}

TEST_F(WholeCalls, rows_overwritten_in_the_call_that_added_them_count_until_then) {
    std::vector<float> priorities(2 * capacity, 1.0f);
    std::fill_n(priorities.begin(), 100, 0x1p60f);
    add(priorities);  // without the leaves of 2^60 the others need another scale: 8192 * 2^45 is 2^58
    EXPECT_EQ(tree().scale(), 45 - 3);
    EXPECT_EQ(tree().total_mass(), uint64_t{capacity} << 42);
    // The 4080th leaf of 2^8 takes the total to 4080 * 2^50 + 4112 * 2^42, above total_mass_limit, 2^62. The new scale
    // fits the largest leaf into 2^46 and the total into 2^56. The largest leaf alone allows 45 - 8, with a total of
    // 4080 * 2^45 + 4112 * 2^37. Half of that is still above 2^56, so the scale becomes 45 - 8 - 2.
    std::fill_n(priorities.begin(), capacity, 0x1p8f);
    std::fill(priorities.begin() + capacity, priorities.end(), 0.5f);
    add(priorities);
    EXPECT_EQ(tree().scale(), 45 - 8 - 2);
    EXPECT_EQ(tree().total_mass(), uint64_t{capacity} << 34);
}

TEST_F(WholeCalls, a_long_update_is_one_decision) {
    add(std::vector<float>(n_steps, 1.0f));
    ASSERT_EQ(tree().scale(), 45);

    // The new total 5000 * 2^49 and the earlier one are together below 2^62: the scale stays.
    update(first_slots(), std::vector<float>(n_steps, 0x1p4f));
    EXPECT_EQ(tree().scale(), 45);
    EXPECT_EQ(tree().total_mass(), n_steps * (uint64_t{1} << 49));
    EXPECT_EQ(tree().rescales_below(), precise_total);

    // 5000 * 2^51 exceeds 2^62, while 2000 * 2^51 would not. The scale 45 - 6, which fits the largest leaf, gives
    // 5000 * 2^45. It is lowered by 2, so that the total is at most 2^56.
    update(first_slots(), std::vector<float>(n_steps, 0x1p6f));
    EXPECT_EQ(tree().scale(), 45 - 6 - 2);
    EXPECT_EQ(tree().total_mass(), n_steps * (uint64_t{1} << 43));
}

// The second update gives the large leaves last. The total is the same; without them it would need another scale.
TEST_F(WholeCalls, a_long_update_is_not_looked_at_half_way) {
    add(std::vector<float>(n_steps, 1.0f));
    std::vector<float> priorities(n_steps, 0x1p-40f);
    std::fill_n(priorities.begin(), 100, 0x1p5f);
    update(first_slots(), priorities);
    ASSERT_EQ(tree().scale(), 45);
    std::reverse(priorities.begin(), priorities.end());
    update(first_slots(), priorities);
    EXPECT_EQ(tree().scale(), 45);
    EXPECT_EQ(tree().total_mass(), 100 * (uint64_t{1} << 50) + 4900 * (uint64_t{1} << 5));
}

// The first entry of 2^100 exceeds every limit; the last entry gives the same row 1 again.
TEST_F(WholeCalls, an_entry_that_loses_to_a_later_one_does_not_count) {
    add(std::vector<float>(n_steps, 1.0f));
    ASSERT_EQ(tree().scale(), 45);
    std::vector<int64_t> slots = first_slots();
    std::vector<float> priorities(n_steps, 1.0f);
    slots.push_back(0);
    priorities[0] = 0x1p100f;
    priorities.push_back(1.0f);
    update(slots, priorities);
    EXPECT_EQ(tree().scale(), 45);
    EXPECT_EQ(tree().total_mass(), n_steps * (uint64_t{1} << 45));
    // The overwritten 2^100 does not raise the largest priority.
    EXPECT_EQ(state_->priorities.largest(), 1.0f);
}

// The fourth step overwrites the row of 2^31, so that scale 45 is chosen for three leaves of 1. The fifth step keeps
// this scale. A scale chosen after the fifth step would be 42.
TEST_F(WholeCalls, the_largest_row_may_die_soon_after_it_came) {
    use_capacity(3);
    add({0x1p31f, 1.0f, 1.0f, 1.0f, 0x1p3f});
    EXPECT_EQ(tree().scale(), 45);
    EXPECT_EQ(tree().total_mass(), (uint64_t{1} << 48) + 2 * (uint64_t{1} << 45));
}

// The leaf of birth b holds p 2^(b / 2 - reference). The reference is 36, and rises by 32 before the row of birth 64,
// which is 32 half-lives old, is written: all other masses stay, bit for bit.
TEST_F(WholeCalls, a_rebase_changes_no_mass) {
    use_capacity(capacity, 2.0);
    const PriorityStore& priorities = state_->priorities;
    std::mt19937_64 numbers(3);
    const auto random_priorities = [&](std::size_t n) {
        std::vector<float> given(n);
        for (float& p : given)
            p = std::ldexp(1.0f + static_cast<float>(numbers() % 4096) / 4096.0f, -40 + numbers() % 60);
        return given;
    };
    add(random_priorities(64));
    ASSERT_EQ(priorities.freshness().reference, 36);
    int64_t n_rows = 64;
    for (int round = 0; round < 5; ++round) {
        std::vector<uint64_t> masses;
        for (int64_t slot = 0; slot < n_rows; ++slot) masses.push_back(tree().mass(slot));
        const int32_t scale = tree().scale();
        const uint64_t total = tree().total_mass();
        add({0.0f});  // a row of priority 0 has no mass
        ASSERT_EQ(priorities.freshness().reference, 36 + 32 * (round + 1));
        ASSERT_EQ(tree().scale(), scale + 32);
        ASSERT_EQ(tree().total_mass(), total);
        for (int64_t slot = 0; slot < n_rows; ++slot)
            ASSERT_EQ(tree().mass(slot), masses[static_cast<std::size_t>(slot)]);
        ++n_rows;
        add(random_priorities(63));
        n_rows += 63;
    }
}

// A leaf and its rebased value are the same number times 2^-32, or the rebased one is the least.
TEST(Freshness, a_larger_reference_gives_the_same_digits) {
    std::mt19937_64 numbers(4);
    for (int i = 0; i < 100000; ++i) {
        const float priority = bit_cast<float>(static_cast<uint32_t>(numbers() % 0x7f800000));
        const double alpha = 0.1 * static_cast<double>(numbers() % 12);
        const int64_t birth = static_cast<int64_t>(numbers() >> (20 + numbers() % 40));
        Freshness freshness = {1 / (0.5 + static_cast<double>(numbers() % 1000)), 0};
        freshness.reference = reference_for(freshness, birth) + static_cast<int64_t>(numbers() % 100);
        const float leaf = decayed_leaf(priority, alpha, freshness, birth);
        freshness.reference += 32;
        const float later = decayed_leaf(priority, alpha, freshness, birth);
        ASSERT_EQ(later, std::max(std::ldexp(leaf, -32), FLT_MIN)) << priority;
        ASSERT_EQ(later, rebased_leaf(leaf, 32));
    }
}

// Ranks: a row that leaves its bucket and returns by the end of the call counts as unchanged.
TEST_F(WholeCalls, a_rank_changes_once_a_call_or_not_at_all) {
    add(std::vector<float>(n_steps, 1.0f));
    RankTree& ranks = *state_->priorities.known_ranks();
    ranks.take_ranks_if_due(1.0);
    ASSERT_EQ(ranks.state().n_changes, 0);
    std::vector<int64_t> slots = first_slots();
    std::vector<float> priorities(n_steps, 1.0f);
    priorities[0] = 4.0f;  // 1 again below
    priorities[1] = 4.0f;  // 8 below
    slots.insert(slots.end(), {0, 1});
    priorities.insert(priorities.end(), {1.0f, 8.0f});
    update(slots, priorities);
    EXPECT_EQ(ranks.state().n_changes, 1);
}

// The priorities of the new and the overwritten row do not matter.
TEST_F(WholeCalls, each_row_that_comes_is_a_change_of_ranks) {
    add(std::vector<float>(capacity, 1.0f));
    RankTree& ranks = *state_->priorities.known_ranks();
    ranks.take_ranks_if_due(1.0);
    add(std::vector<float>(3 * capacity, 1.0f));
    EXPECT_EQ(ranks.state().n_changes, 3 * capacity);
    add({1.0f, 1.0f, 3.0f});
    EXPECT_EQ(ranks.state().n_changes, 3 * capacity + 3);
}

}  // namespace
}  // namespace per::cpu

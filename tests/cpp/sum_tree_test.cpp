#include "cpu/tree/sum_tree.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "naive_tree.h"
#include "rules/draw.h"

namespace per::cpu {
namespace {

void expect_limits(const SumTree& tree) {
    EXPECT_LT(tree.total_mass(), total_mass_limit);
    for (int64_t i = 0; i < tree.capacity(); ++i) EXPECT_LT(tree.mass(i), leaf_mass_limit);
}

uint64_t naive_target(const DrawRequest& request, int64_t i, uint64_t total) {
    const uint64_t random =
        random64(request.seed, request.batch_number, request.scheme == PER_SYSTEMATIC ? 0 : static_cast<uint64_t>(i));
    if (request.scheme == PER_INDEPENDENT) return independent_target(random, total);
    return stratified_target(random, static_cast<uint64_t>(i), stratum_width(request.batch_size), total);
}

void expect_same_draws(const SumTree& tree, const NaiveTree& naive, const DrawRequest& request) {
    std::vector<int64_t> indices(static_cast<std::size_t>(request.batch_size), -1);
    std::vector<uint64_t> masses(indices.size());
    tree.draw(request, indices.data(), masses.data());
    for (int64_t i = 0; i < request.batch_size; ++i) {
        const uint64_t target = naive_target(request, i, tree.total_mass());
        ASSERT_EQ(indices[i], naive.find(target, tree.scale()));
        ASSERT_EQ(masses[i], naive.mass(indices[i], tree.scale()));
    }
}

class RandomOperations {
 public:
    RandomOperations(int64_t capacity, const Kernels& kernels)
        : numbers_(static_cast<uint64_t>(capacity)), tree_(capacity, kernels), naive_(capacity) {}

    void step() {
        switch (numbers_() % 8) {
            case 0:
                set_run();
                break;
            case 1:
                rewrite();
                break;
            case 2:
                if (numbers_() % 8 == 0) reset();
                break;
            default:
                set();
        }
        expect_limits(tree_);
        expect_same_levels(tree_, naive_);
        if (tree_.total_mass() == 0) return;
        for (const int scheme : {PER_STRATIFIED, PER_INDEPENDENT, PER_SYSTEMATIC})
            expect_same_draws(tree_, naive_,
                              {1 + static_cast<int64_t>(numbers_() % 70), scheme, numbers_(), numbers_()});
        expect_same_units();
    }

 private:
    int64_t any_index() { return static_cast<int64_t>(numbers_() % static_cast<uint64_t>(tree_.capacity())); }

    float any_priority() { return leaves_.next(numbers_, 200); }

    void set() {
        const std::size_t count = numbers_() % 2 == 0 ? numbers_() % 4 : numbers_() % 100;
        std::vector<int64_t> indices(count);
        std::vector<float> priorities(count);
        for (std::size_t i = 0; i < count; ++i) {
            indices[i] = i > 0 && numbers_() % 4 == 0 ? indices[i - 1] : any_index();
            priorities[i] = any_priority();
            naive_.leaves[indices[i]] = priorities[i];
        }
        tree_.set(static_cast<int64_t>(count), indices.data(), priorities.data());
    }

    void set_run() {
        const int64_t first = any_index();
        const int64_t count = static_cast<int64_t>(numbers_() % static_cast<uint64_t>(tree_.capacity() - first + 1));
        std::vector<float> priorities(static_cast<std::size_t>(count));
        for (int64_t i = 0; i < count; ++i) naive_.leaves[first + i] = priorities[i] = any_priority();
        tree_.set_run(first, count, priorities.data());
    }

    void rewrite() {
        for (int64_t i = 0; i < tree_.capacity(); ++i) naive_.leaves[i] = tree_.leaves()[i] = any_priority();
        tree_.rebuild();
    }

    void reset() {
        naive_.leaves.assign(naive_.leaves.size(), 0.0f);
        tree_.reset();
    }

    void expect_same_units() {
        for (int i = 0; i < 20; ++i) {
            const uint64_t unit = i == 0 ? tree_.total_mass() - 1 : numbers_() % tree_.total_mass();
            int64_t index = -1;
            uint64_t mass = 0;
            const auto unit_of = [unit](int64_t) { return unit; };
            tree_.find(1, unit_of, &index, i % 2 == 0 ? &mass : nullptr);
            ASSERT_EQ(index, naive_.find(unit, tree_.scale()));
            if (i % 2 == 0) {
                ASSERT_EQ(mass, naive_.mass(index, tree_.scale()));
            }
        }
    }

    std::mt19937_64 numbers_;
    SumTree tree_;
    NaiveTree naive_;
    RandomLeaves leaves_;
};

TEST(SumTree, equals_a_naive_tree_after_every_operation) {
    for (const char* const name : {"baseline", "v3", "v4"}) {
        const Kernels* const kernels = kernels_named(name);
        if (kernels == nullptr) continue;
        for (const int64_t capacity : {1, 2, 15, 16, 17, 31, 33, 128, 129, 777, 1025, 8300}) {
            RandomOperations operations(capacity, *kernels);
            for (int step = 0; step < (capacity > 1000 ? 60 : 300); ++step) {
                operations.step();
                if (testing::Test::HasFatalFailure()) FAIL() << name << ", capacity " << capacity << ", step " << step;
            }
        }
    }
}

TEST(SumTree, a_rescale_brings_the_total_between_2_to_the_55_and_2_to_the_56) {
    SumTree tree(100000);
    std::vector<float> priorities(100000);
    std::mt19937 numbers(1);
    for (const int exponent : {0, -20, -140, 100}) {
        for (float& priority : priorities) priority = std::ldexp(static_cast<float>(numbers() % 1000 + 1), exponent);
        std::copy(priorities.begin(), priorities.end(), tree.leaves());
        tree.rebuild();
        EXPECT_GE(tree.total_mass(), (uint64_t{1} << 55) - 100000);
        EXPECT_LE(tree.total_mass(), uint64_t{1} << 56);
    }
}

// Leaves shrink one by one: the scale changes when the average leaf is below 2^20 units and the total has fallen
// 16-fold.
TEST(SumTree, a_shrinking_total_gets_a_larger_scale) {
    constexpr int64_t n = 5000;
    SumTree tree(n);
    std::vector<float> priorities(n, 1.0f);
    tree.set_run(0, n, priorities.data());
    const int before = tree.scale();
    const float small = 1e-20f;
    for (int64_t i = 0; i < n; ++i) tree.set(1, &i, &small);
    EXPECT_GT(tree.scale(), before + 40);
    EXPECT_GE(tree.total_mass(), static_cast<uint64_t>(n) << 20);
}

TEST(SumTree, alternating_extremes_cost_one_change_of_scale) {
    constexpr int64_t n = 10000;
    SumTree tree(n);
    std::vector<float> priorities(n, 1.0f);
    tree.set_run(0, n, priorities.data());
    std::mt19937_64 numbers(2);
    int changes = 0;
    for (int i = 0; i < 5000; ++i) {
        const int before = tree.scale();
        const auto index = static_cast<int64_t>(numbers() % n);
        const float priority = i % 2 == 0 ? 1e30f : 1e-30f;
        tree.set(1, &index, &priority);
        changes += tree.scale() != before;
    }
    EXPECT_EQ(changes, 1);
}

// Masses are 2^42 per unit of priority. The first piece of the change has the mass 1.497 * 2^63, too much to update the
// sums. Both pieces together have 2^64 + 0.19 * 2^62, of which a 64-bit sum would keep only 0.19 * 2^62.
TEST(SumTree, a_change_in_pieces_beyond_64_bits_is_not_taken_for_what_is_left_of_it) {
    constexpr int64_t n = 8192, n_first = 3072;
    NaiveTree naive(n, 1.0f);
    std::vector<int64_t> indices(n);
    std::iota(indices.begin(), indices.end(), 0);
    SumTree tree(n);
    tree.set_run(0, n, naive.leaves.data());
    ASSERT_EQ(tree.scale(), 42);
    std::fill_n(naive.leaves.begin(), n_first, 1022.0f);
    std::fill(naive.leaves.begin() + n_first, naive.leaves.end(), 244.0f);
    tree.begin_change(n);
    tree.change(n_first, indices.data(), naive.leaves.data());
    tree.change(n - n_first, indices.data() + n_first, naive.leaves.data() + n_first);
    tree.end_change();
    EXPECT_EQ(tree.scale(), 33);  // the priorities sum to 4388864: at least 2^55 units at this scale
    expect_same_levels(tree, naive);
    expect_limits(tree);
}

TEST(SumTree, memory_is_at_most_4_6_bytes_a_leaf) {
    const TreeShape shape = tree_shape(int64_t{1} << 40);
    EXPECT_EQ(shape.n_levels, max_levels);
    for (const int64_t capacity : {int64_t{1000000}, int64_t{1} << 40}) {
        const TreeShape large = tree_shape(capacity);
        double bytes = 4.0 * static_cast<double>(large.n_nodes[0]);
        for (int level = 1; level < large.n_levels; ++level) bytes += 8.0 * static_cast<double>(large.n_nodes[level]);
        EXPECT_LT(bytes / static_cast<double>(capacity), 4.6);
    }
}

}  // namespace
}  // namespace per::cpu

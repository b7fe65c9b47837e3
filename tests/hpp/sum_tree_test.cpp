// per::SumTree is per_tree.
#include <gtest/gtest.h>
#include <per.hpp>

#include <cstdint>
#include <vector>

#include "buffers.h"

namespace {

TEST(SumTree, draws_what_the_tree_of_per_h_draws) {
    per::SumTree tree = small_tree(), twin = small_tree();
    tree.update({0, 1, 2, 3}, {1.0f, 2.0f, 3.0f, 4.0f});
    const std::vector<int64_t> indices = {0, 1, 2, 3};
    const std::vector<float> values = {1, 2, 3, 4};
    ASSERT_EQ(per_update(twin.get(), 4, indices.data(), values.data(), nullptr), PER_OK);

    std::vector<int64_t> drawn(8), expected(8);
    std::vector<float> priorities(8), weights(8), expected_priorities(8), expected_weights(8);
    tree.sample(PER_INDEPENDENT, 0.5f, drawn, priorities, weights);
    ASSERT_EQ(per_sample(twin.get(), 8, PER_INDEPENDENT, 0.5f, expected.data(), expected_priorities.data(),
                         expected_weights.data(), nullptr),
              PER_OK);
    EXPECT_EQ(drawn, expected);
    EXPECT_EQ(priorities, expected_priorities);
    EXPECT_EQ(weights, expected_weights);

    tree.sample(PER_STRATIFIED, 0, drawn, {}, {});
    EXPECT_EQ(drawn.back(), 3) << "the last eighth of a total of 10 is of leaf 3";
}

TEST(SumTree, finds_and_reads) {
    per::SumTree tree = small_tree();
    tree.update({0, 1, 3}, {1.0f, 2.0f, 4.0f});
    const per::TreeDescription described = tree.describe();
    EXPECT_EQ(described.capacity, 4);
    EXPECT_EQ(described.total, 7.0);
    std::vector<int64_t> found(3);
    tree.find({0.5, 1.0, 3.5}, found);
    EXPECT_EQ(found, (std::vector<int64_t>{0, 1, 3}));
    const uint64_t mass = described.total_mass;
    ASSERT_EQ(mass, 7 * (uint64_t{1} << described.scale));
    tree.find_mass({0, mass / 7, mass - 1}, found);
    EXPECT_EQ(found, (std::vector<int64_t>{0, 1, 3}));
    std::vector<float> some(2), all(4);
    tree.priorities({3, 1}, some);
    EXPECT_EQ(some, (std::vector<float>{4, 2}));
    tree.priorities(all);
    EXPECT_EQ(all, (std::vector<float>{1, 2, 0, 4}));
    tree.reset();
    EXPECT_EQ(tree.describe().total, 0.0);
    tree.synchronize();
    EXPECT_ERROR(tree.sample(PER_STRATIFIED, 0, found, {}, {}), Empty, "");
}

TEST(SumTree, no_indices_are_not_all_of_them) {
    per::SumTree tree = small_tree();
    std::vector<float> none;
    tree.priorities(std::vector<int64_t>(), none);
    EXPECT_ERROR(tree.priorities(none), InvalidArgument, "count is 0");
}

TEST(SumTree, spans_of_other_sizes_are_refused_before_the_call) {
    per::SumTree tree = small_tree();
    tree.update({0, 1}, {1.0f, 1.0f});
    std::vector<int64_t> two(2);
    std::vector<float> one(1);
    EXPECT_ERROR(tree.update(two, one), InvalidArgument, "priorities has 1 elements: expected are 2");
    EXPECT_ERROR(tree.sample(PER_STRATIFIED, 0, two, one, {}), InvalidArgument, "priorities_out has 1 elements");
    EXPECT_ERROR(tree.sample(PER_STRATIFIED, 0, two, {}, one), InvalidArgument, "weights_out has 1 elements");
    EXPECT_ERROR(tree.find({0.5}, two), InvalidArgument, "indices_out has 2 elements: expected are 1");
    EXPECT_ERROR(tree.find_mass({0}, two), InvalidArgument, "indices_out has 2 elements: expected are 1");
    EXPECT_ERROR(tree.priorities(two, one), InvalidArgument, "priorities_out has 1 elements: expected are 2");
    EXPECT_EQ(tree.describe().total, 2.0);
}

}  // namespace

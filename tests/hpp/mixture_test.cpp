// per::Mixture is per_mixture_sample() and per_mixture_update_priorities().
#include <gtest/gtest.h>
#include <per.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "buffers.h"

namespace {

// Two buffers of the same fields with other seeds, of which one has more steps.
struct Buffers {
    per::ReplayBuffer online = filled(7, 20), demonstrations = filled(8, 12);

    static per::ReplayBuffer filled(uint64_t seed, int n) {
        per::ReplayOptions options = small_options();
        options.seed = seed;
        per::ReplayBuffer buffer = small_buffer(options);
        add_episode(buffer, n);
        return buffer;
    }
    per::Mixture mixture() { return {{online, 1}, {demonstrations, 3}}; }
};

TEST(Mixture, rows_are_those_of_its_buffers_and_updates_reach_them) {
    Buffers buffers, twins;
    per::Mixture mixture = buffers.mixture();
    const per::Batch batch = mixture.sample(16);
    ASSERT_EQ(batch.sources().size(), 16u);
    EXPECT_EQ(std::count(batch.sources().begin(), batch.sources().end(), 0), 4);
    const per::Batch first = twins.online.sample(4), second = twins.demonstrations.sample(12);
    std::vector<int64_t> ids(first.ids().begin(), first.ids().end());
    ids.insert(ids.end(), second.ids().begin(), second.ids().end());
    EXPECT_TRUE(std::equal(ids.begin(), ids.end(), batch.ids().begin()));
    EXPECT_TRUE(std::equal(second.reward().begin(), second.reward().end(), batch.reward().begin() + 4));
    EXPECT_EQ(batch.field<float>("observation").size(), 32u);
    EXPECT_EQ(*std::max_element(batch.weights().begin(), batch.weights().end()), 1.0f);

    std::vector<float> priorities(16);
    for (std::size_t i = 0; i < 16; ++i) priorities[i] = static_cast<float>(batch.ids()[i]) + 10;
    mixture.set_priorities(batch.ids(), batch.sources(), priorities);
    std::vector<float> found(12);
    buffers.demonstrations.priorities(second.ids(), found);
    EXPECT_TRUE(std::equal(found.begin(), found.end(), priorities.begin() + 4));
    mixture.update_priorities(batch.ids(), batch.sources(), std::vector<float>(16, 2.0f));
    buffers.demonstrations.priorities(second.ids(), found);
    EXPECT_FLOAT_EQ(found[0], 2.000001f);
}

TEST(Mixture, continues_from_its_shares_and_carries) {
    Buffers buffers;
    per::Mixture mixture = buffers.mixture();
    per::Batch batch = mixture.batch(2);
    std::vector<int64_t> of_first;
    for (int i = 0; i < 4; ++i) {
        mixture.sample(batch);
        of_first.push_back(std::count(batch.sources().begin(), batch.sources().end(), 0));
        per::Mixture resumed = buffers.mixture();
        for (std::size_t k = 0; k < 2; ++k) {
            resumed.sources()[k].share = mixture.sources()[k].share;
            resumed.sources()[k].carry = mixture.sources()[k].carry;
        }
        mixture = resumed;
    }
    EXPECT_EQ(of_first, (std::vector<int64_t>{1, 0, 1, 0}));
    mixture.sources()[0].share = 0;
    mixture.sample(batch);
    EXPECT_EQ(batch.sources()[0], 1);
}

TEST(Mixture, draws_into_arrays_of_the_caller_with_options) {
    Buffers buffers;
    per::Mixture mixture = buffers.mixture();
    std::vector<int64_t> ids(8);
    std::vector<int32_t> sources(8, -7);
    std::vector<float> weights(8);
    per::Initialized<per_batch, per_batch_init> arrays;
    arrays.ids = ids.data();
    arrays.weights = weights.data();
    per::SampleOptions options;
    options.beta = 0;
    mixture.sample(8, arrays, sources, &options);
    EXPECT_EQ(std::count(sources.begin(), sources.end(), 1), 6);
    EXPECT_EQ(weights, std::vector<float>(8, 1.0f));
    mixture.sample(8, arrays, {}, &options);
}

TEST(Mixture, errors_name_the_argument) {
    Buffers buffers;
    EXPECT_ERROR(per::Mixture(std::vector<per::Mixture::Source>{}), InvalidArgument, "n_sources is 0");
    EXPECT_ERROR((per::Mixture{{buffers.online, 1}, {buffers.online, 1}}), InvalidArgument,
                 "sources[1].replay is that of sources[0]");
    EXPECT_ERROR((per::Mixture{{buffers.online, -1}}), InvalidArgument, "sources[0].share is -1");
    per::Mixture mixture = buffers.mixture();
    per::Batch of_buffer = buffers.online.batch(4), batch = mixture.batch(4);
    EXPECT_ERROR(mixture.sample(of_buffer), InvalidArgument, "batch was not made by Mixture::batch()");
    EXPECT_EQ(of_buffer.sources().size(), 0u);
    per::Batch of_other = buffers.demonstrations.batch(4);
    EXPECT_ERROR(mixture.sample(of_other), InvalidArgument, "an argument was made for another buffer");
    mixture.sample(batch);
    EXPECT_ERROR(mixture.set_priorities(batch.ids(), std::vector<int32_t>(3), std::vector<float>(4)), InvalidArgument,
                 "source_of");
    EXPECT_ERROR(mixture.update_priorities(batch.ids(), std::vector<int32_t>(4, 2), std::vector<float>(4)),
                 InvalidArgument, "source_of[0] is 2: allowed are 0 .. 1");
    std::vector<int32_t> few(3);
    EXPECT_ERROR(mixture.sample(4, batch.get(), few), InvalidArgument, "sources_out");
}

}  // namespace

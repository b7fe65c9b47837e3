// per::Mixture is per/mixture.h: its batches are those of the C functions, and it never touches memory of other sizes.
#include <gtest/gtest.h>
#include <per.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "buffers.h"

namespace {

static_assert(std::is_copy_constructible_v<per::Mixture> && std::is_nothrow_move_constructible_v<per::Mixture>);

template <class T>
std::vector<T> values(per::Span<T> span) {
    return {span.begin(), span.end()};
}

std::vector<double> shares_of(const per::Mixture& mixture) {
    std::vector<double> shares;
    for (const per_source& source : mixture.sources()) shares.push_back(source.share);
    return shares;
}
std::vector<int64_t> carries_of(const per::Mixture& mixture) {
    std::vector<int64_t> carries;
    for (const per_source& source : mixture.sources()) carries.push_back(source.carry);
    return carries;
}

// A buffer with an episode of n steps, in each of which the field `value` is `label`.
per::ReplayBuffer labelled_buffer(int n, float label, const per_replay_options& options = small_options()) {
    per::ReplayBuffer buffer = small_buffer(options);
    const std::vector<int64_t> ids = add_episode(buffer, n);
    const std::vector<float> labels(ids.size(), label);
    per::FieldArrays fields = buffer.field_arrays();
    fields["value"] = labels;
    buffer.set(ids, fields);
    return buffer;
}

std::vector<float> priorities_of(per::ReplayBuffer& buffer) {
    const std::vector<int64_t> ids = buffer.live_ids();
    std::vector<float> priorities(ids.size());
    buffer.priorities(ids, priorities);
    return priorities;
}

int64_t rows_of(const per::Batch& batch, int32_t source) {
    return std::count(batch.sources().begin(), batch.sources().end(), source);
}

TEST(Mixture, draws_rows_of_each_buffer_in_turn) {
    per::ReplayBuffer online = labelled_buffer(10, 3), demonstrations = labelled_buffer(5, 4);
    per::Mixture mixture({{online, 0.5}, {demonstrations, 0.5}});
    per::Batch reused = mixture.batch(33);
    const int32_t* const memory = reused.sources().data();
    for (int round = 0; round < 4; ++round) {
        mixture.sample(reused);
        const per::Batch fresh = mixture.sample(32);
        EXPECT_EQ(rows_of(reused, 0), round % 2 == 0 ? 17 : 16);
        EXPECT_EQ(rows_of(fresh, 0), 16);
        for (const per::Batch* batch : {&std::as_const(reused), &fresh}) {
            ASSERT_EQ(batch->sources().size(), static_cast<std::size_t>(batch->size()));
            for (std::size_t i = 0; i < batch->sources().size(); ++i) {
                const int32_t source = batch->sources()[i];
                ASSERT_TRUE(source == 0 || source == 1);
                EXPECT_TRUE(i == 0 || batch->sources()[i - 1] <= source);
                EXPECT_EQ(batch->field<float>("value")[i], source == 0 ? 3.0f : 4.0f);
                EXPECT_EQ(batch->field<float>("observation")[2 * i + 1], 10 * static_cast<float>(batch->ids()[i]));
                EXPECT_LT(batch->ids()[i], source == 0 ? 10 : 5);
            }
        }
    }
    EXPECT_EQ(reused.sources().data(), memory);
    EXPECT_EQ(reused.shape("observation"), (std::vector<int64_t>{33, 2}));
    EXPECT_TRUE(online.sample(4).sources().empty());
}

// P is 1/2 * 1/10 in one buffer and 1/2 * 1/5 in the other, of 15 transitions: N P is 3/4 and 3/2.
TEST(Mixture, weights_are_those_of_the_mixture) {
    per::ReplayBuffer online = labelled_buffer(10, 0), demonstrations = labelled_buffer(5, 1);
    per::Mixture mixture({{online, 7}, {demonstrations, 7}});
    per::SampleOptions options;
    options.beta = 1;
    per::Batch batch = mixture.sample(8, &options);
    for (std::size_t i = 0; i < 8; ++i) {
        EXPECT_FLOAT_EQ(batch.probabilities()[i], i < 4 ? 0.05f : 0.1f);
        EXPECT_FLOAT_EQ(batch.weights()[i], i < 4 ? 1.0f : 0.5f);
    }
    options.normalize_weights = PER_NONE;
    mixture.sample(batch, &options);
    for (std::size_t i = 0; i < 8; ++i) EXPECT_FLOAT_EQ(batch.weights()[i], i < 4 ? 4.0f / 3 : 2.0f / 3);
    options.normalize_weights = PER_BUFFER_MAX;
    EXPECT_ERROR(mixture.sample(batch, &options), Unsupported, "PER_BUFFER_MAX");
}

TEST(Mixture, draws_and_updates_what_the_functions_of_per_h_do) {
    per::ReplayBuffer buffers[] = {labelled_buffer(20, 0), labelled_buffer(9, 1)};
    per::ReplayBuffer twins[] = {labelled_buffer(20, 0), labelled_buffer(9, 1)};
    per::Mixture mixture({{buffers[0], 0.7}, {buffers[1], 0.3}});
    per_source sources[] = {{twins[0].get(), 0.7, 0, 0, 0}, {twins[1].get(), 0.3, 0, 0, 0}};
    per::SampleOptions options;
    options.scheme = PER_INDEPENDENT;
    per::Batch batch = mixture.batch(16);
    for (int round = 0; round < 6; ++round) {
        const per_sample_options* const given = round % 2 == 0 ? nullptr : &options;
        std::vector<int64_t> ids(16);
        std::vector<float> weights(16), next_observation(32), errors(32);
        std::vector<int32_t> source_of(16);
        std::vector<void*> next_fields = {next_observation.data(), nullptr, nullptr, nullptr, nullptr};
        per_batch expected;
        ASSERT_EQ(per_batch_init(&expected, sizeof expected), PER_OK);
        expected.next_fields = next_fields.data();
        expected.ids = ids.data();
        expected.weights = weights.data();
        ASSERT_EQ(per_mixture_sample(sources, 2, given, 16, &expected, source_of.data(), nullptr), PER_OK);
        mixture.sample(batch, given);
        EXPECT_EQ(values(batch.ids()), ids);
        EXPECT_EQ(values(batch.weights()), weights);
        EXPECT_EQ(values(batch.next_field<float>("observation")), next_observation);
        EXPECT_EQ(values(batch.sources()), source_of);
        EXPECT_EQ(carries_of(mixture), (std::vector<int64_t>{sources[0].carry, sources[1].carry}));

        for (std::size_t i = 0; i < 32; ++i) errors[i] = static_cast<float>((5 * i + 3) % 11);
        per::Priorities priorities;
        priorities.count = 16;
        priorities.ids = ids.data();
        if (round < 4) {
            priorities.td_errors = errors.data();
            priorities.n_critics = 1 + round / 2;
            mixture.update_priorities(batch.ids(), batch.sources(),
                                      {errors.data(), static_cast<std::size_t>(16 * priorities.n_critics)},
                                      priorities.n_critics);
        } else {
            priorities.priorities = errors.data();
            mixture.set_priorities(batch.ids(), batch.sources(), {errors.data(), 16});
        }
        ASSERT_EQ(per_mixture_update_priorities(sources, 2, &priorities, source_of.data(), nullptr), PER_OK);
        for (int k = 0; k < 2; ++k) EXPECT_EQ(priorities_of(buffers[k]), priorities_of(twins[k]));
    }
    EXPECT_NE(priorities_of(buffers[0]), std::vector<float>(20, 1.0f));
}

TEST(Mixture, continues_from_saved_shares_and_carries) {
    const auto counts_of = [](per::Mixture& mixture) {
        std::vector<int64_t> counts;
        for (int round = 0; round < 6; ++round) counts.push_back(rows_of(mixture.sample(3), 0));
        return counts;
    };
    per::ReplayBuffer first = labelled_buffer(10, 0), second = labelled_buffer(5, 1);
    per::Mixture mixture({{first, 2}, {second, 3}});
    EXPECT_EQ(shares_of(mixture), (std::vector<double>{2, 3})) << "as they were given";
    EXPECT_EQ(carries_of(mixture), (std::vector<int64_t>{0, 0}));
    const per::Span<const per_source> sources = mixture.sources();
    mixture.sample(3);  // shares of 1.2 and 1.8 rows get 1 and 2
    EXPECT_NEAR(static_cast<double>(sources[0].carry), std::ldexp(0.2, 32), 8);
    EXPECT_EQ(sources[0].carry + sources[1].carry, 0);

    per::Mixture restored({{first, sources[0].share, sources[0].carry}, {second, sources[1].share, sources[1].carry}});
    per::Mixture copy = mixture, untouched = mixture, anew({{first, 2}, {second, 3}});
    const std::vector<int64_t> counts = counts_of(mixture);
    EXPECT_EQ(counts_of(restored), counts);
    EXPECT_EQ(counts_of(copy), counts);
    EXPECT_NE(counts_of(anew), counts);
    EXPECT_EQ(carries_of(restored), carries_of(mixture));
    EXPECT_NE(carries_of(untouched), carries_of(mixture));
}

TEST(Mixture, shares_may_change) {
    per::ReplayBuffer first = labelled_buffer(10, 0), second = labelled_buffer(5, 1);
    per::Mixture mixture({{first, 1}, {second, 1}});
    const per::Span<const per_source> sources = mixture.sources();
    mixture.sample(3);
    const std::vector<int64_t> carries = carries_of(mixture);
    mixture.set_shares({0, 1});
    EXPECT_EQ(shares_of(mixture), (std::vector<double>{0, 1}));
    EXPECT_EQ(carries_of(mixture), carries);
    EXPECT_EQ(sources[1].share, 1);
    EXPECT_EQ(rows_of(mixture.sample(8), 0), 0);
    EXPECT_ERROR(mixture.set_shares({1}), InvalidArgument, "shares has 1 elements: expected are 2");
    EXPECT_ERROR(mixture.set_shares({1, 1, 1}), InvalidArgument, "shares has 3 elements");
    EXPECT_ERROR(mixture.set_shares({5, -1}), InvalidArgument, "sources[1].share is -1");
    EXPECT_ERROR(mixture.set_shares({5, NAN}), InvalidArgument, "sources[1].share is nan");
    EXPECT_ERROR(mixture.set_shares({0, 0}), InvalidArgument, "the shares of all sources add up to 0");
    EXPECT_EQ(shares_of(mixture), (std::vector<double>{0, 1}));
}

TEST(Mixture, sources_are_checked_at_once) {
    per::ReplayBuffer first = labelled_buffer(10, 0), second = labelled_buffer(5, 1), lost = labelled_buffer(5, 1);
    const per::ReplayBuffer kept = std::move(lost);
    per::ReplayBuffer other(small_options(), {per::field<float>("observation", {2})});
    EXPECT_ERROR(per::Mixture({}), InvalidArgument, "n_sources is 0: allowed are 1 .. 32");
    EXPECT_ERROR(per::Mixture(std::vector<per::Mixture::Source>(33, {first, 1})), InvalidArgument, "n_sources is 33");
    EXPECT_ERROR(per::Mixture({{first, 1}, {lost, 1}}), InvalidArgument, "sources[1].replay is NULL");
    EXPECT_ERROR(per::Mixture({{first, 1}, {second, 1}, {first, 1}}), InvalidArgument,
                 "sources[2].replay is that of sources[0]");
    EXPECT_ERROR(per::Mixture({{first, 1}, {other, 1}}), InvalidArgument, "sources[1].replay has 1 fields");
    EXPECT_ERROR(per::Mixture({{first, 1}, {second, -2}}), InvalidArgument, "sources[1].share is -2");
    EXPECT_ERROR(per::Mixture({{first, 1}, {second, 1, INT64_MAX}}), InvalidArgument, "sources[1].carry is");
    per::Mixture alone({{first, 1}});
    EXPECT_EQ(rows_of(alone.sample(8), 0), 8);
}

TEST(Mixture, outlives_moved_objects_and_leaves_nothing_behind) {
    per::ReplayBuffer first = labelled_buffer(10, 0), second = labelled_buffer(5, 1);
    per::Mixture mixture({{first, 1}, {second, 1}});
    per::ReplayBuffer moved_buffer = std::move(first);
    per::Batch batch = mixture.batch(4);
    per::Mixture moved = std::move(mixture);
    per::Batch moved_batch = std::move(batch);
    moved.sample(moved_batch);
    EXPECT_EQ(values(moved_batch.sources()), (std::vector<int32_t>{0, 0, 1, 1}));
    EXPECT_ERROR(moved.sample(batch), InvalidArgument, "batch was not made by batch() of this mixture");
    EXPECT_ERROR(mixture.sample(4), InvalidArgument, "n_sources is 0");
    EXPECT_ERROR(mixture.batch(4), InvalidArgument, "n_sources is 0");
    EXPECT_ERROR(mixture.sample(batch), InvalidArgument, "n_sources is 0");
    EXPECT_ERROR(mixture.sample(moved_batch), InvalidArgument, "batch was not made by");
    EXPECT_ERROR(mixture.set_shares({}), InvalidArgument, "n_sources is 0");
    EXPECT_ERROR(mixture.update_priorities({0}, {0}, {1.0f}), InvalidArgument, "n_sources is 0");
    EXPECT_TRUE(mixture.sources().empty());
}

TEST(Mixture, takes_only_batches_that_were_made_for_it) {
    per::ReplayBuffer first = labelled_buffer(10, 0), second = labelled_buffer(5, 1);
    per::Mixture mixture({{first, 1}, {second, 1}}), twin({{first, 1}, {second, 1}}), copy = mixture;
    per::Batch batch = mixture.batch(4), of_buffer = first.batch(4), rows = first.get(first.live_ids());
    EXPECT_ERROR(twin.sample(batch), InvalidArgument, "batch was not made by batch() of this mixture");
    EXPECT_ERROR(mixture.sample(of_buffer), InvalidArgument, "batch was not made by");
    EXPECT_ERROR(mixture.sample(rows), InvalidArgument, "batch was not made by");
    EXPECT_ERROR(first.sample(batch), InvalidArgument, "another buffer");
    EXPECT_EQ(first.stats().samples + second.stats().samples, 0);
    copy.sample(batch);
    EXPECT_EQ(first.stats().samples, 1);
    EXPECT_ERROR(mixture.sample(0), InvalidArgument, "batch_size is 0");
    EXPECT_ERROR(mixture.sample(-1), InvalidArgument, "batch_size is -1");
}

TEST(Mixture, spans_of_other_sizes_are_refused) {
    per::ReplayBuffer first = labelled_buffer(10, 0), second = labelled_buffer(5, 1);
    per::Mixture mixture({{first, 1}, {second, 1}});
    int anything = 0;
    void* const stream = &anything;
    std::vector<int64_t> ids(4, -7);
    std::vector<int32_t> source_of(4, -7);
    const per::Span<int32_t> few(source_of.data(), 3);
    per_batch own;
    ASSERT_EQ(per_batch_init(&own, sizeof own), PER_OK);
    own.ids = ids.data();
    EXPECT_ERROR(mixture.sample(4, own, few), InvalidArgument, "sources_out has 3 elements: expected are 4");
    EXPECT_ERROR(mixture.sample(4, own, source_of, nullptr, stream), InvalidArgument, "stream");
    EXPECT_EQ(ids, std::vector<int64_t>(4, -7));
    mixture.sample(4, own, {});
    EXPECT_EQ(source_of, std::vector<int32_t>(4, -7));
    mixture.sample(4, own, source_of);
    EXPECT_EQ(source_of, (std::vector<int32_t>{0, 0, 1, 1}));

    const std::vector<float> four = {1, 2, 3, 4};
    EXPECT_ERROR(mixture.update_priorities(ids, few, four), InvalidArgument, "source_of has 3 elements");
    EXPECT_ERROR(mixture.set_priorities(ids, few, four), InvalidArgument, "source_of has 3 elements");
    EXPECT_ERROR(mixture.update_priorities(ids, source_of, four, 2), InvalidArgument, "td_errors has 4 elements");
    EXPECT_ERROR(mixture.set_priorities(ids, source_of, {1.0f}), InvalidArgument, "priorities has 1 elements");
    EXPECT_ERROR(mixture.update_priorities(ids, source_of, four, 1, stream), InvalidArgument, "stream");
    EXPECT_ERROR(mixture.update_sequences(ids, source_of, 1, four, 1, stream), InvalidArgument, "stream");
    EXPECT_ERROR(mixture.set_priorities(ids, source_of, four, stream), InvalidArgument, "stream");
    EXPECT_ERROR(mixture.set_priorities(ids, {0, 0, 0, 2}, four), InvalidArgument, "source_of[3] is 2");
    EXPECT_EQ(priorities_of(first), std::vector<float>(10, 1.0f));
    EXPECT_EQ(priorities_of(second), std::vector<float>(5, 1.0f));
    mixture.set_priorities({0, 0}, {1, 0}, {0.25f, 4.0f});
    EXPECT_EQ(priorities_of(first)[0], 4.0f);
    EXPECT_EQ(priorities_of(second)[0], 0.25f);
}

TEST(Mixture, failed_draws_change_no_carry) {
    per::ReplayBuffer first = labelled_buffer(10, 0), empty = small_buffer();
    per::Mixture mixture({{first, 1}, {empty, 1}});
    EXPECT_ERROR(mixture.sample(3), Empty, "");
    EXPECT_EQ(carries_of(mixture), (std::vector<int64_t>{0, 0}));
    EXPECT_EQ(first.stats().samples, 0);
}

TEST(Mixture, batches_have_times_sampled_if_all_buffers_keep_them) {
    per::ReplayOptions options = small_options();
    options.keep_times_sampled = 1;
    per::ReplayBuffer keeping = labelled_buffer(10, 0, options), also_keeping = labelled_buffer(1, 1, options);
    per::ReplayBuffer other = labelled_buffer(5, 1);
    EXPECT_TRUE(per::Mixture({{keeping, 1}, {other, 1}}).sample(4).times_sampled().empty());
    EXPECT_TRUE(per::Mixture({{other, 1}, {keeping, 1}}).sample(4).times_sampled().empty());
    per::Mixture mixture({{keeping, 1}, {also_keeping, 1}});
    const per::Batch batch = mixture.sample(4);
    ASSERT_EQ(batch.times_sampled().size(), 4U);
    EXPECT_EQ(batch.times_sampled()[2], 2) << "there is one row, drawn twice";
    EXPECT_EQ(batch.times_sampled()[3], 2);
}

TEST(Mixture, of_sequences_draws_with_the_n_step_of_the_batch) {
    per::ReplayOptions options = small_options();
    options.sequence_length = 3;
    options.n_step = 2;
    per::ReplayBuffer first = labelled_buffer(12, 0, options), second = labelled_buffer(8, 1, options);
    per::Mixture mixture({{first, 1}, {second, 1}});
    per::Batch batch = mixture.sample(4);
    EXPECT_EQ(batch.shape("observation"), (std::vector<int64_t>{4, 3 + 2, 2}));
    EXPECT_EQ(batch.mask().size(), 12U);
    EXPECT_EQ(values(batch.sources()), (std::vector<int32_t>{0, 0, 1, 1}));
    for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(batch.field<float>("observation")[10 * i], static_cast<float>(batch.ids()[i]));
        EXPECT_EQ(batch.field<float>("value")[3 * i], static_cast<float>(batch.sources()[i]));
    }
    per::SampleOptions shorter;
    shorter.n_step = 1;
    EXPECT_EQ(mixture.sample(4, &shorter).shape("observation"), (std::vector<int64_t>{4, 3 + 1, 2}));
    EXPECT_ERROR(mixture.sample(batch, &shorter), InvalidArgument, "n_step is 1: the batch was made for 2");

    const std::vector<float> errors(12, 2.0f);
    mixture.update_sequences(batch.ids(), batch.sources(), 3, errors);
    std::vector<float> priority(1);
    second.priorities({batch.ids()[3]}, priority);
    EXPECT_FLOAT_EQ(priority[0], 2.0f);
    EXPECT_ERROR(mixture.update_priorities(batch.ids(), batch.sources(), {errors.data(), 4}), InvalidArgument,
                 "td_errors has 4 elements: expected are 1 * 4 * 3");

    second.set_n_step(1);
    EXPECT_ERROR(mixture.batch(4), InvalidArgument, "n_step of sources[1] is 1, and of sources[0] 2");
    EXPECT_EQ(mixture.sample(4, &shorter).shape("observation"), (std::vector<int64_t>{4, 3 + 1, 2}));

    options.sequence_length = 4;
    per::ReplayBuffer longer = labelled_buffer(12, 0, options);
    EXPECT_ERROR(per::Mixture({{first, 1}, {longer, 1}}).sample(4), InvalidArgument,
                 "sequence_length of sources[1].replay is 4");
}

}  // namespace

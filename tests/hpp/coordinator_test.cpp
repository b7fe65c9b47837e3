// A coordinator writes only to arrays of the size that it needs, whatever was called before.
#include <gtest/gtest.h>
#include <per.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "buffers.h"

namespace {

// A coordinator of two shards with eight transitions each, of mass 1 at scale 0.
per::Coordinator settled_coordinator() {
    per::ReplayOptions options = small_options();
    options.n_envs = 2;
    per::Coordinator coordinator(options, 2);
    per::ShardSummary summary = {};
    summary.struct_size = sizeof summary;
    summary.total_mass = summary.measured_low = 8;
    summary.live = 8;
    summary.is_scale_fixed = 1;
    summary.largest_leaf = 1;
    const auto tell = [&](int32_t scale) {
        summary.scale = summary.measured_scale = scale;
        for (int64_t s = 0; s < 2; ++s) coordinator.report(s, summary);
    };
    tell(0);
    for (auto asked = coordinator.agree_on_scale(); asked.todo != PER_SCALE_AGREED;
         asked = coordinator.agree_on_scale())
        tell(asked.scale);
    return coordinator;
}

TEST(Coordinator, writes_no_more_than_the_spans_hold) {
    per::Coordinator coordinator = settled_coordinator();
    ASSERT_EQ(coordinator.draw(100), 100);
    per::SampleOptions wrong;
    wrong.scheme = 99;
    EXPECT_ERROR(coordinator.draw(4, &wrong), InvalidArgument, "scheme is 99");
    std::vector<int64_t> shards(100, -7), units(100, -7), ids(100, -7);
    const per::Span<int64_t> few_shards(shards.data(), 4), few_units(units.data(), 4), few_ids(ids.data(), 4);
    EXPECT_ERROR(coordinator.units(few_shards, few_units), InvalidArgument, "count is 4: allowed is 100");
    EXPECT_ERROR(coordinator.units(shards, few_units), InvalidArgument, "units_out has 4 elements");
    coordinator.units(shards, units);
    const std::vector<uint64_t> masses(100, 1);
    EXPECT_ERROR(coordinator.submit(few_ids, {masses.data(), 4}), InvalidArgument, "count is 4: allowed is 100");
    EXPECT_EQ(coordinator.submit(units, masses), 0);
    EXPECT_ERROR(coordinator.draw(4, &wrong), InvalidArgument, "scheme is 99");
    EXPECT_ERROR(coordinator.finish(few_ids), InvalidArgument, "batch_size is 4: allowed is 100");
    EXPECT_EQ(std::count(ids.begin(), ids.end(), -7), 100);
    coordinator.finish(ids);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), -7), 0);
}

TEST(Coordinator, brings_shards_to_one_reference) {
    per::ReplayOptions options = small_options();
    options.freshness.half_life = 1;
    options.n_envs = 2;
    per::Coordinator coordinator(options, 2);
    options.capacity = 32;
    options.n_envs = 1;
    per::ReplayBuffer shards[] = {small_buffer(options), small_buffer(options)};
    add_episode(shards[0], 5);
    add_episode(shards[1], 40);
    for (int64_t s = 0; s < 2; ++s) coordinator.report(s, shards[s].summarize());
    for (auto asked = coordinator.agree_on_scale(); asked.todo != PER_SCALE_AGREED;
         asked = coordinator.agree_on_scale())
        for (int64_t s = 0; s < 2; ++s) {
            if (asked.todo == PER_SCALE_SET) shards[s].set_scale(asked.scale, asked.reference);
            const int32_t measured = asked.todo == PER_SCALE_SET ? PER_SCALE_AUTOMATIC : asked.scale;
            coordinator.report(s, shards[s].summarize(measured, asked.reference));
        }
    EXPECT_EQ(coordinator.state().reference, 68);
    for (const per::ReplayBuffer& shard : shards) EXPECT_EQ(shard.summarize().reference, 68);
}

TEST(Coordinator, leaves_n_step_to_the_shards) {
    per::Coordinator coordinator = settled_coordinator();
    per::SampleOptions sample;
    sample.n_step = 5;  // that of the shards; the coordinator was created without it
    EXPECT_EQ(coordinator.draw(4, &sample), 4);
    sample.n_step_min = 1;
    EXPECT_ERROR(coordinator.draw(4, &sample), Unsupported, "n_step_min is 1");
}

}  // namespace

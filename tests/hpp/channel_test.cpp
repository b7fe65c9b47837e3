// Steps that go through a channel reach the buffer, and both ends close on destruction.
#include <gtest/gtest.h>
#include <per.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "buffers.h"

namespace {

// Step t of an episode that does not end, to environment 0 of the channel.
void write_step(per::Writer& writer, int t) {
    const std::vector<float> observation = {static_cast<float>(t), 0}, next = {static_cast<float>(t + 1), 0};
    const std::vector<float> goal = {0, 0}, reward = {static_cast<float>(t)};
    const std::vector<int8_t> action = {1};
    const std::vector<uint8_t> no = {0};
    per::Steps steps = writer.steps();
    steps.fields["observation"] = observation;
    steps.fields["goal"] = goal;
    steps.fields["action"] = action;
    steps.next_fields["observation"] = next;
    steps.reward = reward;
    steps.terminated = steps.truncated = no;
    writer.add(steps);
}

TEST(Channel, brings_steps_into_the_buffer) {
    per::ReplayBuffer buffer = small_buffer();
    per::Channel channel = buffer.channel();
    per::Writer writer(channel.path());
    EXPECT_EQ(writer.describe().n_envs, 1);
    for (int t = 0; t < 5; ++t) write_step(writer, t);
    channel.flush();
    EXPECT_EQ(buffer.live(), 5);
    const std::vector<int64_t> first = {0};
    writer.cut(first);
    writer.cut(std::chrono::milliseconds(100));
    writer.flush();
    EXPECT_EQ(buffer.stats().cuts, 1);
    EXPECT_EQ(channel.stats().added, 5);
}

TEST(Channel, moves_steps_when_it_is_asked) {
    per::ReplayBuffer buffer = small_buffer();
    per::ChannelOptions options;
    options.moved_by = PER_MOVED_BY_CALLS;
    per::Channel channel = buffer.channel(options);
    per::Writer writer(channel.path());
    for (int t = 0; t < 5; ++t) write_step(writer, t);
    EXPECT_EQ(buffer.live(), 0);
    EXPECT_EQ(channel.move(3), 3);
    EXPECT_EQ(channel.move(), 2);
    EXPECT_EQ(buffer.live(), 5);
    EXPECT_ERROR(channel.move(-1), InvalidArgument, "max_steps is -1");
    per::Channel other = buffer.channel();
    EXPECT_ERROR(other.move(), InvalidArgument, "channel has a thread that moves its steps");
}

TEST(Channel, has_one_writer_at_a_time) {
    per::ReplayBuffer buffer = small_buffer();
    per::ChannelOptions options;
    options.slots = 4;
    per::Channel channel = buffer.channel(options);
    {
        per::Writer first(channel.descriptor());
        EXPECT_ERROR(per::Writer second(channel.path()), Busy, "has a writer already");
        const per::Steps steps = first.steps();
        const per::Writer moved = std::move(first);
        EXPECT_ERROR(first.steps(), InvalidArgument, "writer is NULL");
        EXPECT_ERROR(first.add(steps), InvalidArgument, "writer is NULL");
        EXPECT_ERROR(first.describe(), InvalidArgument, "writer is NULL");
    }
    per::Writer third(channel.path());
    EXPECT_EQ(channel.stats().writers, 2);
    EXPECT_EQ(channel.stats().slots, 4);
    channel.flush(std::chrono::milliseconds(1000));
}

TEST(Channel, refuses_a_writer_of_other_fields) {
    per::ReplayBuffer buffer = small_buffer();
    per::Channel channel = buffer.channel();
    EXPECT_ERROR(per::Writer writer(channel.path(), {per::field<float>("observation", {2})}), InvalidArgument,
                 "n_fields is 1");
    per::Writer writer(channel.path());
    per::Steps others = buffer.steps();
    EXPECT_ERROR(writer.add(others), InvalidArgument, "another writer");
}

}  // namespace

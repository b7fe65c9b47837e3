// Readers take the batches that the buffer draws, and all three handles close on destruction.
#include <gtest/gtest.h>
#include <per.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "buffers.h"

namespace {

per::SharedLoaderOptions options_for(int64_t readers) {
    per::SharedLoaderOptions options;
    options.batch_size = 4;
    options.readers = readers;
    return options;
}

TEST(SharedLoader, gives_what_the_buffer_draws) {
    per::ReplayBuffer buffer = small_buffer(), twin = small_buffer();
    add_episode(buffer, 8);
    add_episode(twin, 8);
    per::SharedLoader loader = buffer.shared_loader(options_for(1));
    per::Reader reader(loader.path());
    EXPECT_EQ(reader.batch_size(), 4);
    EXPECT_EQ(reader.describe().n_envs, 1);
    for (int k = 0; k < 5; ++k) {
        per::ReadBatch batch = reader.take();
        const per::Batch expected = twin.sample(4);
        for (std::size_t i = 0; i < 4; ++i) {
            EXPECT_EQ(batch.ids()[i], expected.ids()[i]);
            EXPECT_EQ(batch.weights()[i], expected.weights()[i]);
            EXPECT_EQ(batch.field<float>("observation")[2 * i], expected.field<float>("observation")[2 * i]);
        }
        EXPECT_EQ(batch.shape("observation"), expected.shape("observation"));
        batch.release();
    }
    EXPECT_EQ(loader.stats().handed, 5);
}

TEST(SharedLoader, takes_priorities_back) {
    per::ReplayBuffer buffer = small_buffer();
    add_episode(buffer, 8);
    per::SharedLoader loader = buffer.shared_loader(options_for(1));
    per::Reader reader(loader.descriptor());
    const std::vector<int64_t> ids = {1, 2};
    const std::vector<float> values = {3, 5};
    std::vector<float> found(2);
    reader.set_priorities(ids, values);
    reader.flush();
    buffer.priorities(ids, found);
    EXPECT_EQ(found, values);
    reader.update_priorities(ids, values);
    reader.flush(std::chrono::milliseconds(10000));
    buffer.priorities(ids, found);
    EXPECT_GT(found[1], 5);
    EXPECT_ERROR(reader.update_priorities(ids, found, 2), InvalidArgument, "td_errors");
    EXPECT_ERROR(reader.update_sequences(ids, 1, found), InvalidArgument, "n_steps");
    per::Reader moved = std::move(reader);
    EXPECT_ERROR(reader.update_priorities(ids, values), InvalidArgument, "reader is NULL");
    EXPECT_ERROR(reader.set_priorities(ids, values), InvalidArgument, "reader is NULL");
    EXPECT_ERROR(reader.take(), InvalidArgument, "reader is NULL");
    moved.update_priorities(ids, values);
}

TEST(SharedLoader, gives_slots_back_by_itself) {
    per::ReplayBuffer buffer = small_buffer();
    add_episode(buffer, 8);
    per::SharedLoader loader = buffer.shared_loader(options_for(2));
    per::Reader reader(loader.path());
    {
        const per::ReadBatch first = reader.take(), second = reader.take();
        EXPECT_FALSE(reader.take(std::chrono::milliseconds(10)).has_value());
        const per::Reader other(loader.path());
        EXPECT_ERROR(per::Reader third(loader.path()), Busy, "2 readers already");
    }
    for (int k = 0; k < 10; ++k) EXPECT_TRUE(reader.take(std::chrono::milliseconds(10000)).has_value());
    reader.stop();
    EXPECT_ERROR(reader.take(), InvalidArgument, "reader was stopped");
}

}  // namespace

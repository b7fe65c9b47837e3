// Handles are moved, never copied, and freed once. The ASan build detects a handle that is freed twice or never.
#include <gtest/gtest.h>
#include <per.hpp>

#include <chrono>
#include <type_traits>
#include <utility>
#include <vector>

#include "buffers.h"

namespace {

template <class Handle>
constexpr bool is_moved_only =
    std::is_nothrow_move_constructible_v<Handle>&& std::is_nothrow_move_assignable_v<Handle> &&
    !std::is_copy_constructible_v<Handle> && !std::is_copy_assignable_v<Handle>;
static_assert(is_moved_only<per::SumTree> && is_moved_only<per::ReplayBuffer> && is_moved_only<per::Epochs> &&
              is_moved_only<per::Loader> && is_moved_only<per::Slot> && is_moved_only<per::Batch> &&
              is_moved_only<per::Coordinator>);

TEST(Handle, moves_and_leaves_nothing_behind) {
    per::SumTree first = small_tree();
    per_tree* const handle = first.get();
    per::SumTree second = std::move(first);
    EXPECT_EQ(second.get(), handle);
    EXPECT_EQ(first.get(), nullptr);
    EXPECT_ERROR(first.describe(), InvalidArgument, "NULL");
    first = small_tree();
    first = std::move(second);  // frees its previous handle
    EXPECT_EQ(first.get(), handle);
    EXPECT_EQ(first.describe().capacity, 4);
}

TEST(Handle, of_a_buffer_that_was_moved_from_is_refused_by_every_method) {
    per::ReplayBuffer buffer = small_buffer();
    per::Steps steps = buffer.steps();
    per::Batch batch = buffer.batch(2);
    per::FieldArrays arrays = buffer.field_arrays();
    const per::ReplayBuffer other = std::move(buffer);
    const std::vector<int64_t> ids = {0};
    const std::vector<float> values = {1};
    EXPECT_EQ(buffer.get(), nullptr);
    EXPECT_ERROR(buffer.describe(), InvalidArgument, "replay is NULL");
    EXPECT_ERROR(buffer.steps(), InvalidArgument, "replay is NULL");
    EXPECT_ERROR(buffer.field_arrays(), InvalidArgument, "replay is NULL");
    EXPECT_ERROR(buffer.field_number("action"), InvalidArgument, "replay is NULL");
    EXPECT_ERROR(buffer.add(steps), InvalidArgument, "replay is NULL");
    EXPECT_ERROR(buffer.batch(2), InvalidArgument, "replay is NULL");
    EXPECT_ERROR(buffer.sample(batch), InvalidArgument, "replay is NULL");
    EXPECT_ERROR(buffer.sample(2), InvalidArgument, "replay is NULL");
    EXPECT_ERROR(buffer.update_priorities(ids, values), InvalidArgument, "replay is NULL");
    EXPECT_ERROR(buffer.get(ids), InvalidArgument, "replay is NULL");
    EXPECT_ERROR(buffer.set(ids, arrays), InvalidArgument, "replay is NULL");
    EXPECT_ERROR(buffer.epochs(1, 1), InvalidArgument, "replay is NULL");
    EXPECT_ERROR(buffer.loader(per::LoaderOptions()), InvalidArgument, "replay is NULL");
    EXPECT_ERROR(buffer.bootstraps(), InvalidArgument, "replay is NULL");
    EXPECT_ERROR(buffer.live_ids(), InvalidArgument, "replay is NULL");
    EXPECT_ERROR(buffer.hindsight<float>("observation", "goal", nullptr), InvalidArgument, "replay is NULL");
}

TEST(Handle, of_a_loader_or_a_walk_that_was_moved_from_is_refused) {
    per::ReplayBuffer buffer = small_buffer();
    add_episode(buffer, 3);
    per::Epochs walk = buffer.epochs(1, 2);
    per::Epochs other_walk = std::move(walk);
    EXPECT_ERROR(walk.next(), InvalidArgument, "epochs is NULL");
    EXPECT_TRUE(other_walk.next());
    per::LoaderOptions options;
    options.batch_size = 2;
    per::Loader loader = buffer.loader(options);
    per::Loader other_loader = std::move(loader);
    EXPECT_ERROR(loader.take(), InvalidArgument, "loader is NULL");
    EXPECT_ERROR(loader.take(std::chrono::milliseconds(0)), InvalidArgument, "loader is NULL");
    EXPECT_ERROR(loader.stop(), InvalidArgument, "loader is NULL");
    EXPECT_EQ(other_loader.take().size(), 2);
}

TEST(Handle, is_given_away_and_taken_over) {
    per::ReplayBuffer first = small_buffer();
    add_episode(first, 3);
    per_replay* const handle = first.release();
    EXPECT_EQ(first.get(), nullptr);
    per::ReplayBuffer second(handle);
    EXPECT_EQ(second.live(), 3);
    EXPECT_EQ(second.sample(4).field<float>("observation").size(), 8U);
    per::SumTree tree(small_tree().release());
    EXPECT_EQ(tree.describe().capacity, 4);
}

TEST(Handle, of_a_moved_buffer_keeps_what_was_made_for_it) {
    per::ReplayBuffer first = small_buffer();
    per::Batch batch = first.batch(5);
    per::ReplayBuffer second = std::move(first);
    add_episode(second, 3);
    second.sample(batch);
    EXPECT_EQ(batch.size(), 5);
    per::Batch moved = std::move(batch);
    second.sample(moved);
    EXPECT_EQ(moved.ids().size(), 5U);
    // The arrays are those of `moved` now.
    EXPECT_EQ(batch.size(), 0);
    EXPECT_TRUE(batch.ids().empty() && batch.field<float>("observation").empty());
    EXPECT_EQ(batch.get().ids, nullptr);
    EXPECT_ERROR(second.sample(batch), InvalidArgument, "batch was made for another buffer, or was moved from");
    batch = std::move(moved);
    EXPECT_ERROR(small_buffer().sample(batch), InvalidArgument, "batch was made for another buffer");
    second.sample(batch);
    EXPECT_EQ(batch.ids().size(), 5U);

    per::Steps steps = second.steps();
    const per::Steps moved_steps = std::move(steps);
    EXPECT_ERROR(steps.fields["observation"], InvalidArgument, "the steps were moved from");
}

TEST(Handle, takes_only_what_was_made_for_it) {
    per::ReplayBuffer buffer = small_buffer(), other = small_buffer();
    add_episode(buffer, 3);
    per::Batch batch = other.batch(2);
    const per::Hindsight hindsight = other.hindsight<float>("observation", "goal", nullptr);
    EXPECT_ERROR(buffer.sample(batch), InvalidArgument, "another buffer");
    EXPECT_ERROR(buffer.add(other.steps()), InvalidArgument, "another buffer");
    EXPECT_ERROR(buffer.set({}, other.field_arrays()), InvalidArgument, "another buffer");
    EXPECT_ERROR(buffer.sample(2, nullptr, &hindsight), InvalidArgument, "another buffer");
    per::Batch rows = buffer.get(buffer.live_ids());
    EXPECT_ERROR(buffer.sample(rows), InvalidArgument, "ReplayBuffer::batch()");
}

}  // namespace

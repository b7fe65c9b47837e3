// Slots of loaders are released on destruction, and epochs end.
#include <gtest/gtest.h>
#include <per.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <ostream>
#include <set>
#include <streambuf>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "buffers.h"

namespace {

per::LoaderOptions loader_options(int64_t batch_size, int64_t slots) {
    per::LoaderOptions options;
    options.batch_size = batch_size;
    options.slots = slots;
    return options;
}

// A batch that outlived its slot would show the next draw.
template <class Held>
constexpr bool stays_held = !std::is_constructible_v<per::Batch, Held> && !std::is_constructible_v<per::Batch, Held&> &&
                            !std::is_assignable_v<per::Batch&, Held> && std::is_nothrow_move_constructible_v<Held> &&
                            std::is_nothrow_move_assignable_v<Held> && !std::is_copy_constructible_v<Held>;
static_assert(stays_held<per::Slot> && stays_held<per::ReadBatch>);

// take(0) would be a stream.
template <class Loader, class = void>
constexpr bool takes_zero = false;
template <class Loader>
constexpr bool takes_zero<Loader, std::void_t<decltype(std::declval<Loader&>().take(0))>> = true;
static_assert(!takes_zero<per::Loader>);

// Waits until a batch is drawn, without holding one.
void wait_for_a_batch(per::Loader& loader) {
    while (!loader.take(std::chrono::milliseconds(0))) std::this_thread::yield();
}

TEST(Loader, gives_the_batches_that_the_buffer_would_have_drawn) {
    per::ReplayBuffer buffer = small_buffer(), twin = small_buffer();
    add_episode(buffer, 10);
    add_episode(twin, 10);
    per::Loader loader = buffer.loader(loader_options(8, 2));
    for (int i = 0; i < 5; ++i) {
        const per::Slot slot = loader.take();
        const per::Batch expected = twin.sample(8);
        ASSERT_EQ(slot.size(), 8);
        ASSERT_EQ(slot.next_field<float>("observation").size(), 16U);
        for (std::size_t j = 0; j < 8; ++j) {
            EXPECT_EQ(slot.ids()[j], expected.ids()[j]);
            EXPECT_EQ(slot.reward()[j], expected.reward()[j]);
            EXPECT_EQ(slot.field<float>("observation")[2 * j + 1], expected.field<float>("observation")[2 * j + 1]);
        }
    }
}

TEST(Loader, a_slot_is_given_back_once_when_it_ends) {
    per::ReplayBuffer buffer = small_buffer();
    add_episode(buffer, 10);
    per::Loader loader = buffer.loader(loader_options(4, 1));
    {
        per::Slot first = loader.take();
        EXPECT_FALSE(loader.take(std::chrono::milliseconds(0))) << "the only slot is out";
        const per::Slot second = std::move(first);
        EXPECT_FALSE(loader.take(std::chrono::milliseconds(0))) << "it is still out";
    }
    per::Slot third = loader.take();
    const std::string latest_error = per_last_error();
    third.release();
    EXPECT_EQ(per_last_error(), latest_error) << "it was given back a second time";
    EXPECT_TRUE(third.ids().empty());
    EXPECT_TRUE(third.field<float>("observation").empty());
    EXPECT_TRUE(third.shape("observation").empty());
    per::Slot fourth = loader.take();
    EXPECT_ERROR(third.release(), InvalidArgument, "loader is NULL");
    EXPECT_FALSE(loader.take(std::chrono::milliseconds(0))) << "third has none to give back";
    third = std::move(fourth);
    EXPECT_EQ(third.ids().size(), 4U);
}

TEST(Loader, an_assigned_slot_gives_back_what_it_had) {
    per::ReplayBuffer buffer = small_buffer();
    add_episode(buffer, 10);
    per::Loader loader = buffer.loader(loader_options(4, 2));
    per::Slot slot = loader.take();
    for (int i = 0; i < 5; ++i) slot = loader.take();
    EXPECT_EQ(slot.size(), 4);
}

TEST(Loader, errors_of_a_draw_are_thrown_when_its_turn_comes) {
    per::ReplayBuffer buffer = small_buffer();
    per::Loader loader = buffer.loader(loader_options(4, 2));
    EXPECT_ERROR(loader.take(), Empty, "");
    add_episode(buffer, 3);
    EXPECT_EQ(loader.take().size(), 4);
    wait_for_a_batch(loader);
    EXPECT_ERROR(buffer.loader(loader_options(4, 2)), Busy, "");
    loader.stop();
    EXPECT_ERROR(loader.take(), InvalidArgument, "stopped");
    EXPECT_ERROR(loader.take(std::chrono::milliseconds(0)), InvalidArgument, "stopped");
}

TEST(Loader, may_be_moved_while_a_slot_is_out) {
    per::ReplayBuffer buffer = small_buffer();
    add_episode(buffer, 10);
    std::optional<per::Loader> first(buffer.loader(loader_options(4, 2)));
    per::Slot slot = first->take();
    per::Loader second = std::move(*first);
    first.reset();
    slot.release();
    EXPECT_EQ(second.take().size(), 4);
}

TEST(Loader, sequences_have_the_shapes_of_its_n_step) {
    per::ReplayOptions options = small_options();
    options.sequence_length = 3;
    options.n_step = 2;
    per::ReplayBuffer buffer = small_buffer(options);
    add_episode(buffer, 12);
    per::SampleOptions sample;
    sample.n_step = 1;
    per::LoaderOptions shorter = loader_options(4, 2);
    shorter.sample = &sample;
    {
        per::Loader loader = buffer.loader(shorter);
        EXPECT_EQ(loader.take().shape("observation"), (std::vector<int64_t>{4, 3 + 1, 2}));
    }
    per::Loader loader = buffer.loader(loader_options(4, 2));
    const per::Slot slot = loader.take();
    EXPECT_EQ(slot.shape("observation"), (std::vector<int64_t>{4, 3 + 2, 2}));
    EXPECT_EQ(slot.mask().size(), 12U);
    for (std::size_t i = 0; i < 4; ++i)
        EXPECT_EQ(slot.field<float>("observation")[10 * i], static_cast<float>(slot.ids()[i]));
}

TEST(Epochs, give_each_transition_once_an_epoch) {
    per::ReplayBuffer buffer = small_buffer();
    const std::vector<int64_t> ids = add_episode(buffer, 10);
    per::Epochs epochs = buffer.epochs(2, 4);
    std::vector<int64_t> sizes;
    std::multiset<int64_t> given;
    while (epochs.next()) {
        const per::Batch& batch = epochs.batch();
        sizes.push_back(batch.size());
        EXPECT_EQ(batch.field<float>("observation").size(), 2 * batch.ids().size());
        for (const int64_t id : batch.ids()) given.insert(id);
    }
    EXPECT_EQ(sizes, (std::vector<int64_t>{4, 4, 2, 4, 4, 2}));
    for (const int64_t id : ids) EXPECT_EQ(given.count(id), 2U);
    EXPECT_FALSE(epochs.next());
    EXPECT_TRUE(epochs.batch().ids().empty());

    per::Epochs dropping = buffer.epochs(1, 4, true);
    per_batch own;
    ASSERT_EQ(per_batch_init(&own, sizeof own), PER_OK);
    EXPECT_EQ(dropping.next(own), 4);
    EXPECT_TRUE(dropping.next());
    EXPECT_FALSE(dropping.next());
    EXPECT_ERROR(buffer.epochs(0, 4), InvalidArgument, "n_epochs is 0");
}

// Takes a batch while the buffer is saved.
struct Taking : std::streambuf {
    per::Loader* loader;
    int n_busy = 0;

    explicit Taking(per::Loader& loader) : loader(&loader) {}
    std::streamsize xsputn(const char*, std::streamsize n) override {
        EXPECT_ERROR(loader->take(), Busy, "the buffer is being saved");
        EXPECT_FALSE(loader->take(std::chrono::milliseconds(10)).has_value());
        ++n_busy;
        return n;
    }
};

TEST(Loader, is_busy_for_the_stream_of_a_save) {
    per::ReplayBuffer buffer = small_buffer();
    add_episode(buffer, 8);
    per::LoaderOptions options;
    options.batch_size = 2;
    per::Loader loader = buffer.loader(options);
    Taking taking(loader);
    std::ostream stream(&taking);
    buffer.save(stream);
    EXPECT_GT(taking.n_busy, 0);
    EXPECT_EQ(loader.take().size(), 2);
}

}  // namespace

// A thread that sleeps on a bell in shared memory is woken by the thread that makes its condition true. Normally it
// also wakes ten times a second, as the peer may die. Here it does not: if a bell is not rung, the wait never ends,
// which ends the test.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "../c/channel_check.h"
#include "../c/reader_check.h"
#include "process/batch_share.h"
#include "process/channel.h"
#include "process/labelled_memory.h"
#include "process/step_ring.h"

namespace per::test {
namespace {

using namespace std::chrono_literals;

// In some rounds the peer is not yet asleep when the bell rings: these test nothing.
constexpr int n_rounds = 20;
constexpr int64_t batch_size = 4;
constexpr int64_t slots = 64;

// Mostly long enough for a thread to fall asleep.
void pause() {
    std::this_thread::sleep_for(1ms);
}

class Bells : public testing::Test {
 protected:
    void SetUp() override {
        longest_sleep = 1h;
        alarm(200);
    }
    void TearDown() override {
        alarm(0);
        longest_sleep = sleep_before_;
        batch_wait = wait_before_;
    }

    const std::chrono::nanoseconds sleep_before_ = longest_sleep;
    const std::chrono::nanoseconds wait_before_ = batch_wait;
};

// The rate limiter allows five steps, then one more for each drawn transition.
per_replay* create_buffer(bool is_limited) {
    per_replay_options options = replay_options(1000, 1);
    options.rate_limit.samples_per_insert = is_limited ? 1 : 0;
    options.rate_limit.samples_tolerance = is_limited ? batch_size : 0;
    return create_replay(&options);
}

void add_steps(per_replay* replay, int first, int n) {
    for (int t = first; t < first + n; ++t)
        add_full(replay, 0, static_cast<float>(t), static_cast<float>(t), GOES_ON, static_cast<float>(t + 1));
}

per_status write(per_writer* writer, int t) {
    return write_step(writer, static_cast<float>(t), static_cast<float>(t + 1), 0, -1);
}

per_status draw_one(per_replay* replay) {
    static rows drawn;
    fill_rows(&drawn);
    return per_replay_sample(replay, nullptr, 1, &drawn.batch, nullptr);
}

// A call of another thread, and its result.
template <class Call>
class Waiting {
 public:
    explicit Waiting(Call made)
        : thread_([this, made] {
              status_ = made();
              is_over_ = true;
          }) {
        pause();
    }
    bool is_over() const { return is_over_; }
    per_status status() {
        thread_.join();
        return status_;
    }

 private:
    per_status status_ = PER_ERROR_INTERNAL;
    std::atomic<bool> is_over_ = false;
    std::thread thread_;
};

// ---------------------------------------------------------------------------------------------------------- channels

class ChannelBells : public Bells {
 protected:
    void open(bool is_limited, int64_t n_slots = slots) {
        replay_ = create_buffer(is_limited);
        channel_ = create_channel(replay_, 0, nullptr, n_slots, PER_FULL_WAITS);
        writer_ = attach(path_of(channel_));
    }
    void TearDown() override {
        per_writer_free(writer_);
        per_channel_free(channel_);  // its thread sleeps
        per_replay_free(replay_);
        Bells::TearDown();
    }

    per_replay* replay_ = nullptr;
    per_channel* channel_ = nullptr;
    per_writer* writer_ = nullptr;
};

TEST_F(ChannelBells, a_step_that_is_written_comes_into_the_buffer) {
    batch_wait = 0s;
    open(false);
    for (int t = 0; t < n_rounds; ++t) {
        pause();
        ASSERT_EQ(write(writer_, t), PER_OK);
        while (channel_stats(channel_).added <= t) pause();
    }
}

TEST_F(ChannelBells, a_writer_hears_of_room) {
    batch_wait = 0s;
    open(true, 2);
    Waiting writing([&] {
        for (int t = 0; t < n_rounds; ++t)
            if (const per_status status = write(writer_, t); status != PER_OK) return status;
        return PER_OK;
    });
    while (!writing.is_over()) {
        pause();
        draw_one(replay_);
    }
    EXPECT_EQ(writing.status(), PER_OK);
    EXPECT_GT(channel_stats(channel_).waits, 0);
}

TEST_F(ChannelBells, a_flush_does_not_wait_for_more_steps) {
    batch_wait = 1h;
    open(false);
    for (int t = 0; t < n_rounds; ++t) {
        ASSERT_EQ(write(writer_, t), PER_OK);
        pause();
        ASSERT_EQ(per_channel_flush(channel_, -1), PER_OK) << per_last_error();
        ASSERT_EQ(channel_stats(channel_).added, t + 1);
    }
}

// The writer's flush may ring before the thread waits for more steps, and must then skip that wait.
TEST_F(ChannelBells, a_flush_of_the_writer_does_not_wait_for_more_steps) {
    batch_wait = 1h;
    open(false);
    for (int t = 0; t < n_rounds; ++t) {
        ASSERT_EQ(write(writer_, t), PER_OK);
        per_status status = PER_ERROR_BUSY;
        while (status == PER_ERROR_BUSY) status = per_writer_flush(writer_, 1);
        ASSERT_EQ(status, PER_OK) << per_last_error();
        ASSERT_EQ(channel_stats(channel_).added, t + 1);
    }
}

TEST_F(ChannelBells, a_flush_hears_that_steps_came_in) {
    open(true);
    for (int t = 0; t < 10; ++t) ASSERT_EQ(write(writer_, t), PER_OK);
    Waiting flushing([&] { return per_channel_flush(channel_, -1); });
    Waiting flushing_writer([&] { return per_writer_flush(writer_, -1); });
    ASSERT_EQ(per_replay_stop_limiting(replay_), PER_OK);
    EXPECT_EQ(flushing.status(), PER_OK);
    EXPECT_EQ(flushing_writer.status(), PER_OK);
}

TEST_F(ChannelBells, who_waits_hears_that_the_writer_was_cut_off) {
    open(true);
    for (int t = 0; t < 10; ++t) ASSERT_EQ(write(writer_, t), PER_OK);
    Waiting flushing([&] { return per_channel_flush(channel_, -1); });
    Waiting flushing_writer([&] { return per_writer_flush(writer_, -1); });
    while (channel_stats(channel_).added < 5) pause();
    const StepRing forger(path_of(channel_), -1);
    for (int64_t slot = 8; slot <= 10; ++slot) forger.kind(slot) = slot_kinds;  // slots 0 to 5 are taken: cut and steps
    ASSERT_EQ(draw_one(replay_), PER_OK) << per_last_error();
    while (channel_stats(channel_).added < 6) pause();  // slot 6 is taken: next, the forged kinds are read
    ASSERT_EQ(per_replay_stop_limiting(replay_), PER_OK);
    EXPECT_EQ(flushing.status(), PER_ERROR_CORRUPT_FILE);
    EXPECT_EQ(flushing_writer.status(), PER_ERROR_INVALID_ARGUMENT);
}

TEST_F(ChannelBells, the_end_of_a_channel_waits_for_no_draw) {
    open(true);
    for (int t = 0; t < 10; ++t) ASSERT_EQ(write(writer_, t), PER_OK);
    pause();
    per_channel_free(channel_);
    channel_ = nullptr;
    EXPECT_EQ(stats_of(replay_).added, 10);
}

// ----------------------------------------------------------------------------------------------------------- readers

class ReaderBells : public Bells {
 protected:
    void open(bool is_limited, int n_steps) {
        replay_ = create_buffer(is_limited);
        add_steps(replay_, 0, n_steps);
        loader_ = share_batches(replay_, batch_size, 1, 2, nullptr);
        pause();
        reader_ = attach_reader(path_of_batches(loader_));
    }
    void TearDown() override {
        per_reader_free(reader_);
        per_shared_loader_free(loader_);  // its thread sleeps
        per_replay_free(replay_);
        Bells::TearDown();
    }
    per_status take() {
        per_batch batch;
        int64_t slot;
        return try_read(reader_, -1, &batch, &slot);
    }
    void take_all() {
        for (int i = 0; i < 2; ++i) ASSERT_EQ(take(), PER_OK) << per_last_error();
    }

    per_replay* replay_ = nullptr;
    per_shared_loader* loader_ = nullptr;
    per_reader* reader_ = nullptr;
};

TEST_F(ReaderBells, each_call_is_answered) {
    open(false, 50);
    for (int i = 0; i < n_rounds; ++i) {
        per_batch batch;
        pause();
        const int64_t slot = read_batch(reader_, &batch);
        const float errors[batch_size] = {1, 2, 3, 4};
        pause();
        ASSERT_EQ(send_td_errors(reader_, batch_size, batch.ids, 1, errors, -1), PER_OK);
        ASSERT_EQ(per_reader_flush(reader_, -1), PER_OK) << per_last_error();
        pause();
        ASSERT_EQ(per_reader_release(reader_, slot), PER_OK);
        ASSERT_EQ(per_reader_flush(reader_, -1), PER_OK);
        per_reader_free(reader_);
        pause();
        reader_ = attach_reader(path_of_batches(loader_));
        ASSERT_EQ(per_reader_flush(reader_, -1), PER_OK);
    }
}

TEST_F(ReaderBells, a_slot_that_is_given_back_is_for_who_waits) {
    open(false, 50);
    per_batch batch;
    const int64_t slot = read_batch(reader_, &batch);
    ASSERT_EQ(take(), PER_OK);
    Waiting taking([&] { return take(); });
    ASSERT_EQ(per_reader_release(reader_, slot), PER_OK);
    EXPECT_EQ(taking.status(), PER_OK);
}

TEST_F(ReaderBells, who_waits_hears_that_the_rate_limiter_allows_a_draw) {
    open(true, 0);
    for (int i = 0; i < n_rounds; ++i) {
        Waiting taking([&] {
            per_batch batch;
            int64_t slot;
            const per_status status = try_read(reader_, -1, &batch, &slot);
            return status == PER_OK ? per_reader_release(reader_, slot) : status;
        });
        add_steps(replay_, 0, i == 0 ? 1 : batch_size);
        ASSERT_EQ(taking.status(), PER_OK);
    }
}

TEST_F(ReaderBells, who_waits_hears_that_the_reader_was_stopped) {
    open(false, 50);
    take_all();
    Waiting taking([&] { return take(); });
    ASSERT_EQ(per_reader_stop(reader_), PER_OK);
    EXPECT_EQ(taking.status(), PER_ERROR_INVALID_ARGUMENT);
}

TEST_F(ReaderBells, who_waits_hears_that_the_loader_was_closed) {
    open(false, 50);
    take_all();
    Waiting taking([&] { return take(); });
    per_shared_loader_free(loader_);
    loader_ = nullptr;
    EXPECT_EQ(taking.status(), PER_ERROR_INVALID_ARGUMENT);
}

TEST_F(ReaderBells, who_waits_hears_that_the_reader_was_cut_off) {
    open(false, 50);
    take_all();
    Waiting taking([&] { return take(); });
    const BatchShare forger(path_of_batches(loader_), -1);
    forger.mailbox(0).written += uint64_t{1} << 40;
    forger.header().loader_bell.ring();
    EXPECT_EQ(taking.status(), PER_ERROR_CORRUPT_FILE);
}

}  // namespace
}  // namespace per::test

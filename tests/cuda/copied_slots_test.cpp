// The slots of a loader on CUDA without the loader: batches are passed around under adversarial schedules of the device
// on one host thread, so a seed reproduces a schedule that corrupts a batch. These tests detect faults in the fences.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>
#include <vector>

#include "../cpp/replay_call.h"
#include "backend/create.h"
#include "base/error.h"
#include "cuda/runtime/staging.h"
#include "simulator.h"
#include "steered_simulator.h"

namespace per {
namespace {

constexpr std::size_t n_slots = 4;
constexpr int64_t batch_size = 5;
constexpr std::size_t n_batches = 40;

Fields declared_fields() {
    static const int64_t shape[] = {3};
    per_field declared[2] = {};
    declared[0].name = "observation";
    declared[0].shape = shape;
    declared[0].ndim = 1;
    declared[0].dtype = PER_UINT8;
    declared[1].name = "action";
    declared[1].dtype = PER_INT64;
    per_replay_options options = test::Buffer::options(10);
    options.fields = declared;
    options.n_fields = 2;
    options.field_size = sizeof(per_field);
    return Fields(options);
}

// The arrays of a batch that a consumer reads: the first, the last and a middle one of the slot.
struct Seen {
    uint8_t observations[batch_size * 3];
    int64_t ids[batch_size];
    float probabilities[batch_size];
};

class CopiedSlots : public test::TwoStreams {
 protected:
    static void draw(const per_batch& batch, int64_t serial) {
        std::memset(batch.fields[0], static_cast<int>(serial), batch_size * 3);
        std::fill_n(batch.ids, batch_size, serial);
        std::fill_n(batch.probabilities, batch_size, static_cast<float>(serial));
    }

    // Uses a batch as a network would: reads it, and writes to it.
    static void queue_use(const per_batch& batch, Seen& seen, cudaStream_t stream) {
        const auto copy = [&](void* to, const void* from, std::size_t bytes) {
            cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
        };
        copy(seen.observations, batch.fields[0], sizeof seen.observations);
        copy(seen.ids, batch.ids, sizeof seen.ids);
        copy(seen.probabilities, batch.probabilities, sizeof seen.probabilities);
        cudaMemsetAsync(batch.ids, 0xEE, sizeof seen.ids, stream);
        cudaMemsetAsync(batch.fields[0], 0xEE, sizeof seen.observations, stream);
    }

    static void expect_seen(const Seen& seen, int64_t serial) {
        for (const uint8_t byte : seen.observations) ASSERT_EQ(byte, serial);
        for (const int64_t id : seen.ids) ASSERT_EQ(id, serial);
        for (const float probability : seen.probabilities) ASSERT_EQ(probability, static_cast<float>(serial));
    }

    // Draws, hands out and releases batches in an order given by `seed`, each on one stream or another.
    void go_round(uint64_t seed) {
        simulator::options().seed = seed;
        std::minstd_rand random(static_cast<unsigned>(seed));
        const auto below = [&](std::size_t n) { return random() / 7 % n; };
        const auto slots = cuda::create_copied_slots(0, declared_fields(), {batch_size, 0, 1}, n_slots);
        std::vector<Seen> seen(n_batches);
        std::vector<std::size_t> idle = {0, 1, 2, 3};
        std::deque<std::size_t> drawn;
        std::vector<std::pair<std::size_t, cudaStream_t>> out;
        std::size_t n_drawn = 0, n_handed_out = 0;
        while (n_handed_out < n_batches) {
            const std::size_t step = below(3);
            if (step == 0 && !idle.empty() && n_drawn < n_batches) {
                std::swap(idle[below(idle.size())], idle.back());
                const std::size_t slot = idle.back();
                idle.pop_back();
                draw(slots->open(slot).batch, static_cast<int64_t>(n_drawn++));
                slots->send(slot);
                drawn.push_back(slot);
            } else if (step == 1 && !drawn.empty()) {
                const std::size_t slot = drawn.front();
                drawn.pop_front();
                cudaStream_t stream = streams_[below(2)];
                queue_use(slots->hand_out(slot, stream), seen[n_handed_out++], stream);
                out.emplace_back(slot, stream);
            } else if (step == 2 && !out.empty()) {
                std::swap(out[below(out.size())], out.back());
                slots->release(out.back().first, out.back().second);
                idle.push_back(out.back().first);
                out.pop_back();
            }
        }
        for (cudaStream_t stream : streams_) cudaStreamSynchronize(stream);
        for (std::size_t i = 0; i < n_batches; ++i) expect_seen(seen[i], static_cast<int64_t>(i));
    }
};

TEST_F(CopiedSlots, no_schedule_corrupts_a_batch) {
    for (uint64_t seed = 0; seed < 200; ++seed) {
        go_round(seed);
        ASSERT_FALSE(HasFailure()) << "seed " << seed;
    }
}

TEST_F(CopiedSlots, only_opening_waits_and_nothing_allocates) {
    const auto slots = cuda::create_copied_slots(0, declared_fields(), {batch_size, 0, 1}, n_slots);
    std::vector<Seen> seen(20);
    simulator::reset_counters();
    for (std::size_t i = 0; i < seen.size(); ++i) {
        const std::size_t slot = i % n_slots;
        const uint64_t waits = simulator::counters().host_waits;
        draw(slots->open(slot).batch, static_cast<int64_t>(i));
        EXPECT_EQ(simulator::counters().host_waits, waits + 1);
        slots->send(slot);
        queue_use(slots->hand_out(slot, streams_[0]), seen[i], streams_[0]);
        slots->release(slot, streams_[0]);
        EXPECT_EQ(simulator::counters().host_waits, waits + 1);
    }
    EXPECT_EQ(simulator::counters().allocations, 0u);
    EXPECT_EQ(simulator::counters().launches, 0u);
    cudaStreamSynchronize(streams_[0]);
    for (std::size_t i = 0; i < seen.size(); ++i) expect_seen(seen[i], static_cast<int64_t>(i));
}

// A batch whose copy failed is copied when it is handed out, and is not drawn again meanwhile.
TEST_F(CopiedSlots, a_copy_that_failed_is_made_when_the_batch_is_handed_out) {
    const auto slots = cuda::create_copied_slots(0, declared_fields(), {batch_size, 0, 1}, n_slots);
    int n_failed = 0;
    for (uint64_t n = 0; n < 6; ++n) {
        Seen seen = {};
        draw(slots->open(n % n_slots).batch, static_cast<int64_t>(n));
        simulator::fail_call(n, cudaErrorInvalidValue);
        slots->send(n % n_slots);
        n_failed += !simulator::fail_call(0, 0);
        queue_use(slots->hand_out(n % n_slots, streams_[0]), seen, streams_[0]);
        slots->release(n % n_slots, streams_[0]);
        cudaStreamSynchronize(streams_[0]);
        expect_seen(seen, static_cast<int64_t>(n));
    }
    EXPECT_GE(n_failed, 3);
}

// If the event after a copy cannot be recorded, only the stream shows when the copy is complete.
TEST(Staging, fills_no_buffer_again_whose_copy_may_be_under_way) {
    for (simulator::options().seed = 1; simulator::options().seed < 20; ++simulator::options().seed) {
        cudaStream_t stream;
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        void* copied = nullptr;
        ASSERT_EQ(cudaMalloc(&copied, 8), cudaSuccess);
        {
            cuda::Staging staging(8);
            std::memset(staging.host(), 1, 8);
            simulator::fail_call(1, cudaErrorInvalidValue);
            EXPECT_THROW(staging.send(static_cast<std::byte*>(copied), 8, stream), Error);
            EXPECT_FALSE(simulator::fail_call(0, 0));
            std::memset(staging.host(), 2, 8);
            cudaStreamSynchronize(stream);
            EXPECT_EQ(*static_cast<uint64_t*>(copied), 0x0101010101010101u);
        }
        cudaFree(copied);
        cudaStreamDestroy(stream);
    }
    simulator::options().seed = 1;
}

}  // namespace
}  // namespace per

// A device that runs out of memory, or fails while a buffer is created: no handle and no other resource is left, and a
// handle whose call failed is unchanged.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <string>

#include "replay_twins.h"
#include "simulator.h"
#include "steered_simulator.h"

namespace per::test {
namespace {

class CudaMemory : public SteeredSimulator {};

per_field observation() {
    per_field field = {};
    field.name = "observation";
    field.dtype = PER_FLOAT32;
    return field;
}

// Options of a buffer that allocates several blocks of memory.
per_replay_options options_of(const per_field& field) {
    per_replay_options options = twin_options();
    options.prioritization = PER_RANK;
    options.fields = &field;
    options.n_fields = 1;
    options.field_size = sizeof(per_field);
    options.device = PER_CUDA;
    return options;
}

uint64_t bytes_of(const per_replay_options& options) {
    const uint64_t before = simulator::held().bytes;
    per_replay* replay = nullptr;
    EXPECT_EQ(per_replay_create(&options, &replay), PER_OK) << per_last_error();
    const uint64_t bytes = simulator::held().bytes - before;
    per_replay_free(replay);
    return bytes;
}

void expect_out_of_memory(per_status status) {
    expect_status(PER_ERROR_OUT_OF_MEMORY, status, "cudaErrorMemoryAllocation");
}

TEST_F(CudaMemory, a_failing_call_of_creation_leaves_no_handle_and_no_leak) {
    const per_field field = observation();
    const per_replay_options options = options_of(field);
    const simulator::Held before = simulator::held();
    int n_failed = 0;
    for (uint64_t n = 0; n < 120; ++n) {
        simulator::fail_call(n, n % 2 == 0 ? cudaErrorMemoryAllocation : cudaErrorInvalidValue);
        per_replay* replay = nullptr;
        const per_status status = per_replay_create(&options, &replay);
        simulator::fail_call(0, 0);
        EXPECT_EQ(replay == nullptr, status != PER_OK);
        n_failed += status != PER_OK;
        per_replay_free(replay);
        EXPECT_EQ(simulator::held(), before) << n;
    }
    EXPECT_GT(n_failed, 10);
}

TEST_F(CudaMemory, a_device_without_room_for_a_buffer_is_as_it_was) {
    const per_field field = observation();
    const per_replay_options options = options_of(field);
    const simulator::Held before = simulator::held();
    const uint64_t needed = bytes_of(options);
    int n_failed = 0;
    for (uint64_t room = 0; room <= needed; room += needed / 30) {
        simulator::options().memory_bytes = before.bytes + room;
        per_replay* replay = nullptr;
        const per_status status = per_replay_create(&options, &replay);
        if (status != PER_OK) expect_out_of_memory(status);
        EXPECT_EQ(replay == nullptr, status != PER_OK);
        n_failed += status != PER_OK;
        per_replay_free(replay);
        EXPECT_EQ(simulator::held(), before);
    }
    EXPECT_GT(n_failed, 10);
}

// These calls allocate memory that the buffer did not reserve.
TEST_F(CudaMemory, a_draw_without_room_for_what_it_allocates_is_none) {
    Twins twins(twin_options());
    TwinWalk walk = twins.begin(9, 20);
    const per_sample_options by_rank = sample_options(PER_RANK);
    const per_sample_options by_largest = sample_options(of_buffer, PER_BUFFER_MAX);
    TwinBatch small(4), large(5000);
    const per_batch batch = small.batch(), large_batch = large.batch();
    const simulator::Held before = simulator::held();
    simulator::options().memory_bytes = 0;
    for (int round = 0; round < 2; ++round) {
        for (const per_sample_options* const options : {&by_rank, &by_largest})
            expect_out_of_memory(per_replay_sample(twins.gpu.get(), options, 4, &batch, twins.stream));
        expect_out_of_memory(per_replay_sample(twins.gpu.get(), nullptr, 5000, &large_batch, twins.stream));
        EXPECT_EQ(simulator::held(), before);
        if (round == 0) twins.use(walk, 5);
    }
    simulator::options() = options_;
    twins.use(walk, 5);
    EXPECT_EQ(twins.sample(4, &by_rank).size(), 4u);
    EXPECT_EQ(twins.sample(4, &by_largest).size(), 4u);
    EXPECT_EQ(twins.sample(5000).size(), 5000u);
    twins.use(walk, 5);
}

}  // namespace
}  // namespace per::test

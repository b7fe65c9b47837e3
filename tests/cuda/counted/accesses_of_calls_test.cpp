// The components of latency, counted for each call on the simulated GPU: launches, round trips to device memory,
// barriers, atomics that wait for each other, and, if the kernels are translated PTX (translation.h), instructions.
// docs/maintainers/cuda.md has these numbers.
#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <per.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "../../../bench/gpu/conditions.h"
#include "../../c/struct_calls.h"
#include "accesses.h"
#include "simulator.h"
#include "translation.h"

namespace per::test {
namespace {

// This many leaves have as many levels of sums as 10^6.
constexpr int64_t capacity = 40000;

// The counts of one call, kernel by kernel; see accesses.h, and for instructions translation.h.
struct Counts {
    uint64_t launches;
    uint64_t phases;
    uint64_t round_trips;
    uint64_t barriers;
    uint64_t atomics_of_line;
    uint64_t bytes;
    uint64_t instructions = 0;
    uint64_t blocks = 0;             // of the kernel with the most blocks; 0: not checked
    uint64_t most_instructions = 0;  // a goal; 0: a twentieth more than counted, as other versions of nvcc may need
};

class DeviceMemory {
 public:
    template <class T>
    T* array(int64_t n) {
        void* memory = nullptr;
        EXPECT_EQ(cudaMalloc(&memory, static_cast<std::size_t>(n) * sizeof(T)), cudaSuccess);
        std::memset(memory, 0, static_cast<std::size_t>(n) * sizeof(T));
        blocks_.push_back(memory);
        return static_cast<T*>(memory);
    }
    ~DeviceMemory() {
        for (void* const block : blocks_) cudaFree(block);
    }

 private:
    std::vector<void*> blocks_;
};

class AccessesOfCalls : public testing::Test {
 protected:
    void SetUp() override {
        simulator::options().seed = 0;  // each call does its work at once
        simulator::options().has_host_memory = true;
        simulator::options().n_multiprocessors = 132;  // as an H100 has
    }
    void TearDown() override { simulator::options() = options_; }

    // Compares the counts of a call. Also prints its row of the table in docs/maintainers/cuda.md, followed by atomics
    // of a line, bytes and blocks. Round trips depend on how a compiler divides the code into pieces, and bytes on what
    // it keeps in registers: both may be up to a quarter larger. Of translated kernels only launches and instructions
    // are known. Another nvcc may need up to a twentieth more of these.
    template <class Call>
    void expect(const char* name, const Counts& expected, const Call& call) {
        simulator::take_accesses();
        simulator::take_instructions();
        simulator::reset_counters();
        EXPECT_EQ(call(), PER_OK) << per_last_error();
        Counts counts = {simulator::counters().launches, 0, 0, 0, 0, 0, simulator::take_instructions()};
        EXPECT_EQ(counts.launches, expected.launches) << name;
        if (simulator::translated_architecture() != 0) {
            std::printf("| %s | %d instructions |\n", name, static_cast<int>(counts.instructions));
            EXPECT_GT(counts.instructions, 0u) << name;
            const uint64_t goal = expected.most_instructions;
            EXPECT_LE(counts.instructions, goal != 0 ? goal : expected.instructions * 21 / 20) << name;
            return;
        }
        for (const simulator::KernelAccesses& kernel : simulator::take_accesses()) {
            counts.phases += kernel.phases;
            counts.round_trips += kernel.round_trips;
            counts.barriers += kernel.barriers;
            counts.bytes += kernel.bytes;
            counts.blocks = std::max<uint64_t>(counts.blocks, kernel.n_blocks);
            counts.atomics_of_line = std::max(counts.atomics_of_line, kernel.atomics_of_line);
        }
        std::printf("| %s | %d | %d - %d | %d | %d | %d | %d |\n", name, static_cast<int>(counts.launches),
                    static_cast<int>(counts.phases), static_cast<int>(counts.round_trips),
                    static_cast<int>(counts.barriers), static_cast<int>(counts.atomics_of_line),
                    static_cast<int>(counts.bytes), static_cast<int>(counts.blocks));
        EXPECT_LE(counts.phases, expected.phases) << name;
        EXPECT_LE(counts.round_trips, expected.round_trips * 5 / 4) << name;
        EXPECT_LE(counts.barriers, expected.barriers) << name;
        EXPECT_LE(counts.atomics_of_line, expected.atomics_of_line) << name;
        EXPECT_LE(counts.bytes, expected.bytes * 5 / 4) << name;
        EXPECT_EQ(counts.blocks, expected.blocks == 0 ? counts.blocks : expected.blocks) << name;
    }

    DeviceMemory memory_;

 private:
    simulator::Options options_ = simulator::options();
};

per_tree* create_tree() {
    per_tree_options options;
    per_tree_options_init(&options, sizeof options);
    options.capacity = capacity;
    options.device = PER_CUDA;
    per_tree* tree = nullptr;
    EXPECT_EQ(per_tree_create(&options, &tree), PER_OK) << per_last_error();
    return tree;
}

TEST_F(AccessesOfCalls, of_a_tree) {
    constexpr int64_t most = 8192;
    int64_t* const indices = memory_.array<int64_t>(most);
    float* const priorities = memory_.array<float>(most);
    float* const weights = memory_.array<float>(most);
    for (int64_t i = 0; i < most; ++i) {
        indices[i] = i * 4391 % capacity;
        priorities[i] = 1.0f + static_cast<float>(i % 7);
    }
    per_tree* const tree = create_tree();
    const auto update = [&](int64_t count) {
        for (int64_t i = 0; i < count; ++i) priorities[i] += 1.0f;
        return per_update(tree, count, indices, priorities, nullptr);
    };
    ASSERT_EQ(update(most), PER_OK);
    const auto sample = [&](int64_t n) {
        return per_sample(tree, n, PER_STRATIFIED, 0.5, indices, nullptr, weights, nullptr);
    };
    expect("tree: update of 256", {1, 5, 11, 4, 106, 12408, 178, 1}, [&] { return update(256); });
    expect("tree: update of 1024", {1, 5, 11, 4, 422, 49464, 178, 1}, [&] { return update(1024); });
    expect("tree: update of 4096", {1, 7, 15, 5, 256, 170128, 387}, [&] { return update(4096); });
    expect("tree: update of 8192", {1, 7, 15, 5, 512, 340160, 387}, [&] { return update(8192); });
    expect("tree: draw of 256", {1, 5, 10, 6, 32, 337556, 531, 32}, [&] { return sample(256); });
    expect("tree: draw of 4096", {2, 4, 10, 5, 0, 5459984, 535, 512}, [&] { return sample(4096); });
    expect("tree: draw of 256 without replacement", {1, 51, 53, 17, 3, 166604, 1041},
           [&] { return per_sample(tree, 256, PER_WITHOUT_REPLACEMENT, 0.5, indices, nullptr, weights, nullptr); });
    EXPECT_EQ(per_tree_synchronize(tree, nullptr), PER_OK);
    per_tree_free(tree);
}

// Rows of 165 bytes in a batch: two observations of 16 numbers, an action of 4, and the arrays of every batch.
struct Arrays {
    Arrays(DeviceMemory& memory, int64_t n_rows)
        : fields{memory.array<float>(n_rows * 16), memory.array<float>(n_rows * 4)},
          next_fields{memory.array<float>(n_rows * 16), nullptr},
          reward(memory.array<float>(n_rows)),
          ends(memory.array<uint8_t>(n_rows)),
          priorities(memory.array<float>(n_rows)) {
        per_batch_init(&batch, sizeof batch);
        batch.fields = fields;
        batch.next_fields = next_fields;
        batch.reward = memory.array<float>(n_rows);
        batch.discount = memory.array<float>(n_rows);
        batch.weights = memory.array<float>(n_rows);
        batch.ids = memory.array<int64_t>(n_rows);
        batch.terminated = memory.array<uint8_t>(n_rows);
        for (int64_t i = 0; i < n_rows; ++i) priorities[i] = 1.0f + static_cast<float>(i % 5);
    }

    per_status add(per_replay* replay, int64_t length) {
        const per_array given[2] = {{fields[0], nullptr, 0, PER_FLOAT32, nullptr},
                                    {fields[1], nullptr, 0, PER_FLOAT32, nullptr}};
        per_steps steps;
        per_steps_init(&steps, sizeof steps);
        steps.length = length;
        steps.fields = given;
        steps.reward = {reward, nullptr, 0, PER_FLOAT32, nullptr};
        steps.terminated = {ends, nullptr, 0, PER_BOOL, nullptr};
        steps.truncated = {ends, nullptr, 0, PER_BOOL, nullptr};
        return per_replay_add(replay, &steps, nullptr, nullptr);
    }
    per_status sample(per_replay* replay, int64_t n, const per_sample_options* options = nullptr) {
        return per_replay_sample(replay, options, n, &batch, nullptr);
    }
    // All priorities change, but none exceeds the largest before the call, which is the usual case.
    per_status update(per_replay* replay, int64_t n) {
        for (int64_t i = 0; i < n; ++i) priorities[i] = priorities[i] > 1.0f ? priorities[i] - 1.0f : 5.0f;
        return write_td_errors(replay, n, batch.ids, 1, priorities, nullptr);
    }

    void* fields[2];
    void* next_fields[2];
    float* reward;
    uint8_t* ends;
    float* priorities;
    per_batch batch;
};

per_replay* buffer_of(int64_t n_envs, int32_t prioritization) {
    const int64_t shapes[2] = {16, 4};
    per_field fields[2] = {};
    fields[0].name = "observation";
    fields[1].name = "action";
    for (int i = 0; i < 2; ++i) {
        fields[i].dtype = PER_FLOAT32;
        fields[i].shape = &shapes[i];
        fields[i].ndim = 1;
    }
    per_replay_options options;
    per_replay_options_init(&options, sizeof options);
    options.capacity = capacity;
    options.n_envs = n_envs;
    options.fields = fields;
    options.n_fields = 2;
    options.field_size = sizeof(per_field);
    options.device = PER_CUDA;
    options.prioritization = prioritization;
    per_replay* replay = nullptr;
    EXPECT_EQ(per_replay_create(&options, &replay), PER_OK) << per_last_error();
    return replay;
}

TEST_F(AccessesOfCalls, of_a_buffer) {
    Arrays arrays(memory_, 16384);
    per_replay* const replay = buffer_of(1, PER_PROPORTIONAL);
    ASSERT_EQ(arrays.add(replay, 16384), PER_OK) << per_last_error();
    const auto sample = [&](int64_t n) { return arrays.sample(replay, n); };
    const auto update = [&](int64_t n) { return arrays.update(replay, n); };
    expect("buffer: add of a step", {1, 5, 26, 4, 2, 6242, 637, 1, 700}, [&] { return arrays.add(replay, 1); });
    expect("buffer: sample of 256", {1, 5, 14, 5, 32, 719576, 694, 32, 700}, [&] { return sample(256); });
    ASSERT_EQ(update(256), PER_OK);
    expect("buffer: update of 256", {1, 6, 15, 4, 256, 31928, 296, 1, 300}, [&] { return update(256); });
    ASSERT_EQ(sample(1024), PER_OK);
    expect("buffer: update of 1024", {1, 6, 15, 4, 1019, 127456, 296, 1, 300}, [&] { return update(1024); });
    expect("buffer: sample of 4096", {2, 6, 29, 5, 0, 8785096, 1180, 264}, [&] { return sample(4096); });
    expect("buffer: update of 4096", {1, 8, 19, 5, 162, 475664, 543}, [&] { return update(4096); });
    ASSERT_EQ(sample(8192), PER_OK);
    expect("buffer: update of 8192", {1, 8, 19, 5, 322, 941488, 543}, [&] { return update(8192); });
    per_epochs* walk = nullptr;
    ASSERT_EQ(per_epochs_create(replay, 1, 4096, 0, nullptr, &walk), PER_OK) << per_last_error();
    int64_t count = 0;
    expect("buffer: minibatch of 4096 of an epoch", {3, 5, 22, 2, 0, 18104320, 771},
           [&] { return per_epochs_next(walk, &arrays.batch, &count, nullptr); });
    EXPECT_EQ(count, 4096);
    per_epochs_free(walk);
    EXPECT_EQ(per_replay_synchronize(replay, nullptr), PER_OK) << per_last_error();
    per_replay_free(replay);
}

TEST_F(AccessesOfCalls, of_a_buffer_of_several_lanes) {
    Arrays arrays(memory_, 64);
    per_replay* const replay = buffer_of(64, PER_PROPORTIONAL);
    for (int i = 0; i < 3; ++i) ASSERT_EQ(arrays.add(replay, 1), PER_OK) << per_last_error();
    expect("buffer: add of a step of 64 lanes", {1, 5, 24, 4, 73, 221556, 678}, [&] { return arrays.add(replay, 1); });
    per_replay_free(replay);
}

TEST_F(AccessesOfCalls, of_a_buffer_of_many_lanes) {
    Arrays arrays(memory_, 4096);
    per_replay* const replay = buffer_of(4096, PER_PROPORTIONAL);
    for (int i = 0; i < 3; ++i) ASSERT_EQ(arrays.add(replay, 1), PER_OK) << per_last_error();
    expect("buffer: add of a step of 4096 lanes", {3, 10, 34, 8, 512, 17827700, 1521},
           [&] { return arrays.add(replay, 1); });
    per_replay_free(replay);
}

TEST_F(AccessesOfCalls, of_a_buffer_of_ranks) {
    Arrays arrays(memory_, 2048);
    per_replay* const replay = buffer_of(1, PER_RANK);
    ASSERT_EQ(arrays.add(replay, 2048), PER_OK) << per_last_error();
    ASSERT_EQ(arrays.sample(replay, 256), PER_OK) << per_last_error();
    expect("buffer: sample of 256 by rank", {2, 7, 23, 5, 32, 1805028, 1011},
           [&] { return arrays.sample(replay, 256); });
    per_replay_free(replay);
}

// Lines of the L2 that are written would have to be written back while a call is timed.
TEST_F(AccessesOfCalls, of_what_makes_the_benchmark_cold_are_reads) {
    simulator::options().n_multiprocessors = 3;  // few threads
    const Conditions conditions(nullptr);
    simulator::take_accesses();
    conditions.cold();
    const std::vector<simulator::KernelAccesses> kernels = simulator::take_accesses();
    ASSERT_EQ(kernels.size(), 2u);
    EXPECT_EQ(kernels[0].bytes, 2u << 20);  // twice the simulated L2
    EXPECT_GT(kernels[0].phases, 0u);       // reads are waited for, writes are not
    EXPECT_EQ(kernels[1].bytes, kernels[1].n_blocks * sizeof(float));
}

}  // namespace
}  // namespace per::test

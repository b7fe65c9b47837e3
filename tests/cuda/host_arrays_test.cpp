// Calls that get a host array where a device array is required: the first array that a call checks is refused by name,
// before work is enqueued.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "graph.h"
#include "replay_twins.h"
#include "simulator.h"
#include "steered_simulator.h"

namespace per::test {
namespace {

constexpr int64_t n = 4;
constexpr int64_t most_bytes = 1024;

template <cudaError_t (*allocate)(void**, std::size_t), cudaError_t (*release)(void*)>
class Array {
 public:
    Array() {
        EXPECT_EQ(allocate(&data_, most_bytes), cudaSuccess);
        std::memset(data_, 0, most_bytes);
    }
    ~Array() { release(data_); }
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;

    template <class Element>
    Element* as() const {
        return static_cast<Element*>(data_);
    }

 private:
    void* data_ = nullptr;
};

cudaError_t allocate_on_device(void** memory, std::size_t bytes) {
    return cudaMalloc(memory, bytes);
}
cudaError_t allocate_pinned(void** memory, std::size_t bytes) {
    return cudaMallocHost(memory, bytes);
}
using DeviceArray = Array<allocate_on_device, cudaFree>;
using PinnedArray = Array<allocate_pinned, cudaFreeHost>;

// A call with `array` as the argument of this name, and all others on the device.
struct NamedCall {
    std::string function;
    std::string argument;
    std::function<per_status(void* array, void* stream)> call;
    bool can_be_captured = true;
};

class HostArrays : public SteeredSimulator {
 protected:
    void SetUp() override {
        cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
        tree_ = create_tree(most_bytes / 8, PER_CUDA);
        ASSERT_NE(tree_, nullptr);
        const int64_t index = 0;
        const float priority = 1;
        ASSERT_EQ(per_update(tree_, 1, &index, &priority, stream_), PER_OK);
        replay_ = create_replay(twin_options(), PER_CUDA);
        TwinWalk walk(1, true);
        for (int i = 0; i < 10; ++i) {
            TwinSteps steps = walk.next();
            ASSERT_EQ(steps.add(replay_.get(), stream_), PER_OK) << per_last_error();
            cudaDeviceSynchronize();
        }
        ASSERT_EQ(per_epochs_create(replay_.get(), 4, n, 0, nullptr, &epochs_), PER_OK) << per_last_error();
        static_cast<void>(per_replay_synchronize(replay_.get(), stream_));
        simulator::options().has_host_memory = true;
    }
    void TearDown() override {
        SteeredSimulator::TearDown();
        cudaDeviceSynchronize();
        per_epochs_free(epochs_);
        replay_.reset();
        per_tree_free(tree_);
        cudaStreamDestroy(stream_);
    }

    static per_batch batch_with_ids(void* ids) {
        per_batch batch;
        per_batch_init(&batch, sizeof batch);
        batch.ids = static_cast<int64_t*>(ids);
        return batch;
    }

    per_status sample_hindsight(void* ids, void* stream) const {
        const per_hindsight_options hindsight = hindsight_without_rewards();
        const per_batch batch = batch_with_ids(ids);
        return sample_with_hindsight(replay_.get(), nullptr, &hindsight, n, &batch, stream);
    }

    std::vector<NamedCall> calls_of_tree() const {
        const auto as = []<class Element>(void* array, Element) { return static_cast<Element*>(array); };
        float* const floats = other_.as<float>();
        int64_t* const indices = other_.as<int64_t>();
        return {
            {"update", "indices",
             [=, this](void* array, void* stream) {
                 return per_update(tree_, n, as(array, int64_t{}), floats, stream);
             }},
            {"sample", "indices_out",
             [=, this](void* array, void* stream) {
                 return per_sample(tree_, n, PER_STRATIFIED, 0.5f, as(array, int64_t{}), nullptr, nullptr, stream);
             }},
            {"find", "prefix_sums",
             [=, this](void* array, void* stream) {
                 return per_tree_find(tree_, n, as(array, double{}), indices, stream);
             }},
            {"find_mass", "units",
             [=, this](void* array, void* stream) {
                 return per_tree_find_mass(tree_, n, as(array, uint64_t{}), indices, stream);
             }},
            {"priorities", "indices",
             [=, this](void* array, void* stream) {
                 return per_tree_get_priorities(tree_, n, as(array, int64_t{}), floats, stream);
             }},
            {"all priorities", "priorities_out",
             [=, this](void* array, void* stream) {
                 return per_tree_get_priorities(tree_, most_bytes / 8, nullptr, as(array, float{}), stream);
             }},
        };
    }

    std::vector<NamedCall> calls_of_replay() const {
        const auto ids = [](void* array) { return static_cast<int64_t*>(array); };
        float* const floats = other_.as<float>();
        return {
            {"sample", "ids",
             [=, this](void* array, void* stream) {
                 const per_batch batch = batch_with_ids(array);
                 return per_replay_sample(replay_.get(), nullptr, n, &batch, stream);
             }},
            {"sample without ids", "observation",
             [=, this](void* array, void* stream) {
                 void* const fields[n_fields] = {array};
                 per_batch batch = batch_with_ids(nullptr);
                 batch.fields = fields;
                 batch.weights = floats;
                 return per_replay_sample(replay_.get(), nullptr, n, &batch, stream);
             }},
            {"sample of next observations", "next_observation",
             [=, this](void* array, void* stream) {
                 void* const fields[n_fields] = {array};
                 per_batch batch = batch_with_ids(nullptr);
                 batch.next_fields = fields;
                 return per_replay_sample(replay_.get(), nullptr, n, &batch, stream);
             }},
            {"sample of weights", "weights",
             [=, this](void* array, void* stream) {
                 per_batch batch = batch_with_ids(nullptr);
                 batch.weights = static_cast<float*>(array);
                 return per_replay_sample(replay_.get(), nullptr, n, &batch, stream);
             }},
            {"sample_hindsight", "ids",
             [=, this](void* array, void* stream) { return sample_hindsight(array, stream); }, false},
            {"update_priorities", "ids",
             [=, this](void* array, void* stream) {
                 return write_td_errors(replay_.get(), n, ids(array), 1, floats, stream);
             }},
            {"set_priorities", "ids",
             [=, this](void* array, void* stream) {
                 return write_priorities(replay_.get(), n, ids(array), floats, stream);
             }},
            {"priorities", "ids",
             [=, this](void* array, void* stream) {
                 return per_replay_get_priorities(replay_.get(), n, ids(array), floats, stream);
             }},
            {"get", "ids",
             [=, this](void* array, void* stream) {
                 const per_batch batch = batch_with_ids(other_.as<int64_t>());
                 return per_replay_get(replay_.get(), n, ids(array), &batch, stream);
             }},
            {"set", "ids",
             [=, this](void* array, void* stream) {
                 const per_array fields[n_fields] = {
                     {}, {other_.as<int64_t>(), nullptr, 0, PER_INT64, nullptr}, {}, {}, {}, {}};
                 return per_replay_set(replay_.get(), n, ids(array), fields, stream);
             }},
            {"epochs_next", "ids",
             [=, this](void* array, void* stream) {
                 const per_batch batch = batch_with_ids(array);
                 int64_t count;
                 return per_epochs_next(epochs_, &batch, &count, stream);
             }},
            {"bootstraps", "ids",
             [=, this](void* array, void* stream) {
                 const per_batch batch = batch_with_ids(array);
                 int64_t count;
                 return per_replay_get_bootstraps(replay_.get(), n, &batch, &count, stream);
             },
             false},
            {"advantages", "ids",
             [=, this](void* array, void* stream) {
                 return per_replay_compute_advantages(replay_.get(), 2, 3, 4, 0.5, n, ids(array), floats, stream);
             }},
        };
    }

    std::vector<NamedCall> calls() const {
        std::vector<NamedCall> all = calls_of_tree();
        for (NamedCall& call : calls_of_replay()) all.push_back(std::move(call));
        return all;
    }

    void expect_refused(const NamedCall& named, void* array) const {
        EXPECT_EQ(named.call(array, stream_), PER_ERROR_INVALID_ARGUMENT) << named.function;
        EXPECT_EQ(std::string(per_last_error()).find(named.argument + " is 0x"), 0u)
            << named.function << ": " << per_last_error();
        EXPECT_NE(std::string(per_last_error()).find("in host memory that is not pinned"), std::string::npos)
            << named.function << ": " << per_last_error();
    }

    cudaStream_t stream_ = nullptr;
    per_tree* tree_ = nullptr;
    ReplayHandle replay_;
    per_epochs* epochs_ = nullptr;
    DeviceArray array_, other_;
    PinnedArray pinned_;
    std::vector<std::byte> host_ = std::vector<std::byte>(most_bytes, std::byte{0x5a});
};

TEST_F(HostArrays, are_refused_by_name_before_anything_is_queued) {
    const std::vector<std::byte> before = host_;
    for (const NamedCall& named : calls()) {
        simulator::reset_counters();
        expect_refused(named, host_.data());
        EXPECT_EQ(simulator::counters().launches, 0u) << named.function;
        EXPECT_EQ(simulator::counters().host_waits, 0u) << named.function;
    }
    cudaDeviceSynchronize();
    EXPECT_EQ(host_, before);
}

TEST_F(HostArrays, that_the_device_can_reach_are_taken_as_those_of_the_device_are) {
    for (const NamedCall& named : calls()) {
        EXPECT_EQ(named.call(array_.as<void>(), stream_), PER_OK) << named.function << ": " << per_last_error();
        EXPECT_EQ(named.call(pinned_.as<void>(), stream_), PER_OK) << named.function << ": " << per_last_error();
    }
    simulator::options().reads_pageable = true;
    for (const NamedCall& named : calls())
        EXPECT_EQ(named.call(host_.data(), stream_), PER_OK) << named.function << ": " << per_last_error();
    cudaDeviceSynchronize();
}

TEST_F(HostArrays, are_refused_in_a_capture_too_which_stays_valid) {
    for (const NamedCall& named : calls()) {
        if (!named.can_be_captured) continue;
        SCOPED_TRACE(named.function);
        while_captured(stream_, [&] {
            expect_refused(named, host_.data());
            EXPECT_EQ(named.call(array_.as<void>(), stream_), PER_OK) << per_last_error();
        });
    }
}

TEST_F(HostArrays, of_no_entries_are_not_looked_at) {
    int64_t* const ids = reinterpret_cast<int64_t*>(host_.data());
    float* const floats = reinterpret_cast<float*>(host_.data());
    EXPECT_EQ(per_update(tree_, 0, ids, floats, stream_), PER_OK) << per_last_error();
    EXPECT_EQ(write_td_errors(replay_.get(), 0, ids, 1, floats, stream_), PER_OK) << per_last_error();
    EXPECT_EQ(per_replay_get_priorities(replay_.get(), 0, ids, floats, stream_), PER_OK) << per_last_error();
}

}  // namespace
}  // namespace per::test

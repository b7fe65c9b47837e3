// Handwritten calls of per_replay_add(), and a buffer on CUDA for them.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "add_buffers.h"
#include "base/error.h"
#include "core/checks.h"
#include "cuda/add/step_queue.h"
#include "cuda/replay/replay_memory.h"
#include "cuda/runtime/stream_order.h"
#include "simulator.h"

namespace per::test {

inline constexpr int64_t no_id = -1;

// One environment, with an observation of one float32 and an int16.
inline Declared small_buffer(int64_t n_envs, int64_t rows) {
    Declared declared;
    declared.fields = {{{}, PER_FLOAT32, PER_ROLE_OBSERVATION}, {{}, PER_INT16, PER_ROLE_PLAIN}};
    declared.options.n_envs = n_envs;
    declared.options.capacity = n_envs * rows;
    return declared;
}

// A handwritten call: entries in vectors, each of which may be passed as it is or omitted.
struct HandMade {
    int64_t length = 1;
    int64_t n_envs = 1;
    std::vector<int64_t> env_ids;
    std::vector<float> observation, next;
    std::vector<uint8_t> frames;      // instead of the observation
    int32_t plain_dtype = PER_INT16;  // selects plain_16 or plain_64
    std::vector<int16_t> plain_16;
    std::vector<int64_t> plain_64;
    std::vector<double> reward;
    std::vector<uint8_t> terminated, truncated, mask, next_mask;
    std::vector<float> priorities, td_errors;
    std::vector<GivenArray> fields, next_fields;

    // Steps of all environments: the k-th of environment j is observed as 10 j + first + k.
    HandMade(int64_t n_steps, int64_t n, float first, bool with_next) : length(n_steps), n_envs(n) {
        for (int64_t k = 0; k < length; ++k)
            for (int64_t j = 0; j < n; ++j) {
                observation.push_back(static_cast<float>(10 * j + k) + first);
                if (with_next) next.push_back(observation.back() + 1);
                plain_64.push_back(k);
                plain_16.push_back(static_cast<int16_t>(k));
                reward.push_back(static_cast<double>(k) / 2);
            }
        terminated.assign(observation.size(), 0);
        truncated.assign(observation.size(), 0);
    }

    ReplaySteps steps() {
        const auto array = [](const auto& values, int32_t dtype) {
            return per_array{values.empty() ? nullptr : values.data(), nullptr, 0, dtype, nullptr};
        };
        const per_array plain_array =
            plain_dtype == PER_INT64 ? array(plain_64, PER_INT64) : array(plain_16, PER_INT16);
        const per_array one = frames.empty() ? array(observation, PER_FLOAT32) : array(frames, PER_UINT8);
        fields = {{one, 1}, {plain_array, 1}};
        next_fields = {{array(next, PER_FLOAT32), 1}, {}};
        ReplaySteps steps = {};
        steps.length = length;
        steps.n_envs = n_envs;
        steps.env_ids = env_ids.empty() ? nullptr : env_ids.data();
        steps.fields = fields.data();
        steps.next_fields = next.empty() ? nullptr : next_fields.data();
        steps.reward = array(reward, PER_FLOAT64);
        steps.terminated = array(terminated, PER_BOOL);
        steps.truncated = array(truncated, PER_BOOL);
        steps.mask = array(mask, PER_BOOL);
        steps.next_mask = array(next_mask, PER_BOOL);
        steps.priorities = array(priorities, PER_FLOAT32);
        steps.td_errors = array(td_errors, PER_FLOAT32);
        return steps;
    }
};

// A buffer on CUDA alone.
class Buffer {
 public:
    explicit Buffer(const Declared& declared)
        : fields_(declared.resolved()),
          options_(resolve_replay_options(declared.options, fields_)),
          order_(0),
          memory_(options_, fields_, order_.own_stream()),
          queue_(memory_, fields_, options_, order_.own_stream()) {
        cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
        cudaDeviceSynchronize();
    }
    ~Buffer() {
        cudaDeviceSynchronize();
        cudaStreamDestroy(stream_);
        simulator::options().has_host_memory = false;
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    // Returns the ids.
    std::vector<int64_t> add(HandMade call) {
        std::vector<int64_t> ids(call.observation.size(), -7);
        queue(call, ids.data());
        cudaDeviceSynchronize();
        return ids;
    }
    void queue(HandMade& call, int64_t* ids_out) {
        cuda::StreamOrder::Call order(order_, stream_);
        queue_.add(call.steps(), ids_out, order);
        order.finish();
    }
    std::string refusal(HandMade call, int64_t* ids_out = nullptr) {
        try {
            queue(call, ids_out);
        } catch (const Error& error) {
            EXPECT_EQ(error.status(), PER_ERROR_INVALID_ARGUMENT);
            return error.what();
        }
        return "";
    }

    const cuda::DeviceReplay& device() {
        cudaDeviceSynchronize();
        return memory_.device();
    }
    const cuda::ReplayState& state() { return *device().state; }
    cudaStream_t stream() const { return stream_; }
    cuda::StepQueue& steps() { return queue_; }
    cuda::StreamOrder& order() { return order_; }
    float observation(int64_t slot) { return reinterpret_cast<const float*>(device().fields[0].frames)[slot]; }

 private:
    Fields fields_;
    per_replay_options options_;
    cuda::StreamOrder order_;
    cuda::ReplayMemory memory_;
    cuda::StepQueue queue_;
    cudaStream_t stream_;
};

using Ids = std::vector<int64_t>;

}  // namespace per::test

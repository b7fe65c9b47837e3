// Two buffers that get the same calls, one on the CPU and one on the simulated GPU. Their results must be
// bit-identical.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "../c/settings.h"
#include "../c/struct_calls.h"
#include "../cpp/choices.h"
#include "../cpp/replay_handle.h"
#include "per.h"

namespace per::test {

inline constexpr int64_t n_envs = 3;

// An observation of two float32, an int64 action, float32 numbers for values, advantages and returns (the last two with
// defaults), and a goal, which is an observation too. Their stacks are padded with zeros.
inline constexpr int n_fields = 6;
inline constexpr int32_t goal_stack = 3;  // one more than that of the observation
inline ReplayHandle create_replay(per_replay_options options, int32_t device) {
    static const int64_t shape[] = {2};
    per_field fields[n_fields] = {};
    const char* const names[] = {"observation", "action", "value", "advantage", "return_", "goal"};
    for (int i = 0; i < n_fields; ++i) {
        fields[i].name = names[i];
        fields[i].dtype = i == 1 ? PER_INT64 : PER_FLOAT32;
    }
    for (const int i : {0, 5}) {
        fields[i].shape = shape;
        fields[i].ndim = 1;
    }
    fields[0].padding = fields[5].padding = PER_PADDING_ZERO;
    fields[5].role = PER_ROLE_OBSERVATION;
    fields[5].stack = goal_stack;
    const float advantage = -2.5f;
    const int8_t return_value = 3;
    const per_array defaults[] = {{&advantage, nullptr, 0, PER_FLOAT32, nullptr},
                                  {&return_value, nullptr, 0, PER_INT8, nullptr}};
    fields[3].default_value = &defaults[0];
    fields[4].default_value = &defaults[1];
    options.fields = fields;
    options.n_fields = n_fields;
    options.field_size = sizeof(per_field);
    options.device = device;
    if (device == PER_CPU) options.device_index = 0;
    per_replay* replay = nullptr;
    EXPECT_EQ(per_replay_create(&options, &replay), PER_OK) << per_last_error();
    return ReplayHandle(replay);
}

inline per_replay_options twin_options() {
    per_replay_options options;
    per_replay_options_init(&options, sizeof options);
    options.capacity = 48;
    options.n_envs = n_envs;
    options.n_step = 2;
    options.frame_stack = 2;
    options.seed = 3;
    options.beta_steps = 40;
    options.gamma = 0.75;
    return options;
}

// The arguments of one call of per_replay_add(). They must outlive the work on them.
struct TwinSteps {
    std::vector<float> observation, next, value, reward, priority;
    std::vector<int64_t> action, ids;
    std::vector<uint8_t> terminated, truncated, mask, next_mask;
    bool with_priorities = false;
    bool with_ids = true;
    bool leaves_out = false;  // leaves out advantages and returns, which have defaults
    int64_t length = 1;

    per_status add(per_replay* replay, void* stream) {
        const auto array = [](const auto& values, int32_t dtype) {
            return per_array{values.data(), nullptr, 0, dtype, nullptr};
        };
        const per_array values = array(value, PER_FLOAT32);
        const per_array computed = leaves_out ? per_array{} : values;
        const per_array fields[n_fields] = {
            array(observation, PER_FLOAT32), array(action, PER_INT64), values, computed, computed,
            array(observation, PER_FLOAT32)};
        const per_array next_fields[n_fields] = {array(next, PER_FLOAT32), {}, {}, {}, {}, array(next, PER_FLOAT32)};
        per_steps steps;
        per_steps_init(&steps, sizeof steps);
        steps.length = length;
        steps.fields = fields;
        steps.next_fields = next_fields;
        steps.reward = array(reward, PER_FLOAT32);
        steps.terminated = array(terminated, PER_BOOL);
        steps.truncated = array(truncated, PER_BOOL);
        steps.mask = array(mask, PER_BOOL);
        steps.next_mask = array(next_mask, PER_BOOL);
        if (with_priorities) steps.priorities = array(priority, PER_FLOAT32);
        ids.assign(action.size(), -7);
        return per_replay_add(replay, &steps, with_ids ? ids.data() : nullptr, stream);
    }
};

// Random steps of the environments with ends of all kinds, gaps, masks and given priorities.
class TwinWalk {
 public:
    // If always_next is true, the observation after each step is known.
    explicit TwinWalk(uint64_t seed, bool always_next = false) : TwinWalk(Choices(seed), always_next) {}
    explicit TwinWalk(const Choices& choices, bool always_next = false) : random_(choices), always_next_(always_next) {}

    TwinSteps next(int64_t length = 1) {
        TwinSteps steps;
        steps.length = length;
        steps.with_priorities = random_() % 4 == 0;
        steps.leaves_out = ++n_calls_ % 3 == 0;
        for (int64_t i = 0; i < length * n_envs; ++i) {
            const int64_t env = i % n_envs;
            float& serial = serial_[env];
            const bool given = random_() % 8 != 0;
            steps.observation.insert(steps.observation.end(),
                                     {static_cast<float>(env), random_() % 16 == 0 ? -1.0f : serial});
            if (given) serial += 1;
            steps.next.insert(steps.next.end(), {static_cast<float>(env), serial});
            steps.value.push_back(static_cast<float>(random_() % 1000) * 0.01f);
            steps.reward.push_back(static_cast<float>(random_() % 10));
            steps.priority.push_back(static_cast<float>(random_() % 100) * 0.37f);
            steps.action.push_back(static_cast<int64_t>(random_() % 1000));
            steps.terminated.push_back(random_() % 16 == 0);
            steps.truncated.push_back(random_() % 16 == 0);
            steps.mask.push_back(given);
            steps.next_mask.push_back(random_() % 3 != 0 || always_next_);
        }
        return steps;
    }

    uint64_t random() { return random_(); }
    bool is_over() const { return random_.are_over(); }

 private:
    Choices random_;
    bool always_next_;
    int64_t n_calls_ = 0;
    float serial_[n_envs] = {0, 0, 0};
};

// The numbers of a batch of single transitions.
struct TwinNumbers {
    explicit TwinNumbers(std::size_t n_entries)
        : n(n_entries),
          observation(n * 2 * stack, -7.0f),
          next(observation),
          goal(n * 2 * goal_stack, -7.0f),
          next_goal(goal),
          value(n, -7.0f),
          advantage(value),
          returns(value),
          reward(value),
          discount(value),
          weights(value),
          priorities(value),
          probabilities(value),
          gamma_m(value),
          action(n, -7),
          ids(action),
          n_steps(n, -7),
          terminated(n, 7),
          truncated(terminated) {}
    bool operator==(const TwinNumbers&) const = default;

    static constexpr std::size_t stack = 2;
    std::size_t n;
    std::vector<float> observation, next, goal, next_goal, value, advantage, returns, reward, discount, weights,
        priorities, probabilities, gamma_m;
    std::vector<int64_t> action, ids;
    std::vector<int32_t> n_steps;
    std::vector<uint8_t> terminated, truncated;
};

struct TwinBatch : TwinNumbers {
    explicit TwinBatch(int64_t size) : TwinNumbers(static_cast<std::size_t>(size)) {}
    TwinBatch(const TwinBatch&) = delete;
    TwinBatch& operator=(const TwinBatch&) = delete;

    // Rows by id have neither weights nor probabilities.
    per_batch batch(bool is_drawn = true) {
        fields[0] = observation.data();
        fields[1] = action.data();
        fields[2] = value.data();
        fields[3] = advantage.data();
        fields[4] = returns.data();
        fields[5] = goal.data();
        next_fields[0] = next.data();
        next_fields[5] = next_goal.data();
        per_batch batch;
        per_batch_init(&batch, sizeof batch);
        batch.fields = fields;
        batch.next_fields = next_fields;
        batch.reward = reward.data();
        batch.discount = discount.data();
        batch.n_steps = n_steps.data();
        batch.terminated = terminated.data();
        batch.truncated = truncated.data();
        batch.gamma_m = gamma_m.data();
        batch.ids = ids.data();
        batch.priorities = priorities.data();
        if (is_drawn) batch.weights = weights.data();
        if (is_drawn) batch.probabilities = probabilities.data();
        return batch;
    }

    void* fields[n_fields];
    void* next_fields[n_fields] = {};
};

inline constexpr int32_t of_buffer = -1;  // selects the buffer's value for an option of a draw

inline per_sample_options sample_options(int32_t prioritization = of_buffer, int32_t normalize_weights = of_buffer) {
    per_sample_options options;
    per_sample_options_init(&options, sizeof options);
    options.prioritization = prioritization;
    options.normalize_weights = normalize_weights;
    return options;
}

inline per_sample_options sample_by(int32_t scheme) {
    per_sample_options options = sample_options();
    options.scheme = scheme;
    return options;
}

// Relabelling in which every reward is 0.
inline per_hindsight_options hindsight_without_rewards() {
    per_hindsight_options options;
    per_hindsight_options_init(&options, sizeof options);
    options.achieved_field = 0;
    options.goal_field = 5;
    options.reward = [](void*, int64_t count, const void*, const void*, float* rewards, uint8_t* terminated) {
        std::fill_n(rewards, count, 0.0f);
        std::fill_n(terminated, count, uint8_t{0});
        return 0;
    };
    return options;
}

inline per_replay_statistics statistics_of(per_replay* replay) {
    per_replay_statistics statistics;
    EXPECT_EQ(per_replay_get_statistics(replay, &statistics, sizeof statistics), PER_OK) << per_last_error();
    return statistics;
}

inline std::vector<int64_t> live_ids_of(per_replay* replay) {
    int64_t count = 0;
    EXPECT_EQ(per_replay_get_live_ids(replay, 0, nullptr, &count), PER_OK) << per_last_error();
    std::vector<int64_t> ids(static_cast<std::size_t>(count));
    EXPECT_EQ(per_replay_get_live_ids(replay, count, ids.data(), &count), PER_OK) << per_last_error();
    return ids;
}

// All except the bytes of memory, which depend on the device.
inline void expect_same_statistics(per_replay* cpu, per_replay* gpu) {
    per_replay_statistics a = statistics_of(cpu);
    per_replay_statistics b = statistics_of(gpu);
    EXPECT_GT(b.memory_bytes, 0);
    a.memory_bytes = b.memory_bytes = a.huge_page_bytes = b.huge_page_bytes = 0;
    EXPECT_EQ(a.live, b.live);
    EXPECT_EQ(a.added, b.added);
    EXPECT_EQ(a.total, b.total);
    EXPECT_EQ(a.samples, b.samples);
    EXPECT_EQ(a.max_priority, b.max_priority);
    EXPECT_EQ(std::memcmp(&a, &b, sizeof a), 0);
}

class Twins {
 public:
    explicit Twins(const per_replay_options& options)
        : cpu(create_replay(options, PER_CPU)), gpu(create_replay(options, PER_CUDA)) {
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    }
    ~Twins() {
        gpu.reset();
        cudaStreamDestroy(stream);
    }
    Twins(const Twins&) = delete;
    Twins& operator=(const Twins&) = delete;

    void synchronize() { EXPECT_EQ(per_replay_synchronize(gpu.get(), stream), PER_OK) << per_last_error(); }

    void add(TwinSteps steps) {
        EXPECT_EQ(steps.add(cpu.get(), nullptr), PER_OK) << per_last_error();
        const std::vector<int64_t> ids = steps.ids;
        EXPECT_EQ(steps.add(gpu.get(), stream), PER_OK) << per_last_error();
        synchronize();
        EXPECT_EQ(ids, steps.ids);
    }

    // Makes a call on both buffers, which must succeed.
    template <class Call>
    void both(const Call& call) {
        EXPECT_EQ(call(cpu.get(), nullptr), PER_OK) << per_last_error();
        EXPECT_EQ(call(gpu.get(), stream), PER_OK) << per_last_error();
    }

    // Expects a call that fills a batch and waits for the device to give the same on both. Returns the ids of the
    // batch.
    template <class Batch = TwinBatch, class Call>
    std::vector<int64_t> fill_alike_at_once(int64_t size, const Call& call, bool is_drawn = true) {
        Batch of_cpu(size), of_gpu(size);
        both([&](per_replay* replay, void* on) {
            const per_batch batch = (on == nullptr ? of_cpu : of_gpu).batch(is_drawn);
            return call(replay, batch, on);
        });
        EXPECT_TRUE(of_cpu == of_gpu);
        EXPECT_EQ(of_cpu.ids, of_gpu.ids);
        EXPECT_EQ(of_cpu.weights, of_gpu.weights);
        return of_cpu.ids;
    }

    // Like fill_alike_at_once(), for a call that does not wait for the device.
    template <class Batch = TwinBatch, class Call>
    std::vector<int64_t> fill_alike(int64_t size, const Call& call, bool is_drawn = true) {
        const auto call_and_wait = [&](per_replay* replay, const per_batch& batch, void* on) {
            const per_status status = call(replay, batch, on);
            if (on != nullptr) synchronize();
            return status;
        };
        return fill_alike_at_once<Batch>(size, call_and_wait, is_drawn);
    }

    // Expects the batch of a graph to equal the next one of the CPU.
    void expect_next_of_cpu(const TwinBatch& drawn, const per_sample_options* options = nullptr) {
        const int64_t size = static_cast<int64_t>(drawn.n);
        TwinBatch expected(size);
        const per_batch batch = expected.batch();
        ASSERT_EQ(per_replay_sample(cpu.get(), options, size, &batch, nullptr), PER_OK) << per_last_error();
        EXPECT_TRUE(drawn == expected);
        EXPECT_EQ(drawn.ids, expected.ids);
        EXPECT_EQ(drawn.weights, expected.weights);
    }

    // The drawn ids; empty if nothing is live.
    std::vector<int64_t> sample(int64_t size, const per_sample_options* options = nullptr) {
        TwinBatch of_cpu(size), of_gpu(size);
        const per_batch cpu_batch = of_cpu.batch(), gpu_batch = of_gpu.batch();
        if (per_replay_sample(cpu.get(), options, size, &cpu_batch, nullptr) != PER_OK) return {};
        EXPECT_EQ(per_replay_sample(gpu.get(), options, size, &gpu_batch, stream), PER_OK) << per_last_error();
        synchronize();
        EXPECT_TRUE(of_cpu == of_gpu);
        EXPECT_EQ(of_cpu.ids, of_gpu.ids);
        EXPECT_EQ(of_cpu.weights, of_gpu.weights);
        return of_cpu.ids;
    }

    void update(const std::vector<int64_t>& ids, const std::vector<float>& td_errors) {
        both([&](per_replay* replay, void* on) {
            return write_td_errors(replay, static_cast<int64_t>(ids.size()), ids.data(), 1, td_errors.data(), on);
        });
        synchronize();
    }

    // Steps, draws and updates.
    void use(TwinWalk& walk, int n_calls) {
        for (int i = 0; i < n_calls; ++i) {
            add(walk.next(1 + static_cast<int64_t>(walk.random() % 3)));
            const std::vector<int64_t> ids = sample(8);
            if (ids.empty()) continue;
            std::vector<float> td_errors;
            for (std::size_t k = 0; k < ids.size(); ++k)
                td_errors.push_back(static_cast<float>(walk.random() % 1000) * 0.01f - 5.0f);
            update(ids, td_errors);
            if (testing::Test::HasFailure()) return;
        }
    }

    // Starts a random walk with n_calls calls on both.
    TwinWalk begin(uint64_t seed, int n_calls) {
        TwinWalk walk(seed);
        use(walk, n_calls);
        return walk;
    }

    void expect_same() {
        expect_same_statistics(cpu.get(), gpu.get());
        EXPECT_EQ(live_ids_of(cpu.get()), live_ids_of(gpu.get()));
    }

    ReplayHandle cpu, gpu;
    cudaStream_t stream;
};

}  // namespace per::test

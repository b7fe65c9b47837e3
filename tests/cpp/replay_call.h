// Short forms of calls of per.h, for tests of the replay buffer on the CPU and on CUDA (device_check.h).
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "../c/replay_device.h"
#include "expect.h"
#include "per.h"

namespace per::test {

// A buffer with one observation of two float32 - environment and serial number - and an int64 action, by default 77.
// With sequences it also has a recurrent state, which is state_of() the observation.
using Observation = std::array<float, 2>;
inline float state_of(const Observation& observation) {
    return 2 * observation[1] + 1;
}

// One step of one environment, as given to add.
struct GivenStep {
    Observation observation;
    Observation next = {-1, -1};
    bool has_next = true;  // its element of next_mask
    float reward = 0;
    bool terminated = false;
    bool truncated = false;
    bool given = true;  // its element of mask
    int64_t action = 0;
    float priority = 1;
};

// [length, n_envs] steps.
struct GivenCall {
    int64_t length = 1;
    std::vector<int64_t> env_ids;  // empty: all environments
    std::vector<GivenStep> steps;
    bool with_next = true;
    bool with_mask = false;
    bool with_next_mask = false;
    bool with_priorities = false;
    bool with_td_errors = false;
};

struct Row {
    int64_t id;
    std::vector<Observation> observation;  // one frame each
    std::vector<Observation> next_observation;
    int64_t action;
    float reward;
    float discount;
    float gamma_m;
    int32_t n_steps;
    bool terminated;
    bool truncated;
    float weight;
    float priority;
    float probability;
    bool operator==(const Row&) const = default;
};

// One step of a drawn sequence.
struct SequenceStep {
    int64_t action;
    float reward;
    float discount;
    float gamma_m;
    int32_t n_steps;
    bool terminated;
    bool truncated;
    bool mask;
    bool operator==(const SequenceStep&) const = default;
};

struct Sequence {
    int64_t id;
    std::vector<std::vector<Observation>> observation;  // [T + n][stack]
    std::vector<SequenceStep> steps;
    float state;
    float weight;
    float priority;
    float probability;
    bool operator==(const Sequence&) const = default;
};

inline per_array array_of(const void* data, int32_t dtype) {
    return {data, nullptr, 0, dtype, nullptr};
}

class Buffer {
 public:
    // Options with capacity set; fields are those of the buffer. `padding` applies to the observation, `compression` to
    // the fields that can be compressed.
    explicit Buffer(per_replay_options options, int32_t padding = PER_PADDING_REPEAT,
                    int32_t compression = PER_COMPRESSION_NONE) {
        static const int64_t shape[] = {2};
        per_field fields[3] = {};
        fields[0].name = "observation";
        fields[0].shape = shape;
        fields[0].ndim = 1;
        fields[0].dtype = PER_FLOAT32;
        fields[0].padding = padding;
        fields[0].compression = compression;
        fields[1].name = "action";
        fields[1].dtype = PER_INT64;
        const int64_t action = 77;
        const per_array default_action = array_of(&action, PER_INT64);
        fields[1].default_value = &default_action;
        fields[1].compression = compression;
        fields[2].name = "state";
        fields[2].dtype = PER_FLOAT32;
        fields[2].role = PER_ROLE_RECURRENT_STATE;
        options.fields = fields;
        options.n_fields = options.sequence_length > 0 ? 3 : 2;
        options.field_size = sizeof(per_field);
        per_replay* replay = nullptr;
        EXPECT_OK(per_replay_create(&options, &replay));
        handle_.reset(replay);
        stack_ = options.frame_stack;
        steps_ = options.sequence_length > 0 ? options.burn_in + options.sequence_length : 0;
    }

    // A saved buffer.
    static Buffer load(const std::string& path, int64_t frame_stack, int64_t sequence_steps = 0) {
        Buffer buffer;
        buffer.stack_ = frame_stack;
        buffer.steps_ = sequence_steps;
        buffer.reload(path);
        return buffer;
    }

    // Replaces the buffer by a saved one, with its rows in memory or in a file in that directory.
    void reload(const std::string& path, const char* storage = nullptr) {
        handle_ = nullptr;
        per_load_options place = initialized(per_load_options_init);
        place.memory.storage = storage;
        per_replay* replay = nullptr;
        EXPECT_OK(per_replay_load(path.c_str(), &place, &replay));
        handle_.reset(replay);
    }

    static per_replay_options options(int64_t capacity, int64_t n_step = 1, int64_t n_envs = 1) {
        per_replay_options options = initialized(per_replay_options_init);
        options.capacity = capacity;
        options.n_step = n_step;
        options.n_envs = n_envs;
        options.device = test_device();
        return options;
    }

    per_replay* get() const { return handle_.get(); }

    per_status add(const GivenCall& call, std::vector<int64_t>* ids_out = nullptr) {
        if (ids_out != nullptr) ids_out->assign(call.steps.size(), -7);
        return give(call, [&](const per_steps& steps) {
            return per_replay_add(get(), &steps, ids_out == nullptr ? nullptr : ids_out->data(), nullptr);
        });
    }

    // Calls take(steps) with the steps of a call.
    template <class Take>
    static per_status give(const GivenCall& call, const Take& take) {
        const size_t n = call.steps.size();
        std::vector<Observation> observations(n), next(n);
        std::vector<int64_t> actions(n);
        std::vector<float> rewards(n), priorities(n), states(n);
        std::vector<uint8_t> terminated(n), truncated(n), mask(n), next_mask(n);
        for (size_t i = 0; i < n; ++i) {
            const GivenStep& step = call.steps[i];
            observations[i] = step.observation;
            next[i] = step.next;
            actions[i] = step.action;
            rewards[i] = step.reward;
            states[i] = state_of(step.observation);
            priorities[i] = step.priority;
            terminated[i] = step.terminated;
            truncated[i] = step.truncated;
            mask[i] = step.given;
            next_mask[i] = step.has_next;
        }
        const per_array fields[3] = {array_of(observations.data(), PER_FLOAT32), array_of(actions.data(), PER_INT64),
                                     array_of(states.data(), PER_FLOAT32)};
        const per_array next_fields[3] = {array_of(next.data(), PER_FLOAT32), {}, {}};
        per_steps steps = initialized(per_steps_init);
        steps.length = call.length;
        steps.n_envs = static_cast<int64_t>(call.env_ids.size());
        steps.env_ids = call.env_ids.empty() ? nullptr : call.env_ids.data();
        steps.fields = fields;
        if (call.with_next) steps.next_fields = next_fields;
        steps.reward = array_of(rewards.data(), PER_FLOAT32);
        steps.terminated = array_of(terminated.data(), PER_BOOL);
        steps.truncated = array_of(truncated.data(), PER_BOOL);
        if (call.with_mask) steps.mask = array_of(mask.data(), PER_BOOL);
        if (call.with_next_mask) steps.next_mask = array_of(next_mask.data(), PER_BOOL);
        if (call.with_priorities) steps.priorities = array_of(priorities.data(), PER_FLOAT32);
        if (call.with_td_errors) steps.td_errors = array_of(priorities.data(), PER_FLOAT32);
        return take(steps);
    }

    // Adds one step of environment `env`; returns its id.
    int64_t step(const GivenStep& step, int64_t env = 0) {
        GivenCall call;
        call.env_ids = {env};
        call.steps = {step};
        call.with_next_mask = true;
        std::vector<int64_t> ids;
        EXPECT_OK(add(call, &ids));
        return ids[0];
    }

    per_status sample(int64_t batch_size, std::vector<Row>& rows_out, const per_sample_options* options = nullptr) {
        return read(batch_size, nullptr, options, rows_out);
    }
    per_status get(const std::vector<int64_t>& ids, std::vector<Row>& rows_out, bool with_next = true) {
        return read(static_cast<int64_t>(ids.size()), ids.data(), nullptr, rows_out, with_next);
    }

    // Each live transition, by id: a batch of uniform strata narrower than half a transition misses none.
    std::map<int64_t, Row> live_rows() {
        std::map<int64_t, Row> live;
        if (statistics().live == 0) return live;
        const double alpha = statistics().alpha;
        EXPECT_OK(change_alpha(get(), 0.0, nullptr));
        per_sample_options options = initialized(per_sample_options_init);
        options.beta = 0.0;
        std::vector<Row> rows;
        EXPECT_OK(sample(2 * statistics().live + 1, rows, &options));
        EXPECT_OK(change_alpha(get(), alpha, nullptr));
        for (const Row& row : rows) live.emplace(row.id, row);
        return live;
    }

    // Each live sequence by id, with the n_step of the call.
    std::map<int64_t, Sequence> live_sequences(int64_t n_step) {
        std::map<int64_t, Sequence> live;
        if (statistics().live == 0) return live;
        const double alpha = statistics().alpha;
        EXPECT_OK(change_alpha(get(), 0.0, nullptr));
        std::vector<Sequence> sequences;
        EXPECT_OK(sample_sequences(2 * statistics().live + 1, n_step, sequences));
        EXPECT_OK(change_alpha(get(), alpha, nullptr));
        for (const Sequence& sequence : sequences) live.emplace(sequence.id, sequence);
        return live;
    }

    // Does not advance beta.
    per_status sample_sequences(int64_t batch_size, int64_t n_step, std::vector<Sequence>& sequences_out) {
        per_sample_options options = initialized(per_sample_options_init);
        options.beta = 0.5;
        options.n_step = n_step;
        return read_sequences(batch_size, n_step, sequences_out, [&](const per_batch& batch) {
            return per_replay_sample(get(), &options, batch_size, &batch, nullptr);
        });
    }

    // Calls write(batch) to fill a batch of sequences.
    template <class Write>
    per_status read_sequences(int64_t batch_size, int64_t n_step, std::vector<Sequence>& sequences_out,
                              const Write& write) {
        const size_t size = static_cast<size_t>(batch_size), steps = static_cast<size_t>(steps_);
        const size_t frames = static_cast<size_t>(stack_), length = static_cast<size_t>(steps_ + n_step);
        std::vector<Observation> observations(size * length * frames, Observation{-7, -7});
        std::vector<int64_t> actions(size * steps, -7), ids(size);
        std::vector<float> states(size), reward(size * steps, -7), discount(size * steps, -7);
        std::vector<float> gamma_m(size * steps, -7);
        std::vector<float> weights(size), priorities(size), probabilities(size);
        std::vector<int32_t> n_steps(size * steps, -7);
        std::vector<uint8_t> terminated(size * steps, 7), truncated(size * steps, 7), mask(size * steps, 7);
        void* fields[3] = {observations.data(), actions.data(), states.data()};
        per_batch batch = initialized(per_batch_init);
        batch.fields = fields;
        batch.reward = reward.data();
        batch.discount = discount.data();
        batch.gamma_m = gamma_m.data();
        batch.n_steps = n_steps.data();
        batch.terminated = terminated.data();
        batch.truncated = truncated.data();
        batch.mask = mask.data();
        batch.ids = ids.data();
        batch.weights = weights.data();
        batch.priorities = priorities.data();
        batch.probabilities = probabilities.data();
        const per_status status = write(batch);
        if (status != PER_OK) return status;
        sequences_out.clear();
        for (size_t i = 0; i < size; ++i) {
            Sequence sequence = {ids[i], {}, {}, states[i], weights[i], priorities[i], probabilities[i]};
            for (size_t t = 0; t < length; ++t) {
                const auto first = observations.begin() + static_cast<ptrdiff_t>((i * length + t) * frames);
                sequence.observation.emplace_back(first, first + static_cast<ptrdiff_t>(frames));
            }
            for (size_t t = i * steps; t < (i + 1) * steps; ++t) {
                EXPECT_TRUE(terminated[t] <= 1 && truncated[t] <= 1 && mask[t] <= 1);
                sequence.steps.push_back({actions[t], reward[t], discount[t], gamma_m[t], n_steps[t],
                                          terminated[t] == 1, truncated[t] == 1, mask[t] == 1});
            }
            sequences_out.push_back(sequence);
        }
        return status;
    }

    std::vector<int64_t> live_ids() {
        std::vector<int64_t> ids;
        for (const auto& [id, row] : live_rows()) ids.push_back(id);
        return ids;
    }

    float priority(int64_t id) {
        float priority = -1;
        EXPECT_OK(per_replay_get_priorities(get(), 1, &id, &priority, nullptr));
        return priority;
    }

    per_status set_priority(int64_t id, float priority) { return write_priorities(get(), 1, &id, &priority, nullptr); }

    per_replay_statistics statistics() {
        per_replay_statistics statistics;
        EXPECT_OK(per_replay_get_statistics(get(), &statistics, sizeof statistics));
        return statistics;
    }

 private:
    Buffer() = default;

    struct Free {
        void operator()(per_replay* replay) const { per_replay_free(replay); }
    };

    // Samples; with ids, gets windows.
    per_status read(int64_t n, const int64_t* by_id, const per_sample_options* options, std::vector<Row>& rows_out,
                    bool with_next = true) {
        const size_t size = static_cast<size_t>(n);
        const size_t frames = by_id != nullptr ? 1 : static_cast<size_t>(stack_);
        std::vector<Observation> observations(size * frames), next(size * frames);
        std::vector<int64_t> actions(size), ids(size);
        std::vector<float> reward(size), discount(size), gamma_m(size), weights(size), priorities(size);
        std::vector<float> probabilities(size);
        std::vector<int32_t> n_steps(size);
        std::vector<uint8_t> terminated(size), truncated(size);
        void* fields[3] = {observations.data(), actions.data(), nullptr};
        void* next_fields[3] = {next.data(), nullptr, nullptr};
        per_batch batch = initialized(per_batch_init);
        batch.fields = fields;
        if (with_next) batch.next_fields = next_fields;
        batch.reward = reward.data();
        batch.discount = discount.data();
        batch.gamma_m = gamma_m.data();
        batch.n_steps = n_steps.data();
        batch.terminated = terminated.data();
        batch.truncated = truncated.data();
        batch.ids = ids.data();
        batch.priorities = priorities.data();
        if (by_id == nullptr) {
            batch.weights = weights.data();
            batch.probabilities = probabilities.data();
        }
        const per_status status = by_id != nullptr ? per_replay_get(get(), n, by_id, &batch, nullptr)
                                                   : per_replay_sample(get(), options, n, &batch, nullptr);
        if (status != PER_OK) return status;
        rows_out.clear();
        for (size_t i = 0; i < size; ++i) {
            const auto from = static_cast<ptrdiff_t>(i * frames);
            const auto to = static_cast<ptrdiff_t>((i + 1) * frames);
            rows_out.push_back({ids[i],
                                {observations.begin() + from, observations.begin() + to},
                                {next.begin() + from, next.begin() + to},
                                actions[i],
                                reward[i],
                                discount[i],
                                gamma_m[i],
                                n_steps[i],
                                terminated[i] != 0,
                                truncated[i] != 0,
                                weights[i],
                                priorities[i],
                                probabilities[i]});
        }
        return status;
    }

    std::unique_ptr<per_replay, Free> handle_;
    int64_t stack_ = 1;
    int64_t steps_ = 0;  // of a sequence
};

}  // namespace per::test

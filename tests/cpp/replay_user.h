// Makes calls of every kind on a replay buffer with unknown content, such as one from a crafted file. Each call must
// behave as the header says.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "../c/settings.h"
#include "../c/struct_calls.h"
#include "choices.h"
#include "expect.h"
#include "per.h"
#include "replay_handle.h"

namespace per::test {

using Replay = ReplayHandle;

inline per_replay_options options_of(int64_t capacity, int64_t n_envs = 1) {
    per_replay_options options = initialized(per_replay_options_init);
    options.capacity = capacity;
    options.n_envs = n_envs;
    options.on_invalid = PER_INVALID_SKIP;
    return options;
}

// Fields: an observation and a goal of two float32, a value and an advantage; with sequences a recurrent state.
inline Replay create(per_replay_options options) {
    static const int64_t shape[] = {2};
    const per_field fields[] = {
        {"observation", shape, 1, PER_FLOAT32, PER_ROLE_DEFAULT, 0, nullptr, 0, 0, 0},
        {"goal", shape, 1, PER_FLOAT32, PER_ROLE_PLAIN, 0, nullptr, 0, 0, 0},
        {"value", nullptr, 0, PER_FLOAT32, PER_ROLE_PLAIN, 0, nullptr, 0, 0, 0},
        {"advantage", nullptr, 0, PER_FLOAT32, PER_ROLE_PLAIN, 0, nullptr, 0, 0, 0},
        {"state", nullptr, 0, PER_FLOAT32, PER_ROLE_RECURRENT_STATE, 0, nullptr, 0, 0, 0},
    };
    options.fields = fields;
    options.n_fields = options.sequence_length > 0 ? 5 : 4;
    options.field_size = sizeof(per_field);
    per_replay* replay = nullptr;
    EXPECT_OK(per_replay_create(&options, &replay));
    return Replay(replay);
}

// True if the rate limiter blocks a call. A buffer loaded from a file may have a rate limiter.
inline bool is_held(const per_replay_options& options, per_status status) {
    return status == PER_ERROR_BUSY &&
           (options.rate_limit.samples_per_insert > 0 || options.rate_limit.min_size_to_sample > 0);
}

// True if the rate limiter never allows a batch as large as this.
inline bool exceeds_tolerance(const per_replay_options& options, int64_t batch_size, per_status status) {
    return status == PER_ERROR_INVALID_ARGUMENT && options.rate_limit.samples_per_insert > 0 &&
           static_cast<double>(batch_size) > options.rate_limit.samples_tolerance;
}

inline per_replay_options described(per_replay* replay) {
    per_replay_options options = initialized(per_replay_options_init);
    EXPECT_OK(per_replay_describe(replay, &options));
    return options;
}

inline per_replay_statistics statistics_of(per_replay* replay) {
    per_replay_statistics statistics;
    EXPECT_OK(per_replay_get_statistics(replay, &statistics, sizeof statistics));
    return statistics;
}

inline std::vector<int64_t> live_ids(per_replay* replay) {
    std::vector<int64_t> ids(static_cast<size_t>(statistics_of(replay).live));
    int64_t count = -1;
    EXPECT_OK(per_replay_get_live_ids(replay, static_cast<int64_t>(ids.size()), ids.data(), &count));
    EXPECT_EQ(count, static_cast<int64_t>(ids.size()));
    return ids;
}

// Arrays of a batch, with room for frames of stacks and steps of sequences.
struct Arrays {
    Arrays(const per_replay_options& options, int64_t n, bool by_id) {
        const bool are_sequences = options.sequence_length > 0 && !by_id;
        const int64_t steps = are_sequences ? options.burn_in + options.sequence_length : 1;
        int64_t stack = 1;
        for (int64_t i = 0; i < options.n_fields; ++i) stack = std::max<int64_t>(stack, options.fields[i].stack);
        const size_t size = static_cast<size_t>(n * (steps + options.n_step) * stack * 2);
        const size_t part_size = static_cast<size_t>(n * steps);
        for (int64_t i = 0; i < options.n_fields; ++i) {
            values.emplace_back(size);
            next_values.emplace_back(size);
            fields.push_back(values.back().data());
            next_fields.push_back(next_values.back().data());
        }
        numbers.resize(12 * part_size);
        per_batch_init(&batch, sizeof batch);
        batch.fields = fields.data();
        if (!are_sequences) batch.next_fields = next_fields.data();
        auto part = [&, k = size_t{0}]() mutable { return numbers.data() + part_size * k++; };
        batch.reward = reinterpret_cast<float*>(part());
        batch.discount = reinterpret_cast<float*>(part());
        batch.n_steps = reinterpret_cast<int32_t*>(part());
        batch.terminated = reinterpret_cast<uint8_t*>(part());
        batch.truncated = reinterpret_cast<uint8_t*>(part());
        batch.gamma_m = reinterpret_cast<float*>(part());
        batch.ids = reinterpret_cast<int64_t*>(part());
        batch.priorities = reinterpret_cast<float*>(part());
        if (options.keep_times_sampled != 0) batch.times_sampled = reinterpret_cast<int32_t*>(part());
        if (by_id) return;
        batch.weights = reinterpret_cast<float*>(part());
        batch.probabilities = reinterpret_cast<float*>(part());
        if (are_sequences) batch.mask = reinterpret_cast<uint8_t*>(part());
    }

    std::vector<std::vector<float>> values, next_values;
    std::vector<void*> fields, next_fields;
    std::vector<int64_t> numbers;
    per_batch batch;
};

// Makes random calls of every kind.
class User {
 public:
    explicit User(uint64_t seed) : User(Choices(seed)) {}
    explicit User(const Choices& choices) : random_(choices) {}

    uint64_t below(uint64_t n) { return random_() % n; }
    bool chance(uint64_t one_in) { return below(one_in) == 0; }

    // Adds steps to all environments. Some end episodes, jump, or have no next observation.
    void add(per_replay* replay, int64_t length) {
        const per_replay_options options = described(replay);
        const size_t n = static_cast<size_t>(length * options.n_envs);
        std::vector<float> observations(2 * n), next(2 * n), goals(2 * n), numbers(n), priorities(n);
        std::vector<uint8_t> terminated(n), truncated(n), mask(n), next_mask(n);
        for (size_t i = 0; i < n; ++i) {
            const size_t env = i % static_cast<size_t>(options.n_envs);
            serial_.resize(static_cast<size_t>(options.n_envs));
            mask[i] = !chance(8);
            float& serial = serial_[env];
            if (chance(16)) serial += 100;
            for (size_t k = 0; k < 2; ++k) {
                observations[2 * i + k] = serial;
                next[2 * i + k] = serial + 1;
            }
            if (mask[i]) serial += 1;
            terminated[i] = chance(12);
            truncated[i] = chance(12);
            next_mask[i] = options.store_next_observation && !terminated[i] && !truncated[i] ? 1 : !chance(4);
            priorities[i] = static_cast<float>(below(100)) * 0.25f;
        }
        const auto array = [](const void* data, int32_t dtype) { return per_array{data, nullptr, 0, dtype, nullptr}; };
        const per_array fields[] = {array(observations.data(), PER_FLOAT32), array(goals.data(), PER_FLOAT32),
                                    array(numbers.data(), PER_FLOAT32), array(numbers.data(), PER_FLOAT32),
                                    array(numbers.data(), PER_FLOAT32)};
        const per_array next_fields[] = {array(next.data(), PER_FLOAT32), {}, {}, {}, {}};
        per_steps steps = initialized(per_steps_init);
        steps.length = length;
        steps.fields = fields;
        steps.next_fields = next_fields;
        steps.reward = array(numbers.data(), PER_FLOAT32);
        steps.terminated = array(terminated.data(), PER_BOOL);
        steps.truncated = array(truncated.data(), PER_BOOL);
        steps.mask = array(mask.data(), PER_BOOL);
        steps.next_mask = array(next_mask.data(), PER_BOOL);
        if (chance(2)) steps.priorities = array(priorities.data(), PER_FLOAT32);
        ids_.assign(n, -1);
        const per_status status = per_replay_add(replay, &steps, ids_.data(), nullptr);
        const bool is_refused = status == PER_ERROR_INVALID_ARGUMENT || status == PER_ERROR_FULL;  // on_gap, overwrite
        EXPECT_TRUE(status == PER_OK || is_refused || is_held(options, status)) << per_last_error();
        for (const int64_t id : ids_) EXPECT_GE(id, -1);
    }

    void sample(per_replay* replay) {
        const per_replay_options options = described(replay);
        const int64_t live = statistics_of(replay).live;
        const int64_t n = static_cast<int64_t>(1 + below(12));
        const int32_t first = options.max_times_sampled > 0 ? PER_WITHOUT_REPLACEMENT : PER_STRATIFIED;
        for (int32_t scheme = first; scheme <= PER_WITHOUT_REPLACEMENT; ++scheme) {
            per_sample_options sample = initialized(per_sample_options_init);
            sample.scheme = scheme;
            sample.prioritization = static_cast<int32_t>(below(3));
            sample.normalize_weights = static_cast<int32_t>(below(3));
            if (chance(3)) sample.uniform_fraction = 0.5;
            Arrays arrays(options, n, false);
            const per_status status = per_replay_sample(replay, &sample, n, &arrays.batch, nullptr);
            if (is_held(options, status) || exceeds_tolerance(options, n, status)) continue;
            EXPECT_TRUE(live > 0 || status == PER_ERROR_EMPTY) << per_last_error();
            EXPECT_TRUE(live == 0 || scheme == PER_WITHOUT_REPLACEMENT || status == PER_OK) << per_last_error();
            if (status != PER_OK) continue;
            for (int64_t i = 0; i < n; ++i) {
                EXPECT_TRUE(std::isfinite(arrays.batch.weights[i]) && arrays.batch.weights[i] >= 0);
                EXPECT_TRUE(std::isfinite(arrays.batch.priorities[i]) && arrays.batch.priorities[i] >= 0);
                EXPECT_GE(arrays.batch.ids[i], 0);
                if (options.keep_times_sampled == 0) continue;
                EXPECT_GE(arrays.batch.times_sampled[i], 1);
                EXPECT_TRUE(options.max_times_sampled == 0 ||
                            arrays.batch.times_sampled[i] <= options.max_times_sampled);
            }
            ids_.assign(arrays.batch.ids, arrays.batch.ids + n);
        }
    }

    void sample_hindsight(per_replay* replay) {
        const int64_t n = 4;
        per_hindsight_options hindsight = initialized(per_hindsight_options_init);
        hindsight.achieved_field = 0;
        hindsight.goal_field = 1;
        hindsight.strategy = static_cast<int32_t>(below(3));
        hindsight.reward = [](void*, int64_t, const void*, const void*, float*, uint8_t*) { return int32_t{0}; };
        const per_replay_options options = described(replay);
        Arrays arrays(options, n, false);
        const per_status status = sample_with_hindsight(replay, nullptr, &hindsight, n, &arrays.batch, nullptr);
        const bool is_refused = status == PER_ERROR_EMPTY || status == PER_ERROR_INVALID_ARGUMENT;
        EXPECT_TRUE(status == PER_OK || is_refused || is_held(options, status)) << per_last_error();
    }

    void update(per_replay* replay) {
        const per_replay_options options = described(replay);
        const int64_t steps = options.sequence_length > 0 ? options.burn_in + options.sequence_length : 1;
        if (ids_.empty()) return;
        std::vector<float> errors(ids_.size() * static_cast<size_t>(steps));
        for (float& error : errors) error = static_cast<float>(below(1000)) * 0.5f;
        const int64_t n = static_cast<int64_t>(ids_.size());
        const bool by_errors = chance(2);
        const per_status status = by_errors ? write_td_errors(replay, n, ids_.data(), 1, errors.data(), nullptr)
                                            : write_priorities(replay, n, ids_.data(), errors.data(), nullptr);
        EXPECT_TRUE(status == PER_OK || status == PER_ERROR_INVALID_ARGUMENT) << per_last_error();
    }

    void read(per_replay* replay) {
        const per_replay_options options = described(replay);
        const std::vector<int64_t> ids = live_ids(replay);
        std::vector<float> priorities(ids.size());
        const int64_t n = static_cast<int64_t>(ids.size());
        EXPECT_OK(per_replay_get_priorities(replay, n, ids.data(), priorities.data(), nullptr));
        for (const float priority : priorities) EXPECT_TRUE(std::isfinite(priority) && priority >= 0);
        Arrays arrays(options, n + 8, true);
        EXPECT_OK(per_replay_get(replay, n, ids.data(), &arrays.batch, nullptr));
        int64_t count = 0;
        EXPECT_OK(per_replay_get_bootstraps(replay, 8, &arrays.batch, &count, nullptr));
        if (count <= 8) {
            const std::vector<int64_t> bootstraps(arrays.batch.ids, arrays.batch.ids + count);
            const std::vector<float> values(8);
            EXPECT_OK(
                per_replay_compute_advantages(replay, 2, 3, -1, 0.5, count, bootstraps.data(), values.data(), nullptr));
        }
        if (n == 0) return;
        per_epochs* epochs = nullptr;
        EXPECT_OK(per_epochs_create(replay, 1, 5, 0, nullptr, &epochs));
        Arrays minibatch(options, 5, false);
        for (int64_t i = 0; i < n; i += 5) EXPECT_OK(per_epochs_next(epochs, &minibatch.batch, &count, nullptr));
        per_epochs_free(epochs);
    }

    void use(per_replay* replay, int n_calls) {
        for (int i = 0; i < n_calls; ++i) {
            switch (below(12)) {
                case 0:
                    EXPECT_OK(per_replay_cut(replay, 0, nullptr, nullptr));
                    break;
                case 1:
                    EXPECT_OK(change_alpha(replay, static_cast<double>(below(3)) * 0.5, nullptr));
                    break;
                case 2:
                    change_n_step(replay, static_cast<int64_t>(1 + below(4)), nullptr);
                    break;
                case 3:
                    EXPECT_TRUE(!chance(4) || per_replay_clear(replay, nullptr) == PER_OK);
                    break;
                case 4:
                    sample_hindsight(replay);
                    break;
                case 5:
                    read(replay);
                    break;
                case 6:
                case 7:
                    update(replay);
                    break;
                case 8:
                case 9:
                    sample(replay);
                    break;
                default:
                    add(replay, static_cast<int64_t>(1 + below(6)));
            }
        }
    }

 private:
    Choices random_;
    std::vector<int64_t> ids_;
    std::vector<float> serial_;
};

}  // namespace per::test

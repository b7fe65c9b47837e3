// per.h from C++20: handles that free themselves, and errors that are exceptions.
#include <per.h>

#include <array>
#include <cstdint>
#include <iostream>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

void check(per_status status) {
    if (status != PER_OK) {
        throw std::runtime_error(std::string(per_status_name(status)) + ": " + per_last_error());
    }
}

struct FreeReplay {
    void operator()(per_replay* replay) const { per_replay_free(replay); }
};
using Replay = std::unique_ptr<per_replay, FreeReplay>;

Replay create_replay(std::span<const per_field> fields, int64_t capacity) {
    per_replay_options options;
    check(per_replay_options_init(&options, sizeof options));
    options.capacity = capacity;
    options.fields = fields.data();
    options.n_fields = static_cast<int64_t>(fields.size());
    options.seed = 7;
    per_replay* replay = nullptr;
    check(per_replay_create(&options, &replay));
    return Replay(replay);
}

per_array array(std::span<const float> values) {
    return {values.data(), nullptr, 0, PER_FLOAT32};
}
per_array flags(std::span<const uint8_t> values) {
    return {values.data(), nullptr, 0, PER_BOOL};
}

// An episode of three steps at once, [K] of each array, observations of two numbers.
void add_episode(per_replay* replay) {
    const std::array<float, 6> observation = {0, 0, 1, 10, 2, 20};
    const std::array<float, 6> next_observation = {1, 10, 2, 20, 3, 30};
    const std::array<float, 3> reward = {0, 0, 1};
    const std::array<float, 3> td_error = {0.5F, -1, 2};
    const std::array<uint8_t, 3> terminated = {0, 0, 1};
    const std::array<uint8_t, 3> truncated = {0, 0, 0};

    const per_array fields = array(observation);
    const per_array next_fields = array(next_observation);
    per_steps steps;
    check(per_steps_init(&steps, sizeof steps));
    steps.length = 3;
    steps.fields = &fields;
    steps.next_fields = &next_fields;
    steps.reward = array(reward);
    steps.terminated = flags(terminated);
    steps.truncated = flags(truncated);
    steps.td_errors = array(td_error);
    check(per_replay_add(replay, &steps, nullptr, nullptr));
}

void sample(per_replay* replay) {
    constexpr int64_t batch_size = 4;
    std::vector<float> observation(2 * batch_size), next_observation(2 * batch_size), weights(batch_size);
    std::array<void*, 1> fields = {observation.data()};
    std::array<void*, 1> next_fields = {next_observation.data()};
    per_batch batch;
    check(per_batch_init(&batch, sizeof batch));
    batch.fields = fields.data();
    batch.next_fields = next_fields.data();
    batch.weights = weights.data();
    check(per_replay_sample(replay, nullptr, batch_size, &batch, nullptr));
    for (int64_t i = 0; i < batch_size; ++i) {
        std::cout << "(" << observation[2 * i] << ", " << observation[2 * i + 1] << ") -> (" << next_observation[2 * i]
                  << ", " << next_observation[2 * i + 1] << "), weight " << weights[i] << "\n";
    }
}

int main() try {
    const int64_t two = 2;
    const per_field field = {"observation", &two, 1, PER_FLOAT32, PER_ROLE_DEFAULT, 0, nullptr, 0, 0};
    const Replay replay = create_replay({&field, 1}, 1000);
    add_episode(replay.get());
    sample(replay.get());

    try {
        check(per_replay_set_gamma(replay.get(), 1.5, nullptr));
    } catch (const std::runtime_error& error) {
        std::cout << "refused: " << error.what() << "\n";
    }
    return 0;
} catch (const std::runtime_error& error) {
    std::cerr << error.what() << "\n";
    return 1;
}

// Small handles and a check of errors, for tests of per.hpp.
#pragma once

#include <gtest/gtest.h>
#include <per.hpp>

#include <cstdint>
#include <string>
#include <vector>

// The statement throws this kind of per::Error, with a message that contains the text.
#define EXPECT_ERROR(statement, kind, text)                                                 \
    try {                                                                                   \
        statement;                                                                          \
        ADD_FAILURE() << "nothing was thrown";                                              \
    } catch (const per::kind& error) {                                                      \
        EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what(); \
    }

inline per::SumTree small_tree() {
    per::TreeOptions options;
    options.capacity = 4;
    options.seed = 7;
    return per::SumTree(options);
}

// Observations and goals are two numbers each. Values and advantages are 0 by default.
inline per::ReplayOptions small_options() {
    per::ReplayOptions options;
    options.capacity = 64;
    options.seed = 7;
    return options;
}
inline per::ReplayBuffer small_buffer(const per_replay_options& options = small_options()) {
    return per::ReplayBuffer(
        options, {per::field<float>("observation", {2}), per::field<int8_t>("action"), per::field<float>("goal", {2}),
                  per::field<float>("value").set_default(0.0f), per::field<float>("advantage").set_default(0.0f)});
}

// Adds an episode of one environment: step t observes (t, 10 t), then (t + 1, 10 t + 10), its action and reward are t,
// its goal (-1, -1). The last step is terminated. Returns the ids.
inline std::vector<int64_t> add_episode(per::ReplayBuffer& buffer, int n) {
    std::vector<float> observation, next_observation, reward;
    const std::vector<float> goal(2 * static_cast<std::size_t>(n), -1.0f);
    std::vector<int8_t> action;
    std::vector<uint8_t> terminated, truncated;
    for (int t = 0; t < n; ++t) {
        const auto now = static_cast<float>(t);
        observation.insert(observation.end(), {now, 10 * now});
        next_observation.insert(next_observation.end(), {now + 1, 10 * now + 10});
        reward.push_back(now);
        action.push_back(static_cast<int8_t>(t));
        terminated.push_back(t == n - 1);
        truncated.push_back(0);
    }
    per::Steps steps = buffer.steps();
    steps.length = n;
    steps.fields["observation"] = observation;
    steps.fields["action"] = action;
    steps.fields["goal"] = goal;
    steps.next_fields["observation"] = next_observation;
    steps.reward = reward;
    steps.terminated = terminated;
    steps.truncated = truncated;
    std::vector<int64_t> ids(static_cast<std::size_t>(n));
    buffer.add(steps, ids);
    return ids;
}

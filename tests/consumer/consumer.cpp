// consumer.c written with per.hpp: both print the same lines.
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <per.hpp>
#include <vector>

static unsigned bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

int main() try {
    constexpr int n_steps = 500, batch_size = 64;
    std::vector<float> observation, reward, td_errors;
    std::vector<uint8_t> terminated(n_steps), truncated, next_mask(n_steps);
    for (int i = 0; i < n_steps; i++) {
        observation.push_back(static_cast<float>(i));
        reward.push_back(static_cast<float>(i % 17) / 8);
        td_errors.push_back(static_cast<float>(i * i % 101) / 16);
        truncated.push_back(i % 50 == 49);
    }

    per::ReplayOptions options;
    options.capacity = n_steps;
    options.n_step = 3;
    options.seed = 3;
    per::ReplayBuffer buffer(options, {per::field<float>("observation")});
    per::Steps steps = buffer.steps();
    steps.length = n_steps;
    steps.fields["observation"] = observation;
    steps.reward = reward;
    steps.terminated = terminated;
    steps.truncated = truncated;
    steps.next_mask = next_mask;
    steps.td_errors = td_errors;
    buffer.add(steps);

    const per::Batch batch = buffer.sample(batch_size);
    for (std::size_t i = 0; i < batch_size; i++) {
        std::printf("%" PRId64 " %08x %08x %08x %08x %08x\n", batch.ids()[i], bits(batch.reward()[i]),
                    bits(batch.discount()[i]), bits(batch.weights()[i]), bits(batch.priorities()[i]),
                    bits(batch.probabilities()[i]));
    }
    per::LoaderOptions loader_options;
    loader_options.batch_size = batch_size;
    per::Loader loader = buffer.loader(loader_options);
    loader.stop();
    try {
        buffer.sample(0);
    } catch (const per::Error& error) {
        std::printf("%s: %s\n", error.status_name(), error.what());
    }
    return 0;
} catch (const per::Error& error) {
    std::fprintf(stderr, "%s: %s\n", error.status_name(), error.what());
    return 1;
}

// Sequences of calls on a buffer of any options, compared with the naive model.
#include "../cpp/replay_walk.h"
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
    using namespace per::test;
    return fuzz(data, size, [](Choices choices) {
        ChosenValues row;
        for (const VariedOption& option : varied_options()) row.push_back(below(choices, option.values.size()));
        const uint64_t seed = choices();
        RandomUse(row, seed, choices).run(200, 8);
    });
}

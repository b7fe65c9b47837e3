// Sequences of calls on a buffer with any options, compared with the naive model. Rows lie in memory, plain or
// compressed, or in a file.
#include "../cpp/replay_walk.h"
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
    using namespace per::test;
    return fuzz(data, size, [](Choices choices) {
        ChosenValues row;
        for (const VariedOption& option : varied_options()) row.push_back(below(choices, option.values.size()));
        const uint64_t seed = choices();
        static const OwnFolder folder;
        const bool is_stored = seed % 8 == 0, is_compressed = seed % 8 == 1 || seed % 8 == 2;
        RandomUse(row, seed, choices, is_stored ? folder.path() : nullptr,
                  is_compressed ? PER_COMPRESSION_DELTA : PER_COMPRESSION_NONE)
            .run(200, 8);
    });
}

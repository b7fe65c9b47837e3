// Common code of the fuzzers. They use the random walks of the tests, which check with GoogleTest.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <span>

#include "../cpp/choices.h"

// No file of a fuzzer must survive a power failure.
extern "C" {
int fsync(int) {
    return 0;
}
int fdatasync(int) {
    return 0;
}
}

namespace per::test {

// Calls use(choices) with choices from the input, and aborts the program if a check failed.
template <class Use>
int fuzz(const uint8_t* data, std::size_t size, const Use& use) {
    use(Choices(std::span(data, size)));
    if (testing::Test::HasFailure()) std::abort();
    return 0;
}

// The next choice, 0 .. n - 1.
inline uint64_t below(Choices& choices, uint64_t n) {
    return choices() % n;
}

}  // namespace per::test

// Where a random walk takes its choices from: a seed, or the input of a fuzzer.
#pragma once

#include <cstdint>
#include <random>
#include <span>

namespace per::test {

// A generator as the distributions of the C++ library take it.
class Choices {
 public:
    using result_type = uint64_t;
    static constexpr uint64_t min() { return 0; }
    static constexpr uint64_t max() { return ~uint64_t{0}; }

    explicit Choices(uint64_t seed) : random_(seed) {}
    // Each byte of the input is a choice, so that a fuzzer changes one by changing a byte. What is chosen after the end
    // is random and depends on the length alone.
    explicit Choices(std::span<const uint8_t> input) : random_(input.size()), input_(input), has_input_(true) {}

    // A byte is repeated to 64 bits, since distributions look at the upper ones and remainders at the lower ones.
    uint64_t operator()() {
        if (input_.empty()) return random_();
        const uint64_t byte = input_.front();
        input_ = input_.subspan(1);
        return byte * 0x0101010101010101;
    }

    // The input is at its end. Never so of a seed.
    bool are_over() const { return has_input_ && input_.empty(); }

 private:
    std::mt19937_64 random_;
    std::span<const uint8_t> input_;
    bool has_input_ = false;
};

}  // namespace per::test

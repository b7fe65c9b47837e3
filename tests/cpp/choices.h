// Choices of a random walk, from a seed or the input of a fuzzer, and values of options in which every pair occurs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace per::test {

// A generator for the distributions of the C++ library.
class Choices {
 public:
    using result_type = uint64_t;
    static constexpr uint64_t min() { return 0; }
    static constexpr uint64_t max() { return ~uint64_t{0}; }

    explicit Choices(uint64_t seed) : random_(seed) {}
    // Each byte of the input is a choice, so a fuzzer changes one choice by changing one byte. Choices after the end
    // are random and depend only on the length.
    explicit Choices(std::span<const uint8_t> input) : random_(input.size()), input_(input), has_input_(true) {}

    // A byte is repeated to 64 bits, since distributions use the upper bits and remainders the lower ones.
    uint64_t operator()() {
        if (input_.empty()) return random_();
        const uint64_t byte = input_.front();
        input_ = input_.subspan(1);
        return byte * 0x0101010101010101;
    }

    // True if all input is used up. Never true with a seed.
    bool are_over() const { return has_input_ && input_.empty(); }

 private:
    std::mt19937_64 random_;
    std::span<const uint8_t> input_;
    bool has_input_ = false;
};

// A value of each option, by its number.
using ChosenValues = std::vector<size_t>;

// Two options and a value of each.
struct ValuePair {
    size_t first, first_value, second, second_value;

    bool is_in(const ChosenValues& row) const { return row[first] == first_value && row[second] == second_value; }
};

// n_values[i] is the number of values of option i.
inline std::vector<ValuePair> every_pair(const std::vector<size_t>& n_values) {
    std::vector<ValuePair> pairs;
    for (size_t a = 0; a < n_values.size(); ++a)
        for (size_t b = a + 1; b < n_values.size(); ++b)
            for (size_t x = 0; x < n_values[a]; ++x)
                for (size_t y = 0; y < n_values[b]; ++y) pairs.push_back({a, x, b, y});
    return pairs;
}

// Few rows in which each pair of values occurs: greedily, the best of several random rows that contain the next missing
// pair.
inline std::vector<ChosenValues> covering_rows(const std::vector<size_t>& n_values) {
    std::mt19937_64 random(1);
    std::vector<ValuePair> missing = every_pair(n_values);
    std::vector<ChosenValues> rows;
    while (!missing.empty()) {
        const auto covered_by = [&](const ChosenValues& row) {
            return std::count_if(missing.begin(), missing.end(),
                                 [&](const ValuePair& pair) { return pair.is_in(row); });
        };
        ChosenValues best;
        for (int candidate = 0; candidate < 30; ++candidate) {
            ChosenValues row;
            for (const size_t n : n_values) row.push_back(random() % n);
            row[missing[0].first] = missing[0].first_value;
            row[missing[0].second] = missing[0].second_value;
            if (best.empty() || covered_by(row) > covered_by(best)) best = row;
        }
        std::erase_if(missing, [&](const ValuePair& pair) { return pair.is_in(best); });
        rows.push_back(best);
    }
    return rows;
}

}  // namespace per::test

// What is said of the last batch in per_replay_statistics.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace per {

// Ages of the transitions of a batch: rows that their lanes took after them.
struct BatchAges {
    int64_t sum = 0;
    int64_t largest = 0;

    void add(int64_t age) {
        sum += age;
        largest = std::max(largest, age);
    }
    void add(const BatchAges& other) {
        sum += other.sum;
        largest = std::max(largest, other.largest);
    }
};

struct BatchFigures {
    int64_t size = 0;
    int64_t max_age = 0;
    double mean_age = 0;
    double effective_size = 0;  // (sum of w)^2 / sum of w^2
    double duplicates = 0;
};

// Of a batch of transitions in these slots. `table` is scratch.
BatchFigures figures_of_batch(const std::vector<int64_t>& slots, const std::vector<float>& weights,
                              const BatchAges& ages, std::vector<uint64_t>& table);

}  // namespace per

// A set of indices: those that a draw without replacement has found, or those of a batch.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace per {

// Uses open addressing in a table of the caller's. It has found_set_size() entries, each of them an index + 1, or 0.
class FoundSet {
 public:
    FoundSet(uint64_t* table, int64_t size)
        : table_(table), mask_(static_cast<uint64_t>(size) - 1), shift_(64 - std::countr_zero(mask_ + 1)) {}

    // Must be called first: the table may hold anything.
    void clear() { std::fill_n(table_, mask_ + 1, 0); }

    // Returns true if the index was not in the set.
    bool insert(int64_t index) {
        const uint64_t entry = static_cast<uint64_t>(index) + 1;
        // Fibonacci hashing: neighbours are spread over the table.
        uint64_t at = (entry * 0x9E3779B97F4A7C15u) >> shift_;
        for (; table_[at] != 0; at = (at + 1) & mask_)
            if (table_[at] == entry) return false;
        table_[at] = entry;
        return true;
    }

 private:
    uint64_t* table_;
    uint64_t mask_;
    int shift_;
};

inline int64_t found_set_size(int64_t n) {
    return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(2 * n)));
}

}  // namespace per

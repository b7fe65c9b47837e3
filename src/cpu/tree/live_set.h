// The set of slots with live transitions. It finds the r-th of them, so that a uniform draw only draws r.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/memory/memory.h"
#include "cpu/memory/prefetch.h"

namespace per::cpu {

// A bitmap, 512 slots to a line, and counts above it: one for each line, then level by level one for every 8 counts of
// the level below. A slot takes 0.143 bytes. insert(), erase() and select() cost O(log capacity), contains() one read.
class LiveSet {
 public:
    explicit LiveSet(int64_t capacity, const MemorySource& source = {});

    int64_t count() const { return count_; }
    MemoryUse memory_use() const { return memory_.use(); }
    void prefetch(int64_t slot) const { prefetch_to_read(&words_[slot / 64]); }
    bool contains(int64_t slot) const { return words_[slot / 64] >> (slot % 64) & 1; }
    // The bits of 64 slots. `slot` is a multiple of 64.
    uint64_t word(int64_t slot) const { return words_[slot / 64]; }

    // Insert and erase slots first .. first + n - 1. Return the number of slots changed.
    int64_t insert(int64_t first, int64_t n = 1);
    int64_t erase(int64_t first, int64_t n = 1);
    // Takes time in proportion to the set, not to the capacity.
    void clear();

    // Calls visit(first, n) for runs of adjacent slots that together hold the whole set.
    template <class Visit>
    void for_each_used_line(const Visit& visit) const {
        const auto visit_line = [&](int64_t line) {
            const int64_t first = line * slots_per_line;
            visit(first, std::min(slots_per_line, capacity_ - first));
        };
        for_each_used(n_levels_, 0, visit_line, [](int64_t) {});
    }

    // Writes to slots_out[i] the slot of the set that has ranks[i] smaller slots in the set, for i < n. Each rank is in
    // 0 .. count() - 1. Overwrites `ranks`.
    void select(int64_t n, uint64_t* ranks, int64_t* slots_out) const;

 private:
    static constexpr int64_t slots_per_line = 512;
    static constexpr int64_t words_per_line = slots_per_line / 64;
    static constexpr int64_t counts_per_line = 8;
    static constexpr int max_levels = 12;  // 2^40 slots: 2^31 lines, and 8 or fewer counts at the top

    void add(int64_t slot, int64_t difference);

    // Walks the part of the tree below a node; the nodes of level 0 are the lines of the bitmap. Calls visit_line(line)
    // for each line that is not empty, and visit_count(count) for each count that is not 0, after all below that count.
    template <class VisitLine, class VisitCount>
    void for_each_used(int level, int64_t node, const VisitLine& visit_line, const VisitCount& visit_count) const {
        if (level == 0) return visit_line(node);
        for (int64_t i = node * counts_per_line; i < (node + 1) * counts_per_line; ++i) {
            if (counts_[level - 1][i] == 0) continue;
            for_each_used(level - 1, i, visit_line, visit_count);
            visit_count(counts_[level - 1][i]);
        }
    }

    int64_t capacity_;
    int64_t count_ = 0;
    Memory memory_;
    std::size_t bytes_;
    uint64_t* words_;
    int n_levels_ = 0;
    int64_t* counts_[max_levels];  // by level; [0] has one for each line of the bitmap
};

}  // namespace per::cpu

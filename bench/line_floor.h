#ifndef PER_BENCH_LINE_FLOOR_H
#define PER_BENCH_LINE_FLOOR_H

#include <cstdint>

#include "page_array.h"

namespace bench {

/*
 * What the machine's memory asks of any sum tree with 16 float32 leaves to a cache line: to draw or to update a leaf,
 * its line, the line with that line's sum and the one with the sum above must be touched. Here nothing else is done,
 * and the addresses are known beforehand.
 */
class LineFloor {
 public:
    explicit LineFloor(int64_t capacity);

    /* Reads the three lines of each index. Returns the sum of what it read. */
    uint64_t read(int64_t count, const int64_t* indices) const;

    /* Adds 1 to one entry of each of the three lines of each index. */
    void write(int64_t count, const int64_t* indices);

    /* Sum of all entries. */
    uint64_t total() const;

    /* Sum of what is stored for one index. */
    uint64_t at(int64_t index) const;

 private:
    template <int rw>
    void prefetch(int64_t index) const;

    PageArray<uint32_t> leaves_;
    PageArray<uint64_t> sums_;        // [i] of leaves 16 i ..
    PageArray<uint64_t> upper_sums_;  // [i] of leaves 128 i ..
};

}  // namespace bench

#endif

#ifndef PER_BENCH_LINE_FLOOR_H
#define PER_BENCH_LINE_FLOOR_H

#include <cstdint>

#include "page_array.h"

namespace bench {

/*
 * The memory accesses of any sum tree with 16 float32 leaves per cache line: a draw or an update touches the leaf's
 * line, the line with its sum, and the line with the sum above. Nothing else is done here, and the addresses are known
 * in advance.
 */
class LineFloor {
 public:
    explicit LineFloor(int64_t capacity);

    /* Reads the three lines of each index and returns the sum of the values. */
    uint64_t read(int64_t count, const int64_t* indices) const;

    /* Adds 1 to one entry of each of the three lines of each index. */
    void write(int64_t count, const int64_t* indices);

    /* Sum of all entries. */
    uint64_t total() const;

    /* Sum of the entries of one index. */
    uint64_t at(int64_t index) const;

 private:
    template <int rw>
    void prefetch(int64_t index) const;

    PageArray<uint32_t> leaves_;
    PageArray<uint64_t> sums_;        // [i]: sum of leaves 16 i ..
    PageArray<uint64_t> upper_sums_;  // [i]: sum of leaves 128 i ..
};

}  // namespace bench

#endif

#ifndef PER_BENCH_FETCHED_BLOCKS_H
#define PER_BENCH_FETCHED_BLOCKS_H

#include <algorithm>
#include <cstdint>

namespace bench {

/*
 * Calls fetch(i) and later copy(i) for 0 .. n - 1. Prefetches rows in blocks, one block ahead of the copies: more page
 * walks overlap than with alternating fetches and copies.
 */
template <class Fetch, class Copy>
void in_fetched_blocks(int64_t n, const Fetch& fetch, const Copy& copy) {
    constexpr int64_t block = 32;
    for (int64_t i = 0; i < std::min(block, n); ++i) fetch(i);
    for (int64_t first = 0; first < n; first += block) {
        const int64_t end = std::min(first + block, n);
        for (int64_t i = end; i < std::min(end + block, n); ++i) fetch(i);
        for (int64_t i = first; i < end; ++i) copy(i);
    }
}

}  // namespace bench

#endif

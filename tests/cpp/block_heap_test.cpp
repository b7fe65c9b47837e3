// Blocks do not overlap and keep their content, and freed memory is reused for blocks of other sizes.
#include "cpu/memory/block_heap.h"
#include "base/error.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <random>
#include <utility>
#include <vector>

#include "base/error.h"
#include "per.h"

namespace per::cpu {
namespace {

struct Held {
    std::byte* block;
    size_t bytes;
    int value;

    bool is_whole() const {
        return std::all_of(block, block + bytes, [&](std::byte byte) { return byte == std::byte(value); });
    }
};

Held filled(BlockHeap& heap, size_t bytes, int value) {
    std::byte* const block = heap.allocate(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % (bytes > 128 ? 8 : 4), 0u);
    std::memset(block, value, bytes);
    return {block, bytes, value};
}

TEST(BlockHeap, blocks_keep_what_is_in_them) {
    for (const size_t most : {size_t{8}, size_t{24}, size_t{1000}, size_t{7080}, size_t{300000}}) {
        HeapLimit limit(0);
        BlockHeap heap(most, 1, limit);
        std::mt19937 random(1);
        std::vector<Held> held;
        const size_t n_held = most > 100000 ? 40 : 400;
        for (int i = 0; i < 8000; ++i) {
            if (held.size() < n_held && random() % 3 != 0) {
                const size_t bytes = random() % 8 == 0 ? most : 1 + random() % most;
                held.push_back(filled(heap, bytes, i % 256));
            } else if (!held.empty()) {
                std::swap(held[random() % held.size()], held.back());
                ASSERT_TRUE(held.back().is_whole());
                heap.free(held.back().block);
                held.pop_back();
            }
        }
        for (const Held& one : held) ASSERT_TRUE(one.is_whole());
    }
}

// Each new block replaces the oldest one, as in a ring of rows. After blocks of many sizes, the heap is hardly larger
// than with the largest ones alone.
TEST(BlockHeap, memory_serves_for_other_sizes_once_blocks_are_freed) {
    constexpr size_t most = 7080;
    constexpr size_t n_blocks = 3000;
    HeapLimit limit(0);
    BlockHeap heap(most, 1, limit);
    std::deque<Held> held;
    const auto go_round = [&](size_t bytes) {
        for (size_t i = 0; i < n_blocks; ++i) {
            if (held.size() == n_blocks) {
                heap.free(held.front().block);
                held.pop_front();
            }
            held.push_back(filled(heap, bytes, static_cast<int>(i % 256)));
        }
    };
    go_round(most);
    const size_t at_most = heap.memory_use().bytes;
    EXPECT_LT(at_most, n_blocks * most * 105 / 100 + (size_t{2} << 20));
    for (const size_t bytes : {size_t{100}, size_t{3000}, size_t{50}, most, size_t{700}, most}) go_round(bytes);
    EXPECT_LE(heap.memory_use().bytes, at_most + at_most / 20);
}

// Up to 64 bytes there is a size for each multiple of 4. Beyond them a block wastes at most an eighth of its bytes and
// 16 more.
TEST(BlockHeap, small_blocks_take_little_more_than_their_bytes) {
    for (const size_t bytes : {size_t{12}, size_t{16}, size_t{20}, size_t{24}, size_t{28}, size_t{32}, size_t{36},
                               size_t{60}, size_t{64}, size_t{100}, size_t{250}, size_t{777}, size_t{2000}}) {
        HeapLimit limit(0);
        BlockHeap heap(7080, 3, limit);
        constexpr size_t n_blocks = 200000;
        const size_t wasted = bytes <= 64 ? 0 : bytes / 8 + 16;
        for (size_t i = 0; i < n_blocks; ++i) heap.allocate(bytes);
        EXPECT_LT(heap.memory_use().bytes, n_blocks * (bytes + wasted) * 102 / 100 + (size_t{1} << 17)) << bytes;
    }
}

// Blocks as large as incompressible frames.
TEST(BlockHeap, large_blocks_take_a_sixtieth_more_and_few_bytes) {
    for (const auto& [most, n_blocks] : {std::pair{size_t{1024}, size_t{2000}},
                                         {4112, 10000},
                                         {7072, 4000},
                                         {28240, 2000},
                                         {110608, 300},
                                         {110608, 1500},
                                         {233016, 300},
                                         {1000016, 70},
                                         {(size_t{1} << 24) + 16, 5}}) {
        HeapLimit limit(0);
        BlockHeap heap(most, 1, limit);
        for (size_t i = 0; i < n_blocks; ++i) heap.allocate(most);
        EXPECT_LT(heap.memory_use().bytes, n_blocks * (most + most / 60 + 64) + (size_t{2} << 20)) << most;
    }
}

// Blocks that are too large for a chunk leave nothing behind when they are freed, and the others go on as before.
TEST(BlockHeap, blocks_beyond_the_chunks_are_given_back) {
    constexpr size_t largest = 1000, n_blocks = 50;
    HeapLimit limit(0);
    BlockHeap heap(largest, 8, limit);
    std::vector<Held> held;
    for (size_t i = 0; i < n_blocks; ++i) held.push_back(filled(heap, largest, static_cast<int>(i)));
    const size_t before = heap.memory_use().bytes;
    for (size_t i = 0; i < n_blocks; ++i) held.push_back(filled(heap, 100000 + i, static_cast<int>(n_blocks + i)));
    EXPECT_GE(heap.memory_use().bytes, before + n_blocks * 100000);
    EXPECT_LT(heap.memory_use().bytes, before + n_blocks * 100200);
    for (size_t i = n_blocks; i < held.size(); i += 2) heap.free(held[i].block);
    for (size_t i = 0; i < held.size(); ++i) {
        const bool is_freed = i >= n_blocks && i % 2 == 0;
        EXPECT_TRUE(is_freed || held[i].is_whole());
    }
    for (size_t i = n_blocks + 1; i < held.size(); i += 2) heap.free(held[i].block);
    EXPECT_EQ(heap.memory_use().bytes, before);
    heap.allocate(100000);  // freed with the heap
}

TEST(BlockHeap, a_heap_that_was_not_used_has_no_memory) {
    HeapLimit limit(0);
    EXPECT_EQ(BlockHeap(size_t{1} << 24, 1, limit).memory_use().bytes, 0u);
}

// Several heaps share a limit. They use nearly all of it, and what large blocks took is there for others.
TEST(BlockHeap, heaps_stay_within_their_limit) {
    constexpr size_t most = size_t{1} << 20;
    HeapLimit limit(most);
    BlockHeap heap(1000, 8, limit), other(1000, 8, limit);
    size_t n = 0;
    try {
        for (;; ++n) (n % 2 == 0 ? heap : other).allocate(1000);
    } catch (const Error& error) {
        EXPECT_EQ(error.status(), PER_ERROR_FULL);
    }
    EXPECT_GT(n, most * 9 / 10 / 1008);
    EXPECT_LE(n, most / 1008);
    const size_t left = limit.left();
    EXPECT_THROW(heap.allocate(left + 100000), Error);
    EXPECT_EQ(limit.left(), left);

    HeapLimit of_large(most);
    BlockHeap large(1000, 8, of_large);
    std::byte* const block = large.allocate(most - 100);
    EXPECT_THROW(large.allocate(5000), Error);
    large.free(block);
    EXPECT_EQ(of_large.left(), most);
    large.free(large.allocate(most - 100));
}

}  // namespace
}  // namespace per::cpu

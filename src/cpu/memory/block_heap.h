// Memory for many blocks of different sizes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cpu/memory/memory.h"

namespace per::cpu {

// The memory that the heaps of a buffer may still take.
class HeapLimit {
 public:
    // max_bytes: 0 for no limit.
    explicit HeapLimit(int64_t max_bytes) : max_bytes_(max_bytes), left_(max_bytes > 0 ? max_bytes : INT64_MAX) {}

    std::size_t left() const { return static_cast<std::size_t>(left_); }
    // Throws Error with FULL if fewer bytes are left.
    void check(std::size_t bytes) const;
    void take(std::size_t bytes) noexcept { left_ -= static_cast<int64_t>(bytes); }
    void give_back(std::size_t bytes) noexcept { left_ += static_cast<int64_t>(bytes); }

 private:
    const int64_t max_bytes_;
    int64_t left_;
};

// Memory is cut into chunks of one size, and a chunk into blocks of one size. A chunk whose blocks have all been freed
// can be cut again for blocks of any size, so no memory is lost if sizes change over time. The heap keeps its chunks
// until it is destroyed. Blocks that are too large for a chunk are allocated one by one.
class BlockHeap {
 public:
    // Blocks of up to largest_bytes are in chunks, each with room for n_largest of that size. With a larger n_largest
    // there are more sizes of blocks, so that less of a block is unused. Allocates only its tables.
    // `limit` must outlive it.
    BlockHeap(std::size_t largest_bytes, std::size_t n_largest, HeapLimit& limit);
    ~BlockHeap();
    BlockHeap(const BlockHeap&) = delete;
    BlockHeap& operator=(const BlockHeap&) = delete;

    // Returns a block aligned to 4 bytes, and to 8 if it is larger than 128. Throws Error or std::bad_alloc if there is
    // no memory.
    std::byte* allocate(std::size_t bytes);
    void free(std::byte* block) noexcept;

    MemoryUse memory_use() const;

 private:
    struct SizeClass {
        std::size_t bytes;  // of a block
        uint32_t blocks;    // of a chunk
    };
    struct Chunk {
        std::byte* first;
        std::byte* freed;  // list of freed blocks, each with the address of the next one
        Chunk* next;       // in its list
        Chunk* previous;
        uint32_t size_class;
        uint32_t n_used;
        uint32_t n_begun;  // blocks that have been used since the chunk got its class; later blocks are untouched
    };
    struct Area {
        Memory memory;
        std::unique_ptr<Chunk[]> chunks;
    };
    // Lies before a block that was allocated by itself.
    struct LargeHeader {
        LargeHeader* next;  // in large_
        LargeHeader* previous;
        std::size_t bytes;
    };

    std::byte* allocate_large(std::size_t bytes);
    void free_large(LargeHeader* block) noexcept;

    template <class Node>
    static void link(Node*& list, Node* node) noexcept;
    template <class Node>
    static void unlink(Node*& list, Node* node) noexcept;
    uint32_t class_of(std::size_t bytes) const;
    std::vector<Area>::const_iterator first_area_beyond(const std::byte* address) const;
    Chunk* chunk_of(const std::byte* block) const;
    Chunk* chunk_with_room(uint32_t size_class);
    void add_area();

    HeapLimit& limit_;
    std::size_t chunk_bytes_;
    std::size_t largest_bytes_;       // of a block in a chunk
    std::vector<SizeClass> classes_;  // from the largest to the smallest
    std::vector<Chunk*> with_room_;   // by class: lists of chunks with blocks in use and others free
    Chunk* empty_ = nullptr;          // list of chunks without blocks in use
    std::vector<Area> areas_;         // by address
    std::size_t area_bytes_ = 0;      // of all areas
    std::size_t n_chunks_ = 0;
    LargeHeader* large_ = nullptr;  // list of blocks that were allocated one by one
    std::size_t large_bytes_ = 0;
};

}  // namespace per::cpu

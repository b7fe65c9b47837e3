// Memory for many blocks of different sizes, which come and go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cpu/memory/memory.h"

namespace per::cpu {

// Blocks of up to a known number of bytes. Memory is cut into chunks of one size, and a chunk into blocks of one size.
// One whose blocks have all been freed serves for blocks of any size, so that memory is not lost where sizes change in
// the course of time. What was taken from the system stays here until the heap ends.
class BlockHeap {
 public:
    // Takes no memory yet but for its tables.
    explicit BlockHeap(std::size_t most_bytes);

    // Aligned to 8 bytes. Throws Error, or std::bad_alloc, where memory ends.
    std::byte* allocate(std::size_t bytes);
    void free(std::byte* block) noexcept;

    MemoryUse memory_use() const;

 private:
    // Blocks of a chunk have the size of its class.
    struct SizeClass {
        std::size_t bytes;
        uint32_t blocks;  // of a chunk
    };
    struct Chunk {
        std::byte* first;
        std::byte* freed;  // blocks, each with the address of the next one
        Chunk* next;       // in the list that it is in
        Chunk* previous;
        uint32_t size_class;
        uint32_t n_used;
        uint32_t n_begun;  // blocks that were ever used since the chunk has its class: the first ones
    };
    // What lies before a block.
    struct Header {
        Chunk* chunk;
    };

    static void link(Chunk*& list, Chunk* chunk) noexcept;
    static void unlink(Chunk*& list, Chunk* chunk) noexcept;
    uint32_t class_of(std::size_t bytes) const;
    Chunk* chunk_with_room(uint32_t size_class);
    void add_area();

    std::size_t chunk_bytes_;
    std::vector<SizeClass> classes_;  // from the largest to the smallest
    std::vector<Chunk*> with_room_;   // by class: lists of chunks with blocks in use and others free
    Chunk* empty_ = nullptr;          // a list, too
    std::vector<Memory> areas_;
    std::vector<std::unique_ptr<Chunk[]>> chunks_;  // by area
    std::size_t area_bytes_ = 0;                    // of all
    std::size_t n_chunks_ = 0;
};

}  // namespace per::cpu

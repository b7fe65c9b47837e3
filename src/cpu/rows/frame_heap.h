// Frames that do not lie in the column of their field, which holds pointers to them instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cpu/memory/block_heap.h"
#include "cpu/memory/column.h"
#include "cpu/memory/memory.h"
#include "cpu/memory/prefetch.h"

namespace per::cpu {

// Stores the frames of a field in a heap. Derived classes define the contents of a block.
//
// Frames are put into slots in two passes, so that memory can only run out in the first. A derived class prepares
// frames; put_prepared() then puts all of them into their slots. If memory runs out, the caller calls drop_prepared().
//
// Several threads may read at once; all other calls need the lock of the buffer.
class FrameHeap {
 public:
    // What a heap needs to know of its buffer. by_slot() becomes the part of the rows with index `part`, and notifies
    // this listener.
    struct Place {
        int64_t capacity;
        std::size_t part;
        ChangeListener* const& listener;
        HeapLimit& limit;
    };

    // A frame in memory: this header, for a long frame the number of its bytes, the address of the key if the frame was
    // packed with one, and the bytes.
    class Block {
     public:
        uint32_t n_holders() const { return n_holders_; }
        // The block by which this one was packed, which it holds. NULL: the bytes are all there is.
        Block* key() const;
        std::span<const std::byte> bytes() const {
            return {after_number() + (has_key_ != 0 ? sizeof(Block*) : 0), n_bytes()};
        }
        std::byte* bytes_to_write() { return const_cast<std::byte*>(bytes().data()); }

     private:
        friend class FrameHeap;
        Block(Block* key, std::size_t n_bytes);
        static std::size_t header_bytes(std::size_t n_bytes) {
            return sizeof(Block) + (is_long(n_bytes) ? sizeof(uint32_t) : 0);
        }
        static bool is_long(std::size_t n_bytes) { return n_bytes >= uint32_t{1} << 16; }

        std::size_t n_bytes() const { return is_long_ != 0 ? read_number() : n_bytes_; }
        uint32_t read_number() const;
        const std::byte* after_number() const {
            return reinterpret_cast<const std::byte*>(this + 1) + (is_long_ != 0 ? sizeof(uint32_t) : 0);
        }

        uint32_t has_key_ : 1;
        uint32_t is_long_ : 1;
        uint32_t n_holders_ : 14;
        uint32_t n_bytes_ : 16;  // unless it is long
    };
    // The most frames that one key packs. The count can be larger, since saves in the background hold blocks, too.
    static constexpr uint32_t most_holders = uint32_t{1} << 13;

    virtual ~FrameHeap() = default;

    // The block of each slot; NULL if it has none.
    const RowColumn<Block*>& by_slot() const { return by_slot_; }
    void prefetch(int64_t slot) const { prefetch_to_read(by_slot()[slot]); }

    void put_prepared() noexcept;
    void drop_prepared() noexcept;

    // A block that is held is not freed when another one takes its slot, but by release().
    static void hold(Block* block) noexcept {
        if (block != nullptr) ++block->n_holders_;
    }
    void release(Block* block) noexcept;

    virtual MemoryUse memory_use() const;

 protected:
    struct Prepared {
        int64_t slot;
        Block* block;
    };

    // largest_bytes, without headers, and n_largest are those of BlockHeap.
    FrameHeap(int64_t largest_bytes, std::size_t n_largest, const Place& place);

    // A block that has one holder, and holds its key.
    Block* allocate(int64_t n_bytes, Block* key = nullptr);
    // The entry for the next block of a slot. A later entry for the same slot replaces it.
    Prepared& begin(int64_t slot);

 private:
    void drop_overwritten() noexcept;

    const size_t most_prepared_;
    BlockHeap heap_;
    Memory blocks_;
    RowColumn<Block*> by_slot_;
    std::vector<Prepared> prepared_;
};

}  // namespace per::cpu

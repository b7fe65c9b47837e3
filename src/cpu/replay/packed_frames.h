// The frames of a field that is kept compressed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/memory/block_heap.h"
#include "cpu/memory/column.h"
#include "cpu/memory/memory.h"
#include "cpu/memory/prefetch.h"
#include "rows/fields.h"
#include "rows/frame_packing.h"

namespace per::cpu {

// A frame is stored as its difference from a key: an earlier frame of its lane that is stored unpacked (a key frame, in
// the words of per.h). So any frame can be read with only one other frame, in whatever order frames are overwritten. A
// frame that differs too much from the key is stored unpacked, and is the next key. A key also ends once the frames
// after it take four times its memory: as they get less like it, a closer key pays.
//
// Several threads may read at once; all other calls need the lock of the buffer.
class PackedFrames {
 public:
    // A frame in memory. A key lives as long as a frame that needs it.
    struct Block {
        Block* key;  // NULL: the frame is stored unpacked
        uint32_t n_holders;
        uint32_t n_packed;  // bytes

        std::byte* bytes() { return reinterpret_cast<std::byte*>(this + 1); }
        const std::byte* bytes() const { return reinterpret_cast<const std::byte*>(this + 1); }
    };

    // by_slot() becomes the part of the rows with index `part`, and notifies this listener.
    PackedFrames(const Field& field, int64_t capacity, int64_t n_envs, std::size_t part,
                 ChangeListener* const& listener);

    // The frame in each slot. NULL: none was ever put there, and it reads as zeros.
    const RowColumn<Block*>& by_slot() const { return by_slot_; }
    int64_t frame_bytes() const { return shape_.bytes; }

    void read(int64_t slot, std::byte* frame_out) const { read(by_slot()[slot], frame_out); }
    void read(const Block* frame, std::byte* frame_out) const;
    // Prefetch for read(): first the block that by_slot() points to, then its key.
    void prefetch(int64_t slot) const { prefetch_to_read(by_slot()[slot]); }
    void prefetch_key(int64_t slot) const;

    // Frames are put into slots in two passes, so that memory can only run out in the first. prepare() packs a frame
    // with the key of its lane, prepare_instead() with the key of the slot's present frame; put_prepared() then puts
    // all of them into their slots. If memory runs out, the caller calls drop_prepared().
    void prepare(int64_t env, int64_t slot, const std::byte* frame);
    void prepare_instead(int64_t slot, const std::byte* frame);
    void put_prepared() noexcept;
    void drop_prepared() noexcept;

    // A frame that is held is not freed when another one takes its slot, but by release().
    static void hold(Block* frame) noexcept {
        if (frame != nullptr) ++frame->n_holders;
    }
    void release(Block* frame) noexcept;

    MemoryUse memory_use() const;

 private:
    struct LaneKey {
        Block* block = nullptr;
        int64_t n_packed = 0;  // bytes of the frames that were packed by it
    };

    struct Prepared {
        int64_t slot;
        Block* block;
    };

    Block* allocate(int64_t n_bytes);
    Block* packed_by(Block* key, const std::byte* frame);
    Block* as_it_is(const std::byte* frame);
    Prepared& begin(int64_t slot);
    void drop_overwritten() noexcept;
    void set_key(LaneKey& key, Block* block) noexcept;

    const FrameShape shape_;
    const size_t most_prepared_;
    BlockHeap heap_;
    Memory blocks_;
    RowColumn<Block*> by_slot_;
    std::vector<LaneKey> keys_;  // by environment
    std::vector<Prepared> prepared_;
    std::vector<std::byte> packed_;  // one frame
};

}  // namespace per::cpu

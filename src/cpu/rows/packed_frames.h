// The frames of a field that is kept compressed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/memory/column.h"
#include "cpu/memory/memory.h"
#include "cpu/rows/frame_heap.h"
#include "rows/fields.h"
#include "rows/frame_packing.h"

namespace per::cpu {

// A frame is stored as its difference from a key: an earlier frame of its lane that is stored unpacked (a key frame, in
// the words of per.h). So any frame can be read with only one other frame, in whatever order frames are overwritten. A
// frame that differs too much from the key is stored unpacked, and is the next key. A key also ends once the frames
// after it take four times its memory: as they get less like it, a closer key pays.
class PackedFrames final : public FrameHeap {
 public:
    PackedFrames(const Field& field, int64_t n_envs, const Place& place);

    // A slot without a block reads as zeros.
    void read(int64_t slot, std::byte* frame_out) const { read(by_slot()[slot], frame_out); }
    void read(const Block* frame, std::byte* frame_out) const;
    // Prefetches what read() needs beside the block, once prefetch() has fetched that.
    void prefetch_key(int64_t slot) const;

    // prepare() packs a frame with the key of its lane, prepare_instead() with the key of the slot's present frame.
    void prepare(int64_t env, int64_t slot, const std::byte* frame);
    void prepare_instead(int64_t slot, const std::byte* frame);

    MemoryUse memory_use() const override;

 private:
    struct LaneKey {
        Block* block = nullptr;
        int64_t n_packed = 0;  // bytes of the frames that were packed by it
    };

    Block* packed_by(Block* key, const std::byte* frame);
    Block* as_it_is(const std::byte* frame);
    void set_key(LaneKey& key, Block* block) noexcept;

    const FrameShape shape_;
    std::vector<LaneKey> keys_;      // by environment
    std::vector<std::byte> packed_;  // one frame
};

}  // namespace per::cpu

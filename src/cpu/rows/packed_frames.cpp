#include "cpu/rows/packed_frames.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

namespace per::cpu {
namespace {

// A key ends once the frames packed by it take this multiple of its own memory. Frames of 84 by 84 bytes of 14 Atari
// games take an eighth less memory with a multiple of 4 than with 2, and hardly less with 8 than with 4. If each frame
// is less like the key than the one before, a small multiple is best.
constexpr int64_t frames_of_key = 4;
constexpr int64_t chunk_bytes = 16384;     // of small frames; a chunk of large ones has room for one
constexpr int64_t prefetched_bytes = 256;  // of a key; the hardware goes on from there

}  // namespace

PackedFrames::PackedFrames(const Field& field, int64_t n_envs, const Place& place)
    : FrameHeap(field.bytes, static_cast<size_t>(1 + chunk_bytes / field.bytes), place),
      shape_(shape_of_frame(field)),
      keys_(static_cast<size_t>(n_envs)),
      packed_(static_cast<size_t>(most_packed_bytes(shape_))) {}

void PackedFrames::read(const Block* frame, std::byte* frame_out) const {
    if (frame == nullptr)
        std::memset(frame_out, 0, static_cast<size_t>(shape_.bytes));
    else if (const Block* const key = frame->key(); key != nullptr)
        unpack_frame(shape_, frame->bytes().data(), std::ssize(frame->bytes()), key->bytes().data(), frame_out);
    else
        std::ranges::copy(frame->bytes(), frame_out);
}

void PackedFrames::prefetch_key(int64_t slot) const {
    const Block* const frame = by_slot()[slot];
    if (frame == nullptr) return;
    const Block* const key = frame->key();
    const std::byte* const first = (key != nullptr ? key : frame)->bytes().data();
    for (int64_t i = 0; i < std::min(shape_.bytes, prefetched_bytes); i += line_bytes) prefetch_to_read(first + i);
}

// Returns NULL if there is no key, if it has too many frames to count, or if the packed frame would be too large.
PackedFrames::Block* PackedFrames::packed_by(Block* key, const std::byte* frame) {
    if (key == nullptr || key->n_holders() >= most_holders) return nullptr;
    const int64_t n_packed = pack_frame(shape_, frame, key->bytes().data(), packed_.data());
    if (n_packed < 0) return nullptr;
    Block* const block = allocate(n_packed, key);
    std::memcpy(block->bytes_to_write(), packed_.data(), static_cast<size_t>(n_packed));
    return block;
}

void PackedFrames::set_key(LaneKey& key, Block* block) noexcept {
    hold(block);
    release(std::exchange(key.block, block));
    key.n_packed = 0;
}

PackedFrames::Block* PackedFrames::as_it_is(const std::byte* frame) {
    Block* const block = allocate(shape_.bytes);
    std::memcpy(block->bytes_to_write(), frame, static_cast<size_t>(shape_.bytes));
    return block;
}

void PackedFrames::prepare(int64_t env, int64_t slot, const std::byte* frame) {
    Prepared& prepared = begin(slot);
    LaneKey& key = keys_[static_cast<size_t>(env)];
    prepared.block = packed_by(key.block, frame);
    if (prepared.block == nullptr) {
        prepared.block = as_it_is(frame);
        set_key(key, prepared.block);
    } else {
        key.n_packed += std::ssize(prepared.block->bytes());
        if (key.n_packed >= frames_of_key * shape_.bytes) set_key(key, nullptr);
    }
}

// Leaves the lane's key as it is, for the next frame that is added: that frame may be nothing like this one.
void PackedFrames::prepare_instead(int64_t slot, const std::byte* frame) {
    Prepared& prepared = begin(slot);
    Block* const old = by_slot()[slot];
    prepared.block = packed_by(old != nullptr && old->key() != nullptr ? old->key() : old, frame);
    if (prepared.block == nullptr) prepared.block = as_it_is(frame);
}

MemoryUse PackedFrames::memory_use() const {
    return FrameHeap::memory_use() + MemoryUse{keys_.capacity() * sizeof(LaneKey) + packed_.capacity(), 0};
}

}  // namespace per::cpu

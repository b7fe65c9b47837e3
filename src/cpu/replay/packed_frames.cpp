#include "cpu/replay/packed_frames.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

namespace per::cpu {
namespace {

// How much the frames of a key take before the next one, as a multiple of its own memory. Frames of 84 by 84 bytes of 14
// Atari games take an eighth less with 4 than with 2, and hardly less with 8; where frames get ever less like the key,
// few are best.
constexpr int64_t frames_of_key = 4;
// More is never packed, so that 32 bits count it.
constexpr uint32_t most_holders = std::numeric_limits<uint32_t>::max() / 2;
constexpr int64_t prefetched_bytes = 256;  // of a key; the hardware goes on from there

}  // namespace

PackedFrames::PackedFrames(const Field& field, int64_t capacity, int64_t n_envs)
    : shape_(shape_of_frame(field)),
      heap_(sizeof(Block) + static_cast<size_t>(shape_.bytes)),
      by_slot_(array_bytes(capacity, sizeof(Block*))),
      keys_(static_cast<size_t>(n_envs)),
      packed_(static_cast<size_t>(most_packed_bytes(shape_))) {}

void PackedFrames::read(const Block* frame, std::byte* frame_out) const {
    if (frame == nullptr)
        std::memset(frame_out, 0, static_cast<size_t>(shape_.bytes));
    else if (frame->key == nullptr)
        std::memcpy(frame_out, frame->bytes(), static_cast<size_t>(shape_.bytes));
    else
        unpack_frame(shape_, frame->bytes(), frame->n_packed, frame->key->bytes(), frame_out);
}

void PackedFrames::prefetch_key(int64_t slot) const {
    const Block* const frame = by_slot()[slot];
    if (frame == nullptr) return;
    const std::byte* const first = frame->key != nullptr ? frame->key->bytes() : frame->bytes();
    for (int64_t i = 0; i < std::min(shape_.bytes, prefetched_bytes); i += line_bytes) prefetch_to_read(first + i);
}

PackedFrames::Block* PackedFrames::allocate(int64_t n_bytes) {
    return new (heap_.allocate(sizeof(Block) + static_cast<size_t>(n_bytes))) Block{nullptr, 1, 0};
}

// NULL: it would take too much.
PackedFrames::Block* PackedFrames::packed_by(Block* key, const std::byte* frame) {
    if (key == nullptr || key->n_holders >= most_holders) return nullptr;
    const int64_t n_packed = pack_frame(shape_, frame, key->bytes(), packed_.data());
    if (n_packed < 0) return nullptr;
    Block* const block = allocate(n_packed);
    std::memcpy(block->bytes(), packed_.data(), static_cast<size_t>(n_packed));
    block->n_packed = static_cast<uint32_t>(n_packed);
    block->key = key;
    hold(key);
    return block;
}

void PackedFrames::set_key(LaneKey& key, Block* block) noexcept {
    hold(block);
    release(std::exchange(key.block, block));
    key.n_packed = 0;
}

void PackedFrames::prepare(int64_t env, const std::byte* frame) {
    prepared_.push_back(nullptr);
    LaneKey& key = keys_[static_cast<size_t>(env)];
    Block* block = packed_by(key.block, frame);
    if (block == nullptr) {
        block = allocate(shape_.bytes);
        std::memcpy(block->bytes(), frame, static_cast<size_t>(shape_.bytes));
        set_key(key, block);
    } else {
        key.n_packed += block->n_packed;
        if (key.n_packed >= frames_of_key * shape_.bytes) set_key(key, nullptr);
    }
    prepared_.back() = block;
}

void PackedFrames::put(int64_t slot) noexcept {
    release(std::exchange(by_slot()[slot], prepared_[n_put_]));
    if (++n_put_ < prepared_.size()) return;
    prepared_.clear();
    n_put_ = 0;
}

void PackedFrames::drop_prepared() noexcept {
    for (; n_put_ < prepared_.size(); ++n_put_) release(prepared_[n_put_]);
    prepared_.clear();
    n_put_ = 0;
}

void PackedFrames::release(Block* frame) noexcept {
    while (frame != nullptr && --frame->n_holders == 0) {
        Block* const key = frame->key;
        heap_.free(reinterpret_cast<std::byte*>(frame));
        frame = key;
    }
}

}  // namespace per::cpu

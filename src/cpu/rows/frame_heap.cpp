#include "cpu/rows/frame_heap.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace per::cpu {
namespace {

// If a call puts several frames into a slot, only the last one stays. Once a call has prepared this multiple of the
// slots, the frames that later ones overwrite are dropped early.
constexpr size_t most_prepared_of_slot = 2;

}  // namespace

FrameHeap::FrameHeap(int64_t largest_bytes, std::size_t n_largest, const Place& place)
    : most_prepared_(most_prepared_of_slot * static_cast<size_t>(place.capacity)),
      heap_(Block::header_bytes(static_cast<size_t>(largest_bytes)) + static_cast<size_t>(largest_bytes), n_largest,
            place.limit),
      blocks_(array_bytes(place.capacity, sizeof(Block*))),
      by_slot_({blocks_.data(), sizeof(Block*)}, place.part, place.listener) {}

FrameHeap::Block::Block(Block* key, std::size_t n_bytes)
    : has_key_(key != nullptr), is_long_(is_long(n_bytes)), n_holders_(1), n_bytes_(n_bytes & 0xffff) {
    const uint32_t number = static_cast<uint32_t>(n_bytes);
    if (is_long_ != 0) std::memcpy(static_cast<void*>(this + 1), &number, sizeof number);
    if (key != nullptr) std::memcpy(const_cast<std::byte*>(after_number()), &key, sizeof key);
}

uint32_t FrameHeap::Block::read_number() const {
    uint32_t number;
    std::memcpy(&number, this + 1, sizeof number);
    return number;
}

FrameHeap::Block* FrameHeap::Block::key() const {
    Block* key = nullptr;
    if (has_key_ != 0) std::memcpy(&key, after_number(), sizeof key);
    return key;
}

FrameHeap::Block* FrameHeap::allocate(int64_t n_bytes, Block* key) {
    const size_t n = static_cast<size_t>(n_bytes);
    const size_t all = Block::header_bytes(n) + (key != nullptr ? sizeof key : 0) + n;
    Block* const block = new (heap_.allocate(all)) Block(key, n);
    hold(key);
    return block;
}

FrameHeap::Prepared& FrameHeap::begin(int64_t slot) {
    if (prepared_.size() >= most_prepared_) drop_overwritten();
    prepared_.push_back({slot, nullptr});
    return prepared_.back();
}

// Keeps the last of several frames for one slot.
void FrameHeap::drop_overwritten() noexcept {
    std::stable_sort(prepared_.begin(), prepared_.end(),
                     [](const Prepared& a, const Prepared& b) { return a.slot < b.slot; });
    size_t n = 0;
    for (size_t i = 0; i < prepared_.size(); ++i) {
        if (i + 1 < prepared_.size() && prepared_[i + 1].slot == prepared_[i].slot)
            release(prepared_[i].block);
        else
            prepared_[n++] = prepared_[i];
    }
    prepared_.resize(n);
}

void FrameHeap::put_prepared() noexcept {
    for (const Prepared& prepared : prepared_) release(std::exchange(by_slot_.to_write(prepared.slot), prepared.block));
    prepared_.clear();
}

void FrameHeap::drop_prepared() noexcept {
    for (const Prepared& prepared : prepared_) release(prepared.block);
    prepared_.clear();
}

void FrameHeap::release(Block* block) noexcept {
    while (block != nullptr && --block->n_holders_ == 0) {
        Block* const key = block->key();
        heap_.free(reinterpret_cast<std::byte*>(block));
        block = key;
    }
}

MemoryUse FrameHeap::memory_use() const {
    return blocks_.use() + heap_.memory_use() + MemoryUse{prepared_.capacity() * sizeof(Prepared), 0};
}

}  // namespace per::cpu

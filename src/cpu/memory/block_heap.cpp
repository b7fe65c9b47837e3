#include "cpu/memory/block_heap.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <functional>
#include <new>
#include <utility>

#include "base/error.h"

namespace per::cpu {
namespace {

constexpr std::size_t least_block_bytes = sizeof(std::byte*);  // a freed block has the address of the next one
constexpr std::size_t most_small_bytes = 256;
constexpr std::size_t least_chunk_bytes = 8192;
constexpr std::size_t small_area_bytes = std::size_t{1} << 17;
constexpr std::size_t large_area_bytes = std::size_t{1} << 21;  // huge pages; see Memory
// Areas become large once the heap has this size, so that a large area is at most an eighth of the heap.
constexpr std::size_t least_bytes_of_large = std::size_t{1} << 24;
constexpr std::size_t most_area_bytes = std::size_t{1} << 26;

// The sizes of blocks are multiples of this.
std::size_t unit_of(std::size_t bytes) {
    return bytes <= 128 ? 4 : 16;
}

std::size_t round_up(std::size_t bytes, std::size_t to) {
    return (bytes + to - 1) / to * to;
}

// The number of chunks in the next area. It grows with the heap, so that there are few areas and little of their memory
// is unused.
std::size_t chunks_of_next_area(std::size_t bytes_so_far, std::size_t chunk_bytes) {
    if (bytes_so_far < least_bytes_of_large && chunk_bytes <= small_area_bytes) return small_area_bytes / chunk_bytes;
    const std::size_t wanted = std::clamp(bytes_so_far / 64, large_area_bytes, most_area_bytes);
    return round_up(std::max(wanted, chunk_bytes), large_area_bytes) / chunk_bytes;
}

}  // namespace

void HeapLimit::check(std::size_t bytes) const {
    if (bytes <= left()) return;
    throw Error(PER_ERROR_FULL, "rows need %zu bytes more, and %zu of max_heap_bytes, %" PRId64 ", are left", bytes,
                left(), max_bytes_);
}

// The chunk size is a multiple of the largest block. Each class has about an eighth more blocks in a chunk than the class
// of the next larger blocks, and among small blocks, whose sizes are rounded, a sixteenth more.
BlockHeap::BlockHeap(std::size_t largest_bytes, std::size_t n_largest, HeapLimit& limit)
    : limit_(limit), largest_bytes_(std::max(least_block_bytes, round_up(largest_bytes, unit_of(largest_bytes)))) {
    std::size_t n = std::max(n_largest, (least_chunk_bytes + largest_bytes_ - 1) / largest_bytes_);
    chunk_bytes_ = n * largest_bytes_;
    while (chunk_bytes_ / n >= least_block_bytes) {
        const std::size_t most = chunk_bytes_ / n, bytes = most / unit_of(most) * unit_of(most);
        classes_.push_back({bytes, static_cast<uint32_t>(chunk_bytes_ / bytes)});
        n += std::max<std::size_t>(1, most <= most_small_bytes ? n / 16 : n / 8);
    }
    with_room_.resize(classes_.size());
}

BlockHeap::~BlockHeap() {
    while (large_ != nullptr) free_large(large_);
}

template <class Node>
void BlockHeap::link(Node*& list, Node* node) noexcept {
    node->previous = nullptr;
    node->next = list;
    if (list != nullptr) list->previous = node;
    list = node;
}

template <class Node>
void BlockHeap::unlink(Node*& list, Node* node) noexcept {
    (node->previous != nullptr ? node->previous->next : list) = node->next;
    if (node->next != nullptr) node->next->previous = node->previous;
}

// The class of the smallest blocks with room for `bytes`.
uint32_t BlockHeap::class_of(std::size_t bytes) const {
    const auto end =
        std::partition_point(classes_.begin(), classes_.end(), [&](const SizeClass& c) { return c.bytes >= bytes; });
    return static_cast<uint32_t>(end - classes_.begin()) - 1;
}

std::vector<BlockHeap::Area>::const_iterator BlockHeap::first_area_beyond(const std::byte* address) const {
    return std::upper_bound(areas_.begin(), areas_.end(), address, [](const std::byte* one, const Area& area) {
        return std::less<>()(one, area.memory.data());
    });
}

// Returns NULL if the block was allocated by itself.
BlockHeap::Chunk* BlockHeap::chunk_of(const std::byte* block) const {
    const auto beyond = first_area_beyond(block);
    if (beyond == areas_.begin()) return nullptr;
    const Area& area = beyond[-1];
    const std::size_t at =
        reinterpret_cast<std::uintptr_t>(block) - reinterpret_cast<std::uintptr_t>(area.memory.data());
    return at < area.memory.use().bytes ? &area.chunks[at / chunk_bytes_] : nullptr;
}

void BlockHeap::add_area() {
    const std::size_t wanted = chunks_of_next_area(area_bytes_, chunk_bytes_);
    const std::size_t n =
        std::clamp<std::size_t>(limit_.left() / 8 / chunk_bytes_, 1, wanted);  // leaves some for others
    const std::size_t bytes = n * chunk_bytes_;
    limit_.check(bytes);
    areas_.reserve(areas_.size() + 1);
    Area area = {Memory(bytes), std::make_unique<Chunk[]>(n)};
    for (std::size_t i = n; i > 0; --i) {
        area.chunks[i - 1].first = area.memory.data() + (i - 1) * chunk_bytes_;
        link(empty_, &area.chunks[i - 1]);
    }
    areas_.insert(first_area_beyond(area.memory.data()), std::move(area));
    limit_.take(bytes);
    area_bytes_ += bytes;
    n_chunks_ += n;
}

BlockHeap::Chunk* BlockHeap::chunk_with_room(uint32_t size_class) {
    if (with_room_[size_class] != nullptr) return with_room_[size_class];
    if (empty_ == nullptr) add_area();
    Chunk* const chunk = empty_;
    unlink(empty_, chunk);
    *chunk = {chunk->first, nullptr, nullptr, nullptr, size_class, 0, 0};
    link(with_room_[size_class], chunk);
    return chunk;
}

std::byte* BlockHeap::allocate_large(std::size_t bytes) {
    const std::size_t all = sizeof(LargeHeader) + bytes;
    limit_.check(all);
    auto* const block = new (::operator new(all)) LargeHeader{nullptr, nullptr, all};
    link(large_, block);
    limit_.take(all);
    large_bytes_ += all;
    return reinterpret_cast<std::byte*>(block + 1);
}

void BlockHeap::free_large(LargeHeader* block) noexcept {
    unlink(large_, block);
    large_bytes_ -= block->bytes;
    limit_.give_back(block->bytes);
    ::operator delete(block);
}

std::byte* BlockHeap::allocate(std::size_t bytes) {
    if (bytes > largest_bytes_) return allocate_large(bytes);
    const uint32_t size_class = class_of(bytes);
    Chunk* const chunk = chunk_with_room(size_class);
    std::byte* block = chunk->freed;
    if (block != nullptr)
        std::memcpy(&chunk->freed, block, sizeof chunk->freed);
    else
        block = chunk->first + chunk->n_begun++ * classes_[size_class].bytes;
    if (++chunk->n_used == classes_[size_class].blocks) unlink(with_room_[size_class], chunk);
    return block;
}

void BlockHeap::free(std::byte* block) noexcept {
    Chunk* const chunk = chunk_of(block);
    if (chunk == nullptr) return free_large(reinterpret_cast<LargeHeader*>(block) - 1);
    Chunk*& with_room = with_room_[chunk->size_class];
    if (chunk->n_used == classes_[chunk->size_class].blocks) link(with_room, chunk);
    std::memcpy(block, &chunk->freed, sizeof chunk->freed);
    chunk->freed = block;
    if (--chunk->n_used > 0) return;
    unlink(with_room, chunk);
    link(empty_, chunk);
}

MemoryUse BlockHeap::memory_use() const {
    MemoryUse use = {n_chunks_ * sizeof(Chunk) + large_bytes_, 0};
    for (const Area& area : areas_) use += area.memory.use();
    return use;
}

}  // namespace per::cpu

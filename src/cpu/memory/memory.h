// Zeroed memory for large arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "per.h"

namespace per::cpu {

// Where the memory of an array comes from: the system, or the functions of per_memory.
struct MemorySource {
    decltype(per_memory::allocate) allocate = nullptr;
    decltype(per_memory::deallocate) deallocate = nullptr;
    void* context = nullptr;
    int32_t use = PER_MEMORY_ROWS;
    bool takes_pages = false;  // the system's memory is whole pages, as pinning it pins pages, each of them once only

    MemorySource() = default;
    MemorySource(const per_memory& memory, int32_t memory_use)
        : allocate(memory.allocate), deallocate(memory.deallocate), context(memory.context), use(memory_use) {}
};

struct MemoryUse {
    std::size_t bytes = 0;            // as asked for
    std::size_t huge_page_bytes = 0;  // of them, on huge pages

    MemoryUse& operator+=(const MemoryUse& other) {
        bytes += other.bytes;
        huge_page_bytes += other.huge_page_bytes;
        return *this;
    }
    friend MemoryUse operator+(MemoryUse a, const MemoryUse& b) { return a += b; }
};

// Owns `bytes` of zeros, aligned to 64 bytes; from 512 KiB on, where every random read would miss the TLB, on whole
// huge pages of 2 MiB, if the kernel gives any: the first one is touched at once, to see it. Other pages take no memory
// until they are touched. Of a caller's memory all is touched, on pages of the caller's choice. Throws Error with
// OUT_OF_MEMORY, or with CALLBACK for memory of a caller that is not aligned.
class Memory {
 public:
    Memory() = default;
    explicit Memory(std::size_t bytes, const MemorySource& source = {});
    Memory(Memory&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)),
          bytes_(std::exchange(other.bytes_, 0)),
          mapped_(std::exchange(other.mapped_, 0)),
          source_(std::exchange(other.source_, {})),
          is_huge_(std::exchange(other.is_huge_, false)) {}
    Memory& operator=(Memory&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        std::swap(mapped_, other.mapped_);
        std::swap(source_, other.source_);
        std::swap(is_huge_, other.is_huge_);
        return *this;
    }
    ~Memory();

    std::byte* data() const { return data_; }
    MemoryUse use() const { return {bytes_, is_huge_ ? bytes_ : 0}; }

 private:
    std::byte* data_ = nullptr;
    std::size_t bytes_ = 0;
    std::size_t mapped_ = 0;  // bytes from mmap; 0: from aligned_alloc, or of the caller
    MemorySource source_;
    bool is_huge_ = false;  // the first page, and so most likely the others
};

inline constexpr int64_t line_bytes = 64;  // of a line of the caches

// count * bytes, for an array. Throws Error with OUT_OF_MEMORY where that is beyond any memory.
std::size_t array_bytes(int64_t count, int64_t bytes);

}  // namespace per::cpu

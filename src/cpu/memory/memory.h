// Zeroed memory for large arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "per.h"

namespace per::cpu {

// The source of an array's memory: the system, or the functions of per_memory.
struct MemorySource {
    decltype(per_memory::allocate) allocate = nullptr;
    decltype(per_memory::deallocate) deallocate = nullptr;
    void* context = nullptr;
    int32_t use = PER_MEMORY_ROWS;
    bool takes_pages = false;  // allocates whole pages, since memory that is to be pinned must not share a page

    MemorySource() = default;
    MemorySource(const per_memory& memory, int32_t memory_use)
        : allocate(memory.allocate), deallocate(memory.deallocate), context(memory.context), use(memory_use) {}
};

struct MemoryUse {
    std::size_t bytes = 0;            // requested
    std::size_t huge_page_bytes = 0;  // bytes of these on huge pages

    MemoryUse& operator+=(const MemoryUse& other) {
        bytes += other.bytes;
        huge_page_bytes += other.huge_page_bytes;
        return *this;
    }
    friend MemoryUse operator+(MemoryUse a, const MemoryUse& b) { return a += b; }
};

// How memory was allocated. Frees it.
struct MemoryOrigin {
    std::size_t bytes = 0;
    std::size_t mapped = 0;  // bytes of the mapping; 0: from aligned_alloc, or of the caller
    MemorySource source;
    bool is_huge = false;  // true if the first page is a huge page; the others then most likely are, too

    void operator()(std::byte* data) const;
};

// Owns `bytes` of zeros, aligned to 64 bytes. From 512 KiB on, they lie on whole huge pages of 2 MiB if the kernel
// provides any: on small pages every random read would miss the TLB. The first page is touched to see whether it is
// huge; the others take no memory until they are touched. Memory from a caller's functions has the pages that the
// caller chose, and all of it is touched, to clear it. Throws Error with OUT_OF_MEMORY, or with CALLBACK for memory of
// a caller that is not aligned.
class Memory {
 public:
    Memory() = default;
    explicit Memory(std::size_t bytes, const MemorySource& source = {});

    std::byte* data() const { return data_.get(); }
    MemoryUse use() const {
        const MemoryOrigin& origin = data_.get_deleter();
        return data_ != nullptr ? MemoryUse{origin.bytes, origin.is_huge ? origin.bytes : 0} : MemoryUse{};
    }

 private:
    std::unique_ptr<std::byte[], MemoryOrigin> data_;
};

inline constexpr int64_t line_bytes = 64;  // of the caches

// count * bytes, for an array. Throws Error with OUT_OF_MEMORY if the product overflows.
std::size_t array_bytes(int64_t count, int64_t bytes);

}  // namespace per::cpu

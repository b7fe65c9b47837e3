// Zeroed memory for large arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace per::cpu {

// Owns `bytes` of zeros, aligned to 64 bytes; from 512 KiB on, where every random read would miss the TLB, on whole
// huge pages of 2 MiB. Untouched pages take no memory. Throws Error with OUT_OF_MEMORY.
class Memory {
 public:
    Memory() = default;
    explicit Memory(std::size_t bytes);
    Memory(Memory&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)),
          bytes_(std::exchange(other.bytes_, 0)),
          mapped_(std::exchange(other.mapped_, 0)) {}
    Memory& operator=(Memory&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        std::swap(mapped_, other.mapped_);
        return *this;
    }
    ~Memory();

    std::byte* data() const { return data_; }
    std::size_t bytes() const { return bytes_; }  // as asked for

 private:
    std::byte* data_ = nullptr;
    std::size_t bytes_ = 0;
    std::size_t mapped_ = 0;  // bytes from mmap; 0: from aligned_alloc
};

inline constexpr int64_t line_bytes = 64;  // of a line of the caches

// count * bytes, for an array. Throws Error with OUT_OF_MEMORY where that is beyond any memory.
std::size_t array_bytes(int64_t count, int64_t bytes);

}  // namespace per::cpu

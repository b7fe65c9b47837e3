// Copies frames whose size is known only when a buffer is created.
#pragma once

#include <cstddef>
#include <cstdint>

namespace per::cpu {

// Copies frames of one size.
struct Moves {
    // One frame.
    void (*one)(std::byte* out, const std::byte* frame, int64_t bytes);
    // n frames. The distance between frames is from_stride in the source, and out_stride in the copy.
    void (*many)(std::byte* out, int64_t out_stride, const std::byte* from, int64_t from_stride, int64_t n,
                 int64_t bytes);
    // n frames into consecutive memory: frame i lies `place` bytes after from[i].
    void (*gather)(std::byte* out, const std::byte* const* from, int64_t place, int64_t n, int64_t bytes);
};

// Returns the fastest ones for frames of that size: a call of memcpy takes longer than a small copy itself.
const Moves& moves_of(int64_t bytes);

// Moves::many(), or one memcpy() if neither side has gaps.
void copy_frames(std::byte* out, int64_t out_stride, const std::byte* from, int64_t from_stride, int64_t n,
                 int64_t bytes);

}  // namespace per::cpu

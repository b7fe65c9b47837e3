// Copies frames whose size is known only when a buffer is created.
#pragma once

#include <cstddef>
#include <cstdint>

namespace per::cpu {

// Copies one frame of `bytes`.
using Move = void (*)(std::byte* out, const std::byte* frame, int64_t bytes);

// Returns the fastest one for frames of that size: a call of memcpy takes longer than a small copy itself.
Move move_of(int64_t bytes);

// Copies n frames of `bytes` into consecutive memory.
using Gather = void (*)(std::byte* out, const std::byte* const* frames, int64_t n, int64_t bytes);

// Returns the fastest one for frames of that size: a call for each frame takes longer than a small copy, too.
Gather gather_of(int64_t bytes);

// Copies n frames of `bytes`. The distance between frames is from_stride in the source, and out_stride in the copy.
void copy_frames(std::byte* out, int64_t out_stride, const std::byte* from, int64_t from_stride, int64_t n,
                 int64_t bytes);

}  // namespace per::cpu

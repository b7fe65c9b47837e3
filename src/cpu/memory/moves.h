// Copying frames whose size is known only when a buffer is made.
#pragma once

#include <cstddef>
#include <cstdint>

namespace per::cpu {

// Copies one frame of `bytes`.
using Move = void (*)(std::byte* out, const std::byte* frame, int64_t bytes);

// The fastest one for frames of that size: a call of memcpy takes longer than a small copy itself.
Move move_of(int64_t bytes);

// Copies n frames of `bytes` from where each of them lies to one behind the other.
using Gather = void (*)(std::byte* out, const std::byte* const* frames, int64_t n, int64_t bytes);

// The fastest one for frames of that size: a call for each frame takes longer than a small copy, too.
Gather gather_of(int64_t bytes);

// Copies n frames of `bytes` each that lie from_stride apart to where they are to lie out_stride apart.
void copy_frames(std::byte* out, int64_t out_stride, const std::byte* from, int64_t from_stride, int64_t n,
                 int64_t bytes);

}  // namespace per::cpu

// What a frame differs by from another one, in few bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rows/fields.h"

namespace per::cpu {

// How the elements of a frame lie, as far as it is of use to find what repeats itself. Any frame of so many bytes comes
// out as it went in, whatever is said here.
struct FrameShape {
    int64_t bytes;
    int64_t pixel_bytes;  // an element, or, where the last axis has at most 4 elements, that axis
    int64_t line_bytes;   // the axis of which pixels are made, and where there is none, the frame
};
FrameShape shape_of_frame(const Field& field);

// The most bytes of a packed frame: beyond, it is better kept as it is.
constexpr int64_t most_packed_bytes(const FrameShape& shape) {
    return shape.bytes / 2;
}

// Packs the difference of a frame from `key`. Returns how many bytes of `out` it takes, which has room for
// most_packed_bytes(), and none where the two are the same; -1: it would take more.
//
// It is a sequence of steps through the frame, of two bytes and what follows: how many bytes are those of `key`, and
// what comes then:
//   0 .. 127    so many bytes, which follow
//   128 .. 191  this number less 124 of bytes, each the same as the one that lies a pixel before it
//   192 .. 255  this number less 188 of bytes, each the same as the one that lies a line before it
// Behind the last step the frame is that of `key`.
int64_t pack_frame(const FrameShape& shape, const std::byte* frame, const std::byte* key, std::byte* out);

// Writes the frame. What is packed was made by pack_frame() with the same shape and key.
void unpack_frame(const FrameShape& shape, const std::byte* packed, int64_t packed_bytes, const std::byte* key,
                  std::byte* frame_out);

}  // namespace per::cpu

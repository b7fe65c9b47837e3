// A codec for frames: packs the difference of a frame from another one, its key.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rows/fields.h"

namespace per {

// The layout of a frame, as a hint where bytes repeat. Packing is lossless whatever it says.
struct FrameShape {
    int64_t bytes;
    int64_t pixel_bytes;  // of an element, or of the last axis if that has at most 4 elements
    int64_t line_bytes;   // of the axis whose elements are pixels, or of the frame if there is none
};
FrameShape shape_of_frame(const Field& field);

// A packed frame never has more bytes: a larger one is better kept unpacked.
constexpr int64_t most_packed_bytes(const FrameShape& shape) {
    return shape.bytes / 2;
}

// Packs the difference of a frame from `key` into `out`, which has room for most_packed_bytes(). Returns the number of
// bytes written, 0 for equal frames, or -1 if they do not fit.
//
// The result is a sequence of steps through the frame. The first byte of a step is the number of bytes that are equal
// to the key's. Its second byte, n, gives the bytes after those:
//   0 .. 127    n bytes of the frame, which follow in the step
//   128 .. 191  n - 124 bytes, each a copy of the byte one pixel before it
//   192 .. 255  n - 188 bytes, each a copy of the byte one line before it
// After the last step the frame is equal to the key.
int64_t pack_frame(const FrameShape& shape, const std::byte* frame, const std::byte* key, std::byte* out);

// Writes the frame that pack_frame() packed with the same shape and key.
void unpack_frame(const FrameShape& shape, const std::byte* packed, int64_t packed_bytes, const std::byte* key,
                  std::byte* frame_out);

}  // namespace per

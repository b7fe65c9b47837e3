// Frames of a batch that a device copies out of the rows of a buffer in host memory by itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace per {

// The array that the frames of a field lie in, where they have one of their own; else NULL.
struct FrameArray {
    const std::byte* first = nullptr;
    std::size_t bytes = 0;
};

struct FrameArrays {
    std::vector<FrameArray> fields;       // by field, or empty: no field has one
    std::vector<FrameArray> next_fields;  // likewise, of next observations that are stored apart
};

// Gathers take turns, and are numbered from 1 on. The lock of the buffer is held where one is queued and where one is
// waited for.
class FrameGather {
 public:
    virtual ~FrameGather() = default;

    // Makes the arrays reachable for the device. Throws Error.
    virtual void begin() = 0;
    // Once the last gather is queued: waits for all, and gives the arrays back. Throws Error with CUDA; they may then
    // be reachable until this object ends.
    virtual void end() = 0;

    // The number of the gather that is queued next.
    virtual uint64_t number() const = 0;
    // Where the CPU writes for it where each frame of a batch's array lies, in the order that frames have there; NULL
    // for one that is all zero. No array: the CPU copies the frames of that field.
    virtual const std::byte** places(int64_t field, bool is_next) const = 0;
    // The places are written, and so is what the CPU copies. Where the device cannot be asked, the CPU copies all.
    virtual void queue() noexcept = 0;
    // Waits until the device has read all frames of the gathers up to `number`. Throws Error with CUDA.
    virtual void await(uint64_t number) = 0;
};

}  // namespace per

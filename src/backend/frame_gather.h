// Frames of a batch that a device itself copies out of the rows of a buffer in host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace per {

// The array of a field's frames; NULL if they have no array of their own.
struct FrameArray {
    const std::byte* first = nullptr;
    std::size_t bytes = 0;
};

struct FrameArrays {
    std::vector<FrameArray> fields;       // by field; empty if no field has one
    std::vector<FrameArray> next_fields;  // the same for next observations that are stored apart
};

// Arrays to which the CPU writes the places of frames, instead of copying the frames.
class FramePlaces {
 public:
    virtual ~FramePlaces() = default;

    // The array to which the CPU writes the place of each frame of a batch's array, in the same order; NULL for a frame
    // that is all zero. If this returns NULL, the CPU copies the frames of that field.
    virtual const std::byte** places(int64_t field, bool is_next) const = 0;
};

inline bool has_places(const FramePlaces* places, int64_t field, bool is_next) {
    return places != nullptr && places->places(field, is_next) != nullptr;
}

// Gathers are numbered from 1 and run one after the other. The buffer's lock is held while one is queued and while one
// is awaited.
class FrameGather : public FramePlaces {
 public:
    // Registers the arrays with the device. Throws Error.
    virtual void begin() = 0;
    // Call it after the last gather has been queued. It waits for all gathers, and unregisters the arrays. If it throws
    // Error with CUDA, the arrays may stay registered until this object is destroyed.
    virtual void end() = 0;

    // The number of the next gather to be queued.
    virtual uint64_t number() const = 0;
    // Queues the gather. Call it once the places and the CPU's copies are written. If the gather cannot be queued, the
    // CPU copies all frames.
    virtual void queue() noexcept = 0;
    // Waits until the device has read all frames of the gathers up to `number`. Throws Error with CUDA.
    virtual void await(uint64_t number) = 0;
};

}  // namespace per

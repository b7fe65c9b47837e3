// Copies the frames of steps to the rows that these took.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/add/add_kernels.h"
#include "cuda/add/given_steps.h"

namespace per::cuda {

template <class Word>
__device__ __forceinline__ void copy_words(const std::byte* from, std::byte* to, int64_t n_bytes) {
    for (int64_t i = 0; i < n_bytes / static_cast<int64_t>(sizeof(Word)); ++i)
        reinterpret_cast<Word*>(to)[i] = reinterpret_cast<const Word*>(from)[i];
}

// Casts n elements.
PER_OUT_OF_LINE void cast_elements(const std::byte* from, int32_t from_dtype, std::byte* to, int32_t dtype, int64_t n) {
    const int32_t size = static_cast<int32_t>(dtype_size(dtype));
    for (int64_t i = 0; i < n; ++i) {
        const uint64_t bits = cast_given(from + i * dtype_size(from_dtype), from_dtype, dtype).bits;
        write_piece(to + i * size, size, {{bits, 0}});
    }
}

// Copies up to unit_bytes in words of 1, 2 or 8, which few frames need.
PER_OUT_OF_LINE void copy_other_words(const std::byte* from, std::byte* to, int64_t n_bytes, int32_t word_bytes) {
    if (word_bytes == 8)
        copy_words<uint64_t>(from, to, n_bytes);
    else if (word_bytes == 2)
        copy_words<uint16_t>(from, to, n_bytes);
    else
        copy_words<uint8_t>(from, to, n_bytes);
}

// Copies unit `unit` of the frame of an entry.
__device__ __forceinline__ void copy_unit(const GivenFrames& frames, int64_t entry, int64_t unit,
                                          const DeviceField& field, std::byte* frame) {
    const int64_t offset = unit * unit_bytes;
    const int64_t left = field.bytes - offset;
    const int64_t n_bytes = left < unit_bytes ? left : unit_bytes;
    const std::byte* const from = frames.data + entry * frames.stride;
    std::byte* const to = frame + offset;
    if (frames.word_bytes == 16)
        copy_words<Piece>(from + offset, to, n_bytes);
    else if (frames.word_bytes == 4)
        copy_words<uint32_t>(from + offset, to, n_bytes);
    else if (frames.word_bytes != 0)
        copy_other_words(from + offset, to, n_bytes, frames.word_bytes);
    else
        cast_elements(from + offset / dtype_size(field.dtype) * dtype_size(frames.dtype), frames.dtype, to, field.dtype,
                      n_bytes / dtype_size(field.dtype));
}

// Copies a unit of an entry that took a row; `unit` counts through all frames of the entry. No step of a launch
// overwrites a row that another one took: see max_steps_of_ring() in step_queue.cu.
template <class Steps>
__device__ __forceinline__ void copy_frames(const DeviceReplay& replay, const Steps& steps, int64_t entry,
                                            int64_t taken, int64_t unit) {
    int64_t i = 0;
    while (i + 1 < replay.n_fields && unit >= steps.field(i + 1).frames.first_unit) ++i;
    const GivenField& given = steps.field(i);
    const DeviceField& field = replay.fields[i];
    const WindowRules& rules = steps.rules;
    const bool is_next = given.next.data != nullptr && unit >= given.next.first_unit;
    if (is_next && !(taken & has_next_frame)) return;
    if (!is_next && field.is_observation() && taken & observation_is_there) return;

    const bool is_apart = is_next && rules.store_next_observation;
    const int64_t row = (taken >> entry_flag_bits) + (is_next && !is_apart ? 1 : 0);
    const int64_t env = steps.env(Steps::is_single ? entry : entry % steps.n_lanes);
    const GivenFrames& frames = is_next ? given.next : given.frames;
    std::byte* const array = is_apart ? field.next_frames : field.frames;
    copy_unit(frames, entry, unit - frames.first_unit, field, array + rules.ring.slot(env, row) * field.bytes);
}

// The threads of `span` copy all frames.
template <class Steps>
__device__ __forceinline__ void copy_frames(const DeviceReplay& replay, const Steps& steps, const StepScratch& scratch,
                                            const GridSpan& span) {
    const int64_t n = steps.length * steps.n_lanes * steps.n_units;
    for (int64_t i = span.first; i < n; i += span.step) {
        const int64_t entry = steps.by_units.quotient(i);
        const int64_t taken = scratch.entries[entry];
        if (taken >= 0) copy_frames(replay, steps, entry, taken, i - entry * steps.n_units);
    }
}

}  // namespace per::cuda

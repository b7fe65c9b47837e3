// Copying the frames of steps to the rows that they took.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/add/given_steps.h"
#include "cuda/replay/replay_state.h"

namespace per::cuda {

// What is written down of an entry: the row that it took, and below that
inline constexpr int64_t observation_is_there = 1;  // the step before announced it
inline constexpr int64_t has_next_frame = 2;
inline constexpr int entry_flag_bits = 2;

template <class Word>
__device__ __forceinline__ void copy_words(const std::byte* from, std::byte* to, int64_t n_bytes) {
    for (int64_t i = 0; i < n_bytes / static_cast<int64_t>(sizeof(Word)); ++i)
        reinterpret_cast<Word*>(to)[i] = reinterpret_cast<const Word*>(from)[i];
}

template <class Word>
__device__ __forceinline__ void cast_words(const GivenFrames& frames, const std::byte* from, int32_t dtype,
                                           std::byte* to, int64_t n) {
    for (int64_t i = 0; i < n; ++i)
        reinterpret_cast<Word*>(to)[i] =
            static_cast<Word>(cast_element(from + i * dtype_size(frames.dtype), frames.dtype, dtype).bits);
}

// Unit `unit` of the frame of an entry.
__device__ __forceinline__ void copy_unit(const GivenFrames& frames, int64_t entry, int64_t unit,
                                          const DeviceField& field, std::byte* frame) {
    const int64_t offset = unit * unit_bytes;
    const int64_t left = field.bytes - offset;
    const int64_t n_bytes = left < unit_bytes ? left : unit_bytes;
    const std::byte* const from = frames.data + entry * frames.stride;
    std::byte* const to = frame + offset;
    const int64_t size = dtype_size(field.dtype);
    const std::byte* const elements = from + offset / size * dtype_size(frames.dtype);
    switch (frames.word_bytes != 0 ? frames.word_bytes : -size) {
        case 16:
            return copy_words<WordOf16>(from + offset, to, n_bytes);
        case 8:
            return copy_words<uint64_t>(from + offset, to, n_bytes);
        case 4:
            return copy_words<uint32_t>(from + offset, to, n_bytes);
        case 2:
            return copy_words<uint16_t>(from + offset, to, n_bytes);
        case 1:
            return copy_words<uint8_t>(from + offset, to, n_bytes);
        case -8:
            return cast_words<uint64_t>(frames, elements, field.dtype, to, n_bytes / size);
        case -4:
            return cast_words<uint32_t>(frames, elements, field.dtype, to, n_bytes / size);
        case -2:
            return cast_words<uint16_t>(frames, elements, field.dtype, to, n_bytes / size);
        default:
            return cast_words<uint8_t>(frames, elements, field.dtype, to, n_bytes / size);
    }
}

// Of an entry that took a row; `unit` counts through all its frames.
__device__ __forceinline__ void copy_frames(const DeviceReplay& replay, const GivenSteps& steps, int64_t entry,
                                            int64_t taken, int64_t unit) {
    int64_t i = 0;
    while (i + 1 < replay.n_fields && unit >= steps.field(i + 1).frames.first_unit) ++i;
    const GivenField& given = steps.field(i);
    const DeviceField& field = replay.fields[i];
    const WindowRules& rules = replay.state->rules;
    const bool is_next = given.next.data != nullptr && unit >= given.next.first_unit;
    if (is_next && !(taken & has_next_frame)) return;
    if (!is_next && field.is_observation() && taken & observation_is_there) return;

    const bool is_apart = is_next && rules.store_next_observation;
    const int64_t row = (taken >> entry_flag_bits) + (is_next && !is_apart ? 1 : 0);
    const int64_t env = steps.env(entry % steps.n_lanes);
    // A row that is gone by the end of the launch shares its slot with one that is not.
    if (row < used_end(replay.lanes[env], rules) - rules.ring.rows) return;
    const GivenFrames& frames = is_next ? given.next : given.frames;
    std::byte* const array = is_apart ? field.next_frames : field.frames;
    copy_unit(frames, entry, unit - frames.first_unit, field, array + rules.ring.slot(env, row) * field.bytes);
}

}  // namespace per::cuda

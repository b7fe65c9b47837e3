// The arrays of a call of per_replay_add() as kernels see them: in device memory, in any dtype; elements are cast as
// they are read.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/batch/copy_frames.h"
#include "cuda/replay/replay_state.h"
#include "cuda/runtime/dialect.h"
#include "rows/element.h"
#include "rules/td_error.h"

namespace per::cuda {

// A number for each entry; data is NULL if none was given.
struct GivenNumbers {
    const std::byte* data;
    int32_t dtype;

    PER_HOST_DEVICE bool are_given() const { return data != nullptr; }
};

// A frame for each entry; that of entry i lies at data + i * stride.
struct GivenFrames {
    const std::byte* data;
    int64_t stride;
    int64_t first_unit;  // its first unit's number among the units of all frames of an entry
    int32_t dtype;
    int32_t word_bytes;  // copied at a time: a power of 2 that divides every address; 0: elements are cast
};

struct GivenField {
    GivenFrames frames;
    GivenFrames next;  // data is NULL if the field is no observation, or not given
};

// The bytes that a thread of a copy writes.
inline constexpr int64_t unit_bytes = 16;
// Up to this many fields are passed to kernels by value, so that a captured call does not depend on host memory.
inline constexpr int64_t max_fields_by_value = 16;

// Consecutive entries of a call: `length` steps of the same `n_lanes` lanes; entry k * n_lanes + j is step k of lane j.
// Entries with mask 0 are not read.
struct GivenSteps {
    int64_t length;
    int64_t n_lanes;
    WindowRules rules;       // but for n_step: a graph would keep its value
    const int64_t* env_ids;  // [n_lanes]; NULL: first_env, first_env + 1 ...
    int64_t first_env;
    GivenNumbers reward;
    GivenNumbers terminated;
    GivenNumbers truncated;
    GivenNumbers mask;
    GivenNumbers next_mask;
    GivenNumbers priorities;
    bool are_td_errors;  // `priorities` holds TD errors
    bool has_next;
    bool has_casts;   // some frames need a cast
    int64_t n_units;  // of an entry, over all fields
    Divisor by_units = Divisor(1);
    const GivenField* further_fields;  // the fields from index max_fields_by_value on
    GivenField fields[max_fields_by_value];

    static constexpr bool is_single = false;

    __device__ __forceinline__ int64_t env(int64_t j) const { return env_ids != nullptr ? env_ids[j] : first_env + j; }
    PER_HOST_DEVICE bool has_mask() const { return mask.are_given(); }
    PER_HOST_DEVICE bool has_next_mask() const { return next_mask.are_given(); }
    PER_HOST_DEVICE bool has_priorities() const { return priorities.are_given(); }
    // True if rows that become live without a priority must wait for it (add_kernels.cu): it is the largest priority of
    // earlier steps, and some of these are in the same launch.
    PER_HOST_DEVICE bool rows_wait() const { return length > 1 && priorities.are_given(); }
    __device__ __forceinline__ const GivenField& field(int64_t i) const {
        return i < max_fields_by_value ? fields[i] : further_fields[i - max_fields_by_value];
    }
};

// One step of each lane without rarely used arguments, which the kernel for it leaves out: see is_plain() in
// add_kernels.cu.
struct PlainSteps : GivenSteps {
    PER_HOST_DEVICE explicit PlainSteps(const GivenSteps& steps) : GivenSteps(steps) {}

    static constexpr bool is_single = true;
    static constexpr int64_t length = 1;
    static constexpr bool has_casts = false;

    __device__ __forceinline__ int64_t env(int64_t j) const { return first_env + j; }
    PER_HOST_DEVICE static constexpr bool has_mask() { return false; }
    PER_HOST_DEVICE static constexpr bool has_next_mask() { return false; }
    PER_HOST_DEVICE static constexpr bool has_priorities() { return false; }
    PER_HOST_DEVICE static constexpr bool rows_wait() { return false; }
    __device__ __forceinline__ const GivenField& field(int64_t i) const { return fields[i]; }
};

// ---- elements. These functions are large, and so not inlined: they have a case for each dtype, or pair of dtypes.

PER_OUT_OF_LINE CastElement cast_given(const std::byte* element, int32_t from_dtype, int32_t to_dtype) {
    return cast_element(element, from_dtype, to_dtype);
}

PER_OUT_OF_LINE Flag given_flag(const std::byte* element, int32_t dtype) {
    return flag_of(element, dtype);
}

PER_OUT_OF_LINE bool is_given_nan(const std::byte* element, int32_t dtype) {
    return is_nan(element, dtype);
}

// Returns the flag. Clears `fits` if the value is not a flag.
__device__ __forceinline__ bool is_true(const GivenNumbers& flags, int64_t entry, bool& fits) {
    const bool is_bool = flags.dtype == PER_BOOL;
    const Flag flag = is_bool ? Flag{flags.data[entry] != std::byte{0}, flags.data[entry] <= std::byte{1}}
                              : given_flag(flags.data + entry * dtype_size(flags.dtype), flags.dtype);
    fits &= flag.is_flag;
    return flag.is_true;
}

// Returns false if the number is beyond float32.
__device__ __forceinline__ bool read_float(const GivenNumbers& numbers, int64_t entry, float& value_out) {
    if (numbers.dtype == PER_FLOAT32) {
        value_out = reinterpret_cast<const float*>(numbers.data)[entry];
        return true;
    }
    const CastElement cast = cast_given(numbers.data + entry * dtype_size(numbers.dtype), numbers.dtype, PER_FLOAT32);
    value_out = __uint_as_float(static_cast<uint32_t>(cast.bits));
    return cast.fits;
}

// ---- frames of steps. A frame is checked by one thread, or by a warp in which each thread checks a part.

__device__ __forceinline__ GridSpan span_of_warp() {
    return {lane_of_thread(), warp_size};
}

// Frames of up to this size are checked by one thread each, 32 at once, so that the warp waits for memory only once.
inline constexpr int64_t max_bytes_of_thread = 128;

// Checks a frame of each of up to 32 steps; their bits are set in `steps`. Returns the bits of the steps for which
// is_good(i, span) is true in all parts of the frame. i is the number of the step's bit. The whole warp calls it with
// the same arguments.
template <class IsGood>
__device__ __forceinline__ uint32_t steps_where(uint32_t steps, int64_t frame_bytes, const IsGood& is_good) {
    const bool has_thread_each = frame_bytes <= max_bytes_of_thread;
    const GridSpan span = has_thread_each ? GridSpan{0, 1} : span_of_warp();
    uint32_t good = steps;
    for (uint32_t left = steps; left != 0; left = has_thread_each ? 0 : left & (left - 1)) {
        const int i = has_thread_each ? static_cast<int>(lane_of_thread()) : __ffs(static_cast<int>(left)) - 1;
        const uint32_t bad = __ballot_sync(all_lanes, (steps >> i & 1) != 0 && !is_good(i, span));
        good &= has_thread_each || bad == 0 ? ~bad : ~(1u << i);
    }
    return good;
}

// True if a frame whose elements are cast fits its field.
__device__ __forceinline__ bool frame_fits(const GivenFrames& frames, int64_t entry, const DeviceField& field,
                                           const GridSpan& span) {
    const std::byte* const frame = frames.data + entry * frames.stride;
    bool fits = true;
    for (int64_t i = span.first; i < field.elements; i += span.step)
        fits &= cast_given(frame + i * dtype_size(frames.dtype), frames.dtype, field.dtype).fits;
    return fits;
}

// True if no element of a frame is a NaN.
__device__ __forceinline__ bool has_no_nan(const GivenFrames& frames, int64_t entry, const DeviceField& field,
                                           const GridSpan& span) {
    const std::byte* const frame = frames.data + entry * frames.stride;
    bool none = true;
    for (int64_t i = span.first; i < field.elements; i += span.step)
        none &= !is_given_nan(frame + i * dtype_size(frames.dtype), frames.dtype);
    return none;
}

// True if two words of frames hold the same numbers. Elements are never longer than words.
PER_OUT_OF_LINE bool same_numbers(const std::byte* a, const std::byte* b, int64_t n_bytes, int32_t dtype) {
    bool same = is_floating(dtype);
    for (int64_t i = 0; same && i < n_bytes; i += dtype_size(dtype)) same = is_same_number(a + i, b + i, dtype);
    return same;
}

template <class Word>
__device__ __forceinline__ bool same_words(const std::byte* a, const std::byte* b, const DeviceField& field,
                                           const GridSpan& span) {
    constexpr int64_t word_bytes = sizeof(Word);
    bool same = true;
    for (int64_t i = span.first; i < field.bytes / word_bytes; i += span.step)
        same &= reinterpret_cast<const Word*>(a)[i] == reinterpret_cast<const Word*>(b)[i] ||
                same_numbers(a + i * word_bytes, b + i * word_bytes, word_bytes, field.dtype);
    return same;
}

// A frame to compare: a given one, or a stored one in the dtype of its field.
struct ComparedFrame {
    const std::byte* data;
    int32_t dtype;
    int32_t word_bytes;
};

__device__ __forceinline__ ComparedFrame given_frame(const GivenFrames& frames, int64_t entry) {
    return {frames.data + entry * frames.stride, frames.dtype, frames.word_bytes};
}

__device__ __forceinline__ ComparedFrame stored_frame(const std::byte* frames, int64_t slot, const DeviceField& field) {
    const int64_t power = field.bytes & -field.bytes;
    return {frames + slot * field.bytes, field.dtype, static_cast<int32_t>(power < unit_bytes ? power : unit_bytes)};
}

PER_OUT_OF_LINE bool same_frame(ComparedFrame a, ComparedFrame b, const DeviceField& field, GridSpan span) {
    const int32_t word = a.word_bytes < b.word_bytes ? a.word_bytes : b.word_bytes;
    if (word == 16) return same_words<Piece>(a.data, b.data, field, span);
    if (word == 8) return same_words<uint64_t>(a.data, b.data, field, span);
    if (word == 4) return same_words<uint32_t>(a.data, b.data, field, span);
    if (word == 2) return same_words<uint16_t>(a.data, b.data, field, span);
    if (word != 0) return same_words<uint8_t>(a.data, b.data, field, span);
    bool same = true;
    for (int64_t i = span.first; i < field.elements; i += span.step)
        same &= is_same_number(cast_given(a.data + i * dtype_size(a.dtype), a.dtype, field.dtype).bits,
                               cast_given(b.data + i * dtype_size(b.dtype), b.dtype, field.dtype).bits, field.dtype);
    return same;
}

}  // namespace per::cuda

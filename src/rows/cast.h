#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "per.h"

namespace per {

// Arrays given to calls: their shape checked, their elements cast. `argument` is what an error calls the array: the
// name of a field, "next_" and the name, "reward", "mask" ... All of these throw Error with INVALID_ARGUMENT.

// What per_steps calls an entry is one [k, environment]: an array holds length * n_envs of them, each of `shape`.
struct Entries {
    int64_t length;
    int64_t n_envs;
    std::span<const int64_t> shape;  // of one frame; empty for reward and flags
    int32_t stack = 1;               // frames that an entry may give instead of one: [stack, shape]
};

// Checks dtype, alignment, ndim and shape of an array that is given, and returns how many frames each entry has: 1, or
// entries.stack, the last being the newest. Shapes are [length, n_envs, shape]; an axis of 1 may be left out. An array
// without shape is trusted to be [length, n_envs, shape].
int64_t check_array(std::string_view argument, const per_array& array, const Entries& entries);

// Whether numpy's "same_kind" rule lets elements of one dtype become those of another; bfloat16 is the lowest of the
// floats.
bool can_cast(int32_t from_dtype, int32_t to_dtype);

// Throws if the array's dtype may not become to_dtype.
void check_cast(std::string_view argument, int32_t from_dtype, int32_t to_dtype);

// Casts elements [entries, frames, elements] to [entries, elements], taking the last frame of each entry. Floats round
// to nearest even. A value that to_dtype cannot hold is an error, by which time part of `to` may be written: `to` is
// scratch, not state. Where mask[entry] is 0, nothing is read and nothing written. NaN and infinities are values of
// floats.
struct CastSize {
    int64_t entries;
    int64_t elements;
    int64_t frames = 1;
    const uint8_t* mask = nullptr;  // [entries] or NULL: all
    int64_t first = 0;              // entries of the array before the first of these
};
void cast(std::string_view argument, const per_array& from, int32_t to_dtype, void* to, const CastSize& size);

// The whole of a contiguous array; errors give the place as one number.
void cast(std::string_view argument, int32_t from_dtype, const void* from, int32_t to_dtype, void* to,
          int64_t elements);

// Throws for the first NaN among the elements that cast() would read. Numbers that are no floats are none.
void refuse_nan(std::string_view argument, const per_array& array, const CastSize& size);

// Flags as bytes 0 and 1, from any dtype that check_array() has passed: what is not zero is true, NaN too. Where mask
// is 0 nothing is read and the flag is 0.
void cast_flags(const per_array& from, uint8_t* to, int64_t entries, const uint8_t* mask = nullptr);

}  // namespace per

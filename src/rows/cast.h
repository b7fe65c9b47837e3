// Arrays that calls are given: checks of their shape, and casts of their elements. `argument` is the name of the array
// in errors: the name of a field, "next_" and the name, "reward", "mask" ... All of these throw Error with
// INVALID_ARGUMENT.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "per.h"

namespace per {

struct Field;

// The entries of an array, one for each [k, environment] of per_steps: length * n_envs of them, each of `shape`.
struct Entries {
    int64_t length;
    int64_t n_envs;
    std::span<const int64_t> shape;     // of one frame; empty for reward and flags
    int32_t stack = 1;                  // an entry may also have the shape [stack, shape]
    const char* n_envs_from = nullptr;  // words before n_envs in errors about it, such as "n_envs is"; NULL: not named
    bool are_steps = true;              // false: rows by id, which errors do not count as steps
};

// A shape as Python writes it: (), (3,), (3, 4).
std::string shape_text(std::span<const int64_t> shape);

// Checks dtype, alignment, ndim and shape of an array, and returns the number of frames in each entry: 1, or
// entries.stack, of which the last is the newest. The shape must be [length, n_envs, shape], where length and n_envs
// may be left out if they are 1. An array without a shape is trusted to have that one.
int64_t check_array(std::string_view argument, const per_array& array, const Entries& entries);

// The same for the values of n_rows rows of any length: their shape must be [any number, shape of the field].
void check_ragged_array(std::string_view argument, const per_array& array, const Field& field, int64_t n_rows);

// Copies the offsets of an array that has passed check_ragged_array(): n_rows + 1 of them, for n_rows > 0. Throws unless
// they ascend within the array, and if a row is longer than the field allows. Where mask[row] is 0, any length is
// allowed; NULL: nowhere.
void copy_offsets(std::string_view argument, const per_array& array, const Field& field, int64_t n_rows,
                  const uint8_t* mask, std::vector<int64_t>& offsets_out);

// True if numpy's "same_kind" rule lets elements of one dtype become those of another. Among the floats bfloat16 is the
// lowest.
bool can_cast(int32_t from_dtype, int32_t to_dtype);

// Throws if elements of from_dtype may not become those of to_dtype.
void check_cast(std::string_view argument, int32_t from_dtype, int32_t to_dtype);

// Casts elements [entries, frames, elements] to [entries, elements]: the last frame of each entry. Floats round to
// nearest even, and can hold NaN and infinities. A value that to_dtype cannot hold is an error, after which `to`, which
// is scratch, may be partly written. Where mask[entry] is 0, nothing is read or written.
struct CastSize {
    int64_t entries;
    int64_t elements;
    int64_t frames = 1;
    const uint8_t* mask = nullptr;  // [entries] or NULL: all
    int64_t first = 0;              // entries of the array that are skipped before these
};
void cast(std::string_view argument, const per_array& from, int32_t to_dtype, void* to, const CastSize& size);

// Throws for the first NaN among the elements that cast() would read.
void refuse_nan(std::string_view argument, const per_array& array, const CastSize& size);

// Casts an array that has passed check_array(), with one element an entry, to flags: bytes 0 and 1. An element that is
// no flag (is_flag()) is an error, after which `to` may be partly written. Where mask is 0, nothing is read and the
// flag is 0.
void cast_flags(std::string_view argument, const per_array& from, uint8_t* to, const CastSize& size);

}  // namespace per

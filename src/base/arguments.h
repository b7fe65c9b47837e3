// Checks of arguments. Each throws Error with INVALID_ARGUMENT.
#pragma once

#include <cinttypes>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "base/error.h"
#include "per.h"
#include "rules/host_device.h"
#include "rules/limits.h"

namespace per {

// The array must be aligned to its elements of `size` bytes. NULL passes.
inline void check_aligned(std::string_view name, const void* array, std::size_t size) {
    if (reinterpret_cast<uintptr_t>(array) % size == 0) return;
    throw Error(PER_ERROR_INVALID_ARGUMENT, "%.*s is %p: must be a multiple of %zu, the size of its elements",
                static_cast<int>(name.size()), name.data(), array, size);
}

template <class T>
void check_aligned(const char* name, const T* array) {
    check_aligned(name, array, alignof(T));
}

[[noreturn]] inline void refuse(const std::string& message) {
    throw Error(PER_ERROR_INVALID_ARGUMENT, "%s", message.c_str());
}

inline void require_pointer(const char* name, const void* pointer) {
    if (pointer == nullptr) throw Error(PER_ERROR_INVALID_ARGUMENT, "%s is NULL", name);
}

template <class T>
void require_array(const char* name, const T* array) {
    require_pointer(name, array);
    check_aligned(name, array);
}

inline void check_count(const char* name, int64_t count, int64_t least) {
    if (count >= least) return;
    throw Error(PER_ERROR_INVALID_ARGUMENT, "%s is %" PRId64 ": must be >= %" PRId64, name, count, least);
}

// Throws the Error of an integer that is not least .. most.
[[noreturn]] inline void throw_out_of_range(const char* name, int64_t value, int64_t least, int64_t most) {
    if (least == most)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "%s is %" PRId64 ": allowed is %" PRId64, name, value, least);
    throw Error(PER_ERROR_INVALID_ARGUMENT, "%s is %" PRId64 ": allowed are %" PRId64 " .. %" PRId64, name, value,
                least, most);
}

// The same for entry i of an array.
[[noreturn]] inline void throw_out_of_range(const char* name, int64_t i, int64_t value, int64_t least, int64_t most) {
    char entry[64];
    std::snprintf(entry, sizeof entry, "%s[%" PRId64 "]", name, i);
    throw_out_of_range(entry, value, least, most);
}

// Throws the Error of entry i of ids, a negative number that no step can have.
[[noreturn]] inline void throw_negative_id(int64_t i, int64_t id) {
    throw Error(PER_ERROR_INVALID_ARGUMENT, "ids[%" PRId64 "] is %" PRId64 ": never issued; ids are 0 and above", i,
                id);
}

// Throws the Error of an entry of td_errors or of `priorities` whose priority p is not allowed.
[[noreturn]] inline void throw_no_priority(int64_t i, float p, bool is_td_error) {
    const double shown = static_cast<double>(p);
    if (!is_td_error)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "priorities[%" PRId64 "] is %g: must be finite and >= 0", i, shown);
    throw Error(PER_ERROR_INVALID_ARGUMENT,
                "td_errors[%" PRId64
                "] gives the priority %g: TD errors must be finite, and |td_error| + epsilon within float32",
                i, shown);
}

inline void check_range(const char* name, int64_t value, int64_t least, int64_t most) {
    if (value < least || value > most) throw_out_of_range(name, value, least, most);
}

// The number must be finite and >= 0.
inline void check_finite(const char* name, double value) {
    if (value >= 0.0 && std::isfinite(value)) return;
    throw Error(PER_ERROR_INVALID_ARGUMENT, "%s is %g: must be finite and >= 0", name, value);
}

// The number must be 0 .. most.
inline void check_number(const char* name, double value, double most) {
    if (value >= 0.0 && value <= most) return;
    throw Error(PER_ERROR_INVALID_ARGUMENT, "%s is %g: allowed are 0 .. %.9g", name, value, most);
}

// `count` is the number of entries of the caller's arrays.
inline void check_entries(const char* name, int64_t count, int64_t least) {
    check_range(name, count, least, max_count);
}

// Both arrays must have `count` entries. They may be NULL if there are none.
template <class T, class Other>
void require_arrays(int64_t count, const char* name, const T* array, const char* other_name, const Other* other) {
    check_entries("count", count, 0);
    if (count == 0) return;
    require_array(name, array);
    require_array(other_name, other);
}

// A stream must be NULL on PER_CPU. `object` is "handle" or "loader".
inline void check_stream(void* stream, const char* object, int32_t device) {
    if (device == PER_CPU && stream != nullptr)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "stream is %p: must be NULL for a %s on PER_CPU", stream, object);
}

}  // namespace per

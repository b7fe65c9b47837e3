// What functions of per.h ask of their arguments, whichever object they are about.
#pragma once

#include <cinttypes>
#include <cstdint>

#include "error.h"
#include "per.h"

namespace per {

inline void require_pointer(const char* name, const void* pointer) {
    if (pointer == nullptr) throw Error(PER_ERROR_INVALID_ARGUMENT, "%s is NULL", name);
}

inline void check_count(const char* name, int64_t count, int64_t least) {
    if (count >= least) return;
    throw Error(PER_ERROR_INVALID_ARGUMENT, "%s is %" PRId64 ": must be >= %" PRId64, name, count, least);
}

// Whether a call with two arrays of `count` entries has any; both must then be given.
inline bool has_entries(int64_t count, const char* name, const void* array, const char* other_name, const void* other) {
    check_count("count", count, 0);
    if (count == 0) return false;
    require_pointer(name, array);
    require_pointer(other_name, other);
    return true;
}

// The stream of a call on a handle or loader, as `object` says, on a per_device.
inline void check_stream(void* stream, const char* object, int32_t device) {
    if (device == PER_CPU && stream != nullptr)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "stream is %p: must be NULL for a %s on PER_CPU", stream, object);
}

}  // namespace per

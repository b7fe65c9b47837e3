// Structs of per.h that begin with struct_size. Callers may be built against an older header, whose struct ends
// earlier, or against a newer one, whose struct goes on after what this library knows.
#pragma once

#include <cstdint>
#include <cstring>

#include "arguments.h"
#include "error.h"

namespace per {

// A size beyond any struct of ours is a struct_size that was never set.
inline constexpr uint64_t largest_struct_size = 4096;

// Refuses a size that no version of the struct has had. `name` is the argument's; Struct is the latest version and has
// no implicit padding.
template <class Struct>
void check_struct_size(const char* name, uint64_t size) {
    static_assert(sizeof(Struct) % 8 == 0);
    if (size == sizeof(Struct)) return;
    if (size > sizeof(Struct) && size % 8 == 0 && size <= largest_struct_size) return;
    throw Error(PER_ERROR_INVALID_ARGUMENT, "%s.struct_size is %llu: must be %llu, as the _init function sets it", name,
                static_cast<unsigned long long>(size), static_cast<unsigned long long>(sizeof(Struct)));
}

// Fills the caller's struct of `size` bytes with the values of `defaults`, zeros after those.
template <class Struct>
void initialize_struct(const char* name, Struct* struct_out, uint64_t size, const Struct& defaults) {
    require_pointer(name, struct_out);
    check_struct_size<Struct>(name, size);
    std::memset(static_cast<void*>(struct_out), 0, size);
    std::memcpy(static_cast<void*>(struct_out), &defaults, sizeof(Struct));
    struct_out->struct_size = size;
}

// The caller's struct as this library knows it. What a newer header appended must be zero: such fields, at zero, behave
// as if they did not exist.
template <class Struct>
Struct read_struct(const char* name, const Struct* given) {
    require_pointer(name, given);
    check_struct_size<Struct>(name, given->struct_size);
    const unsigned char* const bytes = reinterpret_cast<const unsigned char*>(given);
    for (uint64_t i = sizeof(Struct); i < given->struct_size; ++i)
        if (bytes[i] != 0)
            throw Error(PER_ERROR_UNSUPPORTED, "%s has byte %llu set, in a field that this version does not have", name,
                        static_cast<unsigned long long>(i));
    return *given;
}

}  // namespace per

// Structs of per.h that begin with struct_size, and per_field, whose size is given as field_size with an array of them.
// A caller may be built against an older header, whose struct is shorter, or a newer one, whose struct has more
// members.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>

#include "base/arguments.h"
#include "base/error.h"
#include "rules/limits.h"

namespace per {

// The sizes that a struct has had in released headers, in order. A struct that grows after a release gets its new size
// here, at the end. If the new size is missing, the library does not compile; if an old size is removed, programs built
// with that header break.
template <class Struct>
inline constexpr uint64_t struct_sizes[] = {0};
template <>
inline constexpr uint64_t struct_sizes<per_tree_options>[] = {32};
template <>
inline constexpr uint64_t struct_sizes<per_save_options>[] = {40};
template <>
inline constexpr uint64_t struct_sizes<per_load_options>[] = {88};
template <>
inline constexpr uint64_t struct_sizes<per_tree_description>[] = {40};
template <>
inline constexpr uint64_t struct_sizes<per_field>[] = {56};
template <>
inline constexpr uint64_t struct_sizes<per_replay_options>[] = {320};
template <>
inline constexpr uint64_t struct_sizes<per_replay_settings>[] = {56};
template <>
inline constexpr uint64_t struct_sizes<per_steps>[] = {272};
template <>
inline constexpr uint64_t struct_sizes<per_sample_options>[] = {72};
template <>
inline constexpr uint64_t struct_sizes<per_batch>[] = {120};
template <>
inline constexpr uint64_t struct_sizes<per_priorities>[] = {56};
template <>
inline constexpr uint64_t struct_sizes<per_replay_statistics>[] = {208};
template <>
inline constexpr uint64_t struct_sizes<per_hindsight_options>[] = {48};
template <>
inline constexpr uint64_t struct_sizes<per_loader_options>[] = {48};
template <>
inline constexpr uint64_t struct_sizes<per_shard_summary>[] = {104};
template <>
inline constexpr uint64_t struct_sizes<per_coordinator_state>[] = {80};
template <>
inline constexpr uint64_t struct_sizes<per_channel_options>[] = {40};
template <>
inline constexpr uint64_t struct_sizes<per_channel_statistics>[] = {80};
template <>
inline constexpr uint64_t struct_sizes<per_shared_loader_options>[] = {40};
template <>
inline constexpr uint64_t struct_sizes<per_shared_loader_statistics>[] = {72};

// True if `size` is one of the sizes. Tests replace this function by one that knows an older header.
bool is_size_of_a_header(const uint64_t* sizes, std::size_t n_sizes, uint64_t size);

// The size that the caller gave its struct. No other byte is read: the struct may be shorter than a Struct.
template <class Struct>
uint64_t given_size(const Struct* given) {
    uint64_t size;
    std::memcpy(&size, given, sizeof size);
    return size;
}

// True for a size that a header has had, or a newer one may have. Struct is the latest version, and must have no
// implicit padding.
template <class Struct>
bool is_struct_size(uint64_t size) {
    static_assert(sizeof(Struct) % 8 == 0 && sizeof(Struct) <= max_struct_size);
    static_assert(*std::rbegin(struct_sizes<Struct>) == sizeof(Struct), "the struct's size is missing in struct_sizes");
    static_assert(std::is_sorted(std::begin(struct_sizes<Struct>), std::end(struct_sizes<Struct>)));
    if (is_size_of_a_header(struct_sizes<Struct>, std::size(struct_sizes<Struct>), size)) return true;
    return size > sizeof(Struct) && size % 8 == 0 && size <= max_struct_size;
}

// Throws Error for any other size of a struct that an _init function fills. `name` is the name of the argument.
template <class Struct>
void check_struct_size(const char* name, uint64_t size) {
    if (is_struct_size<Struct>(size)) return;
    throw Error(PER_ERROR_INVALID_ARGUMENT,
                "%s.struct_size is %llu: must be %llu, which its _init function sets, or the call that fills it", name,
                static_cast<unsigned long long>(size), static_cast<unsigned long long>(sizeof(Struct)));
}

// Fills the caller's struct, whose size has been checked, with `value`, and the rest with zeros.
template <class Struct>
void copy_struct(Struct* struct_out, uint64_t size, const Struct& value) {
    std::memset(static_cast<void*>(struct_out), 0, size);
    std::memcpy(static_cast<void*>(struct_out), &value, std::min<uint64_t>(size, sizeof(Struct)));
    std::memcpy(static_cast<void*>(struct_out), &size, sizeof size);
}

// For an _init function.
template <class Struct>
void initialize_struct(const char* name, Struct* struct_out, uint64_t size, const Struct& defaults) {
    require_pointer(name, struct_out);
    check_struct_size<Struct>(name, size);
    copy_struct(struct_out, size, defaults);
}

// For a call that fills a struct of a given size with the result of `read`, which is called once the arguments have
// been checked.
template <class Struct, class Read>
void fill_struct(const char* name, Struct* struct_out, uint64_t size, const Read& read) {
    require_pointer(name, struct_out);
    if (!is_struct_size<Struct>(size))
        throw Error(PER_ERROR_INVALID_ARGUMENT, "struct_size is %llu: must be %llu, the size of *%s",
                    static_cast<unsigned long long>(size), static_cast<unsigned long long>(sizeof(Struct)), name);
    const Struct value = read();
    copy_struct(struct_out, size, value);
}

// Returns `size` bytes of the caller as the struct that this library knows. Members that an older header does not have
// are zero. Members that a newer one appended must be zero, at which they behave as if they did not exist.
template <class Struct>
Struct known_struct(const char* name, const unsigned char* given, uint64_t size) {
    for (uint64_t i = sizeof(Struct); i < size; ++i)
        if (given[i] != 0)
            throw Error(PER_ERROR_UNSUPPORTED, "%s has byte %llu set, in a field that this version does not have", name,
                        static_cast<unsigned long long>(i));
    Struct known = {};
    std::memcpy(&known, given, std::min<uint64_t>(size, sizeof(Struct)));
    return known;
}

template <class Struct>
Struct read_struct(const char* name, const Struct* given) {
    require_pointer(name, given);
    const uint64_t size = given_size(given);
    check_struct_size<Struct>(name, size);
    return known_struct<Struct>(name, reinterpret_cast<const unsigned char*>(given), size);
}

// Like read_struct(), but returns the defaults if the struct is NULL.
template <class Struct>
Struct read_struct_or(const Struct& defaults, const char* name, const Struct* given) {
    return given == nullptr ? defaults : read_struct(name, given);
}

// `given` is a member that points to another struct, or is NULL. Reads the struct into copy_out, and makes `given`
// point to that copy.
template <class Struct>
void read_nested(const char* name, const Struct*& given, Struct& copy_out) {
    if (given == nullptr) return;
    copy_out = read_struct(name, given);
    given = &copy_out;
}

// Checks a struct to which a call will write. Throws Error if no _init function has filled it.
template <class Struct>
void check_struct_out(const char* name, const Struct* struct_out) {
    require_pointer(name, struct_out);
    check_struct_size<Struct>(name, given_size(struct_out));
}

// Writes as much of a struct of this version as the caller's struct has room for. The caller's size stays, and so do
// members that a newer header appended: its _init function has set them to zero.
template <class Struct>
void write_struct(const char* name, Struct* struct_out, const Struct& value) {
    check_struct_out(name, struct_out);
    const uint64_t size = given_size(struct_out);
    std::memcpy(static_cast<void*>(struct_out), &value, std::min<uint64_t>(size, sizeof(Struct)));
    std::memcpy(static_cast<void*>(struct_out), &size, sizeof size);
}

}  // namespace per

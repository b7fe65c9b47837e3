// The handles of per.h. Each is a struct with an `object` of the library and a name, `argument`, that arguments of its
// type have. If calls on it take a stream, it also has a `noun` for error messages about streams.
#pragma once

#include "base/arguments.h"
#include "base/guarded.h"
#include "per.h"
#include "threads/deadline.h"

namespace per {

template <class Handle>
auto& object_of(Handle* handle) {
    require_pointer(Handle::argument, handle);
    return handle->object;
}

// The object of a call that queues work on a stream.
template <class Handle>
auto& object_of(Handle* handle, void* stream) {
    auto& object = object_of(handle);
    check_stream(stream, Handle::noun, object.device());
    return object;
}

// Runs call(object), and returns its status.
template <class Handle, class Call>
per_status call_on(Handle* handle, const Call& call) {
    return guarded([&] { call(object_of(handle)); });
}

template <class Handle, class Call>
per_status call_on(Handle* handle, void* stream, const Call& call) {
    return guarded([&] { call(object_of(handle, stream)); });
}

// Makes a handle of the object that make() returns. `name` is the name of the argument handle_out.
template <class Handle, class Make>
per_status create(const char* name, Handle** handle_out, const Make& make) {
    return guarded([&] {
        require_pointer(name, handle_out);
        *handle_out = nullptr;
        *handle_out = new Handle{make()};
    });
}

// The address at which other processes attach to the object of a handle.
template <class Handle>
per_status get_address(Handle* handle, const char** path_out, int32_t* descriptor_out) {
    return guarded([&] {
        const auto& object = object_of(handle);
        const char* const path = object.path();
        const int32_t descriptor = object.descriptor();
        if (path_out != nullptr) *path_out = path;
        if (descriptor_out != nullptr) *descriptor_out = descriptor;
    });
}

inline Deadline deadline_of(int64_t timeout_ms) {
    check_count("timeout_ms", timeout_ms, -1);
    return Deadline(timeout_ms);
}

}  // namespace per

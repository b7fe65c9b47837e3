// Byte streams through functions of the caller: `write` of per_save_options and `read` of per_load_options. Throws
// Error with CALLBACK for a result that is not allowed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace per {

struct WriteFunction {
    int64_t (*function)(void* context, const void* bytes, int64_t size);
    void* context;

    void write(const void* data, std::size_t size) const;
};

struct ReadFunction {
    int64_t (*function)(void* context, void* bytes_out, int64_t size);
    void* context;

    // Returns the number of bytes read: fewer than `size` at the end of the stream only.
    std::size_t read(void* data, std::size_t size) const;
};

}  // namespace per

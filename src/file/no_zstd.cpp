// Stands in for zstd.cpp if libper is built without zstd.
#include <new>

#include "file/compression.h"

namespace per {

struct Compression::State {};

bool has_zstd() {
    return false;
}

Compression::Compression(std::size_t, int32_t) {
    throw std::bad_alloc();
}

Compression::~Compression() = default;

std::size_t Compression::max_packed() const {
    return 0;
}

std::size_t Compression::pack(void*, const void*, std::size_t) {
    return 0;
}

bool Compression::unpack(void*, std::size_t, const void*, std::size_t) {
    return false;
}

}  // namespace per

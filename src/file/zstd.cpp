// The only source that includes zstd.
#include <zstd.h>
#include <zstd_errors.h>

#include <new>

#include "file/compression.h"

namespace per {

struct Compression::State {
    std::size_t max_packed;
    int32_t level;
    ZSTD_CCtx* packing;
    ZSTD_DCtx* unpacking;

    ~State() {
        ZSTD_freeCCtx(packing);
        ZSTD_freeDCtx(unpacking);
    }
};

bool has_zstd() {
    return true;
}

Compression::Compression(std::size_t max_piece, int32_t level)
    : state_(new State{ZSTD_compressBound(max_piece), level, ZSTD_createCCtx(), ZSTD_createDCtx()}) {
    if (state_->packing == nullptr || state_->unpacking == nullptr) throw std::bad_alloc();
}

Compression::~Compression() = default;

std::size_t Compression::max_packed() const {
    return state_->max_packed;
}

// The output has room for the largest packed piece, so compression fails only if there is no memory.
std::size_t Compression::pack(void* out, const void* piece, std::size_t size) {
    const std::size_t n = ZSTD_compressCCtx(state_->packing, out, state_->max_packed, piece, size, state_->level);
    if (ZSTD_isError(n)) throw std::bad_alloc();
    return n;
}

bool Compression::unpack(void* piece_out, std::size_t size, const void* packed, std::size_t packed_size) {
    const std::size_t n = ZSTD_decompressDCtx(state_->unpacking, piece_out, size, packed, packed_size);
    if (ZSTD_getErrorCode(n) == ZSTD_error_memory_allocation) throw std::bad_alloc();
    return n == size;
}

}  // namespace per

// Compression by zstd, if libper was built with it (PER_ZSTD of CMakeLists.txt).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace per {

inline constexpr int32_t max_compression = 19;  // zstd has higher levels, which take gigabytes

// True if this libper was built with zstd. Otherwise the constructor of Compression throws.
bool has_zstd();

// Compresses pieces of bytes independently.
class Compression {
 public:
    // Pieces have at most `max_piece` bytes.
    Compression(std::size_t max_piece, int32_t level);
    ~Compression();

    // Largest size of a packed piece.
    std::size_t max_packed() const;
    // Compresses `size` bytes into at most max_packed() bytes, and returns the compressed size.
    std::size_t pack(void* out, const void* piece, std::size_t size);
    // Decompresses a piece of `size` bytes. Returns false if `packed` does not decompress to exactly that many.
    bool unpack(void* piece_out, std::size_t size, const void* packed, std::size_t packed_size);

 private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace per

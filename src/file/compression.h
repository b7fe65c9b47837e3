// Compression of sections by zstd, where libper was built with it: PER_ZSTD of CMakeLists.txt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace per {

inline constexpr int32_t max_compression = 19;  // zstd has higher levels, which take gigabytes

// Whether this libper was built with zstd. Where it was not, Compression cannot be made.
bool has_zstd();

// Packs pieces of bytes, each by itself.
class Compression {
 public:
    // Pieces have at most `max_piece` bytes. The level is that of packing.
    Compression(std::size_t max_piece, int32_t level);
    ~Compression();

    // The most bytes that a packed piece has.
    std::size_t max_packed() const;
    // Writes a packed piece, of up to max_packed() bytes, and returns how many they are.
    std::size_t pack(void* out, const void* piece, std::size_t size);
    // Writes a piece of `size` bytes. False where they are not what `packed` holds.
    bool unpack(void* piece_out, std::size_t size, const void* packed, std::size_t packed_size);

 private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace per

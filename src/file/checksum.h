// XXH64 (Collet, "xxHash fast digest algorithm", seed 0): the checksum of files.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace per {

// Of the bytes added so far, in whatever pieces.
class Checksum {
 public:
    void add(const void* data, std::size_t size) {
        const unsigned char* bytes = static_cast<const unsigned char*>(data);
        total_ += size;
        if (n_buffered_ + size < stripe) {
            std::memcpy(buffer_ + n_buffered_, bytes, size);
            n_buffered_ += size;
            return;
        }
        if (n_buffered_ > 0) {
            const std::size_t missing = stripe - n_buffered_;
            std::memcpy(buffer_ + n_buffered_, bytes, missing);
            add_stripe(buffer_);
            bytes += missing;
            size -= missing;
        }
        for (; size >= stripe; size -= stripe, bytes += stripe) add_stripe(bytes);
        std::memcpy(buffer_, bytes, size);
        n_buffered_ = size;
    }

    uint64_t value() const {
        uint64_t hash = prime5;
        if (total_ >= stripe) {
            hash =
                std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) + std::rotl(lanes_[3], 18);
            for (uint64_t lane : lanes_) hash = (hash ^ round(0, lane)) * prime1 + prime4;
        }
        hash += total_;
        const unsigned char* rest = buffer_;
        const unsigned char* const end = buffer_ + n_buffered_;
        for (; end - rest >= 8; rest += 8) hash = std::rotl(hash ^ round(0, word(rest)), 27) * prime1 + prime4;
        if (end - rest >= 4) {
            uint32_t half;
            std::memcpy(&half, rest, sizeof half);
            hash = std::rotl(hash ^ half * prime1, 23) * prime2 + prime3;
            rest += 4;
        }
        for (; rest < end; ++rest) hash = std::rotl(hash ^ *rest * prime5, 11) * prime1;
        hash = (hash ^ hash >> 33) * prime2;
        hash = (hash ^ hash >> 29) * prime3;
        return hash ^ hash >> 32;
    }

 private:
    static constexpr std::size_t stripe = 32;
    static constexpr uint64_t prime1 = 0x9E3779B185EBCA87;
    static constexpr uint64_t prime2 = 0xC2B2AE3D27D4EB4F;
    static constexpr uint64_t prime3 = 0x165667B19E3779F9;
    static constexpr uint64_t prime4 = 0x85EBCA77C2B2AE63;
    static constexpr uint64_t prime5 = 0x27D4EB2F165667C5;

    static uint64_t round(uint64_t lane, uint64_t word) { return std::rotl(lane + word * prime2, 31) * prime1; }
    static uint64_t word(const unsigned char* bytes) {
        static_assert(std::endian::native == std::endian::little);
        uint64_t result;
        std::memcpy(&result, bytes, sizeof result);
        return result;
    }
    void add_stripe(const unsigned char* bytes) {
        for (int i = 0; i < 4; ++i) lanes_[i] = round(lanes_[i], word(bytes + 8 * i));
    }

    uint64_t lanes_[4] = {prime1 + prime2, prime2, 0, uint64_t{0} - prime1};
    uint64_t total_ = 0;
    std::size_t n_buffered_ = 0;
    unsigned char buffer_[stripe];
};

}  // namespace per

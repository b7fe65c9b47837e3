// Searches in the flags of rows side by side. Episodes may be long: eight rows at a time.
#pragma once

#include <cstdint>
#include <cstring>

namespace per::cpu {

// Whether none of eight flags has one of the bits.
inline bool eight_lack(const uint8_t* flags, uint8_t bits) {
    uint64_t word;
    std::memcpy(&word, flags, sizeof word);
    return (word & bits * uint64_t{0x0101010101010101}) == 0;
}

// How many of n flags, counted from the front, lack `bits`.
inline int64_t front_without(const uint8_t* flags, int64_t n, uint8_t bits) {
    int64_t i = 0;
    while (i + 8 <= n && eight_lack(flags + i, bits)) i += 8;
    while (i < n && !(flags[i] & bits)) ++i;
    return i;
}

// The same from the back.
inline int64_t back_without(const uint8_t* flags, int64_t n, uint8_t bits) {
    int64_t i = 0;
    while (i + 8 <= n && eight_lack(flags + n - i - 8, bits)) i += 8;
    while (i < n && !(flags[n - 1 - i] & bits)) ++i;
    return i;
}

}  // namespace per::cpu

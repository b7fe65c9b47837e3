// Random numbers: Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"). A number is a
// function of (seed, batch_number, i) alone, so every device computes it where it is needed.
#pragma once

#include <stdint.h>

#include "rules/host_device.h"

namespace per {

// One block of Philox4x32-10: `key` and `counter` as in the paper, 4 words of 32 bits out.
struct PhiloxBlock {
    uint32_t word[4];
};

PER_HOST_DEVICE PhiloxBlock philox4x32(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
    uint32_t key0 = static_cast<uint32_t>(key);
    uint32_t key1 = static_cast<uint32_t>(key >> 32);
    PhiloxBlock x = {{static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32),
                      static_cast<uint32_t>(counter_high), static_cast<uint32_t>(counter_high >> 32)}};
    // Kernels wait less for code than ten rounds in a row would save them.
#if defined(__CUDA_ARCH__)
#pragma unroll 2
#endif
    for (int round = 0; round < 10; ++round) {
        const uint64_t product0 = uint64_t{0xD2511F53} * x.word[0];
        const uint64_t product1 = uint64_t{0xCD9E8D57} * x.word[2];
        x = {{static_cast<uint32_t>(product1 >> 32) ^ x.word[1] ^ key0, static_cast<uint32_t>(product1),
              static_cast<uint32_t>(product0 >> 32) ^ x.word[3] ^ key1, static_cast<uint32_t>(product0)}};
        key0 += 0x9E3779B9;
        key1 += 0xBB67AE85;
    }
    return x;
}

// Random number i of a batch: 64 bits. A block gives two numbers, i even and i + 1.
PER_HOST_DEVICE uint64_t random64(uint64_t seed, uint64_t batch_number, uint64_t i) {
    const PhiloxBlock block = philox4x32(seed, i >> 1, batch_number);
    // Words are not selected by index, since a GPU would put the block into memory for that.
    const bool is_odd = (i & 1) != 0;
    const uint64_t high = is_odd ? block.word[3] : block.word[1];
    return (is_odd ? block.word[2] : block.word[0]) | high << 32;
}

// Identifies the batch to which random numbers belong.
struct BatchKey {
    uint64_t seed;
    uint64_t batch_number;
};

// Draws use the numbers of a batch from 0 on. Other uses have numbers that no draw reaches. geometric_numbers | i: for
// draw i, made after indices were taken out, decides how many draws from the whole it stands for.
inline constexpr uint64_t geometric_numbers = uint64_t{1} << 63;
// hindsight_numbers + 2i: whether place i of the batch gets a goal; + 2i + 1: which.
inline constexpr uint64_t hindsight_numbers = uint64_t{1} << 62;
// n_step_numbers + i: the n_step of the window at place i, if the batch has a range.
inline constexpr uint64_t n_step_numbers = uint64_t{1} << 61;

// The upper 64 bits of a * b: maps a 64-bit fraction a into 0 .. b - 1.
PER_HOST_DEVICE uint64_t mulhi(uint64_t a, uint64_t b) {
#if defined(__CUDA_ARCH__)
    return __umul64hi(a, b);
#else
    return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
#endif
}

}  // namespace per

// Random numbers: Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), and the targets of
// draws made from them. A number is a function of (seed, batch_number, i) alone, so every device computes it where it is
// needed.
#pragma once

#include <stdint.h>

#include "per.h"
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

// Random number i of a batch: 64 bits. A block gives two, i even and i odd.
PER_HOST_DEVICE uint64_t random64(uint64_t seed, uint64_t batch_number, uint64_t i) {
    const PhiloxBlock block = philox4x32(seed, i >> 1, batch_number);
    // Chosen, not indexed: an index would put the block into memory on a GPU.
    const bool is_odd = (i & 1) != 0;
    const uint64_t high = is_odd ? block.word[3] : block.word[1];
    return (is_odd ? block.word[2] : block.word[0]) | high << 32;
}

// Random numbers of a batch. Draws use those from 0 on; what else belongs to a batch has numbers that no draw reaches.
inline constexpr uint64_t geometric_numbers = uint64_t{1}
                                              << 63;  // | i: how many draws from the whole one from the rest stands for
inline constexpr uint64_t hindsight_numbers = uint64_t{1}
                                              << 62;  // + 2i and + 2i + 1: whether place i gets a goal; which

// The upper 64 bits of a * b: maps a 64-bit fraction a into 0 .. b - 1.
PER_HOST_DEVICE uint64_t mulhi(uint64_t a, uint64_t b) {
#if defined(__CUDA_ARCH__)
    return __umul64hi(a, b);
#else
    return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
#endif
}

// The width of one of `batch_size` equal strata of the 64-bit fractions.
PER_HOST_DEVICE uint64_t stratum_width(int64_t batch_size) {
    return ~uint64_t{0} / static_cast<uint64_t>(batch_size);
}

// Target of draw i in 0 .. total - 1, `width` being stratum_width(): in stratum i, at the place that `random` says.
// Without division, and below `total` always, because (i + 1) * width fits 64 bits.
PER_HOST_DEVICE uint64_t stratified_target(uint64_t random, uint64_t i, uint64_t width, uint64_t total) {
    return mulhi(i * width + mulhi(random, width), total);
}

// Target of a draw from the whole.
PER_HOST_DEVICE uint64_t independent_target(uint64_t random, uint64_t total) {
    return mulhi(random, total);
}

// Everything that decides the targets of a batch of draws, besides their total.
struct DrawRequest {
    int64_t batch_size;  // 1 .. 2^24
    int32_t scheme;      // a per_scheme but PER_WITHOUT_REPLACEMENT
    uint64_t seed;
    uint64_t batch_number;  // how many batches were drawn before
    uint64_t first = 0;     // number of the first random number; even
};

// Target of draw i in 0 .. total - 1; `width` is stratum_width(batch_size).
PER_HOST_DEVICE uint64_t draw_target(const DrawRequest& request, uint64_t i, uint64_t width, uint64_t total) {
    const uint64_t random =
        random64(request.seed, request.batch_number, request.first + (request.scheme == PER_SYSTEMATIC ? 0 : i));
    return request.scheme == PER_INDEPENDENT ? independent_target(random, total)
                                             : stratified_target(random, i, width, total);
}

}  // namespace per

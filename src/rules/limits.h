// The largest values that per.h allows in arguments.
#pragma once

#include <stdint.h>

namespace per {

inline constexpr int64_t max_count = int64_t{1} << 40;  // entries of arrays, so that no size computed of them overflows
inline constexpr int64_t max_count_set_on_cuda = 0xfffffffe;  // entries that one call sets: claims have 32 bits
inline constexpr int64_t max_capacity = int64_t{1} << 40;
inline constexpr int64_t max_n_envs = int64_t{1} << 20;
inline constexpr int64_t max_batch_size = int64_t{1} << 24;
inline constexpr int64_t max_sources = 32;  // of a mixture
inline constexpr int64_t max_n_epochs = int64_t{1} << 24;
inline constexpr int64_t max_n_step = 64;
inline constexpr int64_t max_stack = 64;
inline constexpr int64_t max_slots = 1024;
inline constexpr int64_t min_ring_slots = 2;
inline constexpr int64_t max_ring_slots = int64_t{1} << 31;
inline constexpr int64_t max_gather_threads = 64;
// No counter of a buffer comes near it, and each can count on from it for as long again. Ids are counters, too.
inline constexpr int64_t max_counter = int64_t{1} << 62;
inline constexpr double max_epsilon = 0x1.fffffep127;  // FLT_MAX: with more every priority would overflow

inline constexpr double min_half_life = 0.01;
inline constexpr double max_half_life = 1e12;

inline constexpr int64_t max_n_fields = 256;
inline constexpr int32_t max_field_ndim = 8;
inline constexpr int32_t max_array_ndim = 16;       // of an array given to a call, of which axes of 1 may be left out
inline constexpr uint32_t max_name_length = 255;    // bytes
inline constexpr int64_t min_compressed_bytes = 8;  // of a frame
inline constexpr int64_t max_compressed_bytes = int64_t{1} << 24;
inline constexpr int64_t max_ragged_bytes = (int64_t{1} << 31) - 1;  // of a row of any length

inline constexpr uint64_t max_struct_size = 4096;  // more than any struct of per.h: a larger struct_size was never set

}  // namespace per

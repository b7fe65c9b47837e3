#ifndef PER_BENCH_SEQUENCES_H
#define PER_BENCH_SEQUENCES_H

#include <cstddef>
#include <cstdint>
#include <vector>

#include "row.h"

namespace bench {

/* The arrays of a batch of sequences: a value for each step, and n_step more observations. */
struct Sequences {
    Sequences(const RowKind& kind, int64_t batch);

    int64_t batch() const { return static_cast<int64_t>(ids.size()); }

    std::vector<std::vector<std::byte>> fields;
    std::vector<float> reward;
    std::vector<float> discount;
    std::vector<int32_t> n_steps;
    std::vector<uint8_t> terminated;
    std::vector<uint8_t> truncated;
    std::vector<uint8_t> mask;
    std::vector<float> weights;
    std::vector<int64_t> ids;
};

/* Entries of a field in a sequence. */
int64_t entries_of(const RowKind& kind, const RowField& field);

/* Bytes of a sequence: its fields, and for each step reward, discount, n_steps, flags and mask. */
int64_t bytes_of_sequence(const RowKind& kind);

/* Throws WrongResult unless each sequence starts in the row of its id. */
void check_sequences(const RowKind& kind, const Sequences& sequences);

}  // namespace bench

#endif

// Draws from several buffers as if they were one: per/mixture.h.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "core/replay.h"
#include "per.h"
#include "rules/limits.h"

namespace per {

// Divides `total` rows among sources in these shares, whose sum is 1. The carries are what earlier divisions owe each
// source, in units of 2^-32 rows, and are brought up to date.
void divide_rows(std::span<const double> shares, int64_t total, std::span<int64_t> carries,
                 std::span<int64_t> rows_out);

// The sources of one call, locked as long as this object lives. Callers must have checked the pointers.
class Mixture {
 public:
    // Throws Error unless the numbers are allowed and the buffers fit together.
    Mixture(std::span<const per_source> sources, std::span<Replay* const> replays);

    // carries_out [n_sources] is written if the call does not throw.
    void sample(const per_sample_options& options, int64_t batch_size, const per_batch& batch, int32_t* sources_out,
                std::span<int64_t> carries_out, void* stream);
    void update(const per_priorities& priorities, const int32_t* source_of, void* stream);

 private:
    void check_sources() const;
    std::vector<double> shares_of_batch() const;
    void check_same_lengths(std::span<const ReplaySample> samples) const;
    template <class Work>
    void at_once(void* stream, const Work& work) const;

    std::span<const per_source> sources_;
    std::span<Replay* const> replays_;
    std::vector<double> shares_;
    std::vector<std::unique_lock<OrderedLock>> locks_;
};

}  // namespace per

// Draws from several buffers as if they were one: per/mixture.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>

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
    template <class T>
    using OfSources = std::array<T, max_sources>;  // an entry for each source, and some unused ones

    void check_source(std::size_t k) const;
    void lock_all();
    OfSources<double> shares_of_batch() const;
    template <class Work>
    void at_once(void* stream, const Work& work) const;

    std::span<const per_source> sources_;
    std::span<Replay* const> replays_;
    OfSources<double> shares_;
    OfSources<std::unique_lock<OrderedLock>> locks_;
};

}  // namespace per

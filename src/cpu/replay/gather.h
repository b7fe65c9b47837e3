// Copying rows of a replay buffer into a batch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/replay/replay_state.h"
#include "per.h"
#include "rules/row_frames.h"

namespace per::cpu {

// Which arrays a batch wants, and in how many frames.
class Gather {
 public:
    explicit Gather(const ReplayState& state) : state_(state) {}

    // Takes the arrays of `batch` that are not NULL. With `single_frames` stacks are left out: a frame each.
    void prepare(const per_batch& batch, bool single_frames);

    const GatherWishes& wishes() const { return wishes_; }
    int64_t row_bytes() const { return row_bytes_; }  // of a row of the batch

    // Rows that are best fetched, and copied, together: no more than the cache holds. Of large ones only two, so that
    // an observation and the next, which mostly lies behind it, are read close together.
    int64_t block_rows() const { return std::clamp<int64_t>(block_bytes / (row_bytes_ + 1), 2, most_block_rows); }
    static constexpr int64_t most_block_rows = 32;

    // Fetches rows that copy() is to be called for a little later.
    void prefetch(const GatherRow* rows, int64_t n) const;
    // Rows first .. first + n - 1 of the batch.
    void copy(int64_t first, const GatherRow* rows, int64_t n) const;

 private:
    static constexpr int64_t block_bytes = 16384;

    struct Copy {
        const std::byte* array;
        const std::byte* next_array;  // with store_next_observation
        std::byte* out;
        int64_t bytes;  // of a frame
        int64_t stack;
        bool is_next;
        bool pads_with_zeros;
        int64_t prefetched_bytes;
        void (*move)(std::byte* out, const std::byte* frame, int64_t bytes);
    };

    void add_copy(int64_t field, std::byte* out, int64_t stack, bool is_next);
    static void prefetch_frame(const std::byte* frame, const Copy& copy);
    const std::byte* frame(const Copy& copy, const GatherRow& row, int64_t age) const;

    const ReplayState& state_;
    std::vector<Copy> copies_;
    GatherWishes wishes_ = {1, false};
    int64_t row_bytes_ = 0;
};

}  // namespace per::cpu

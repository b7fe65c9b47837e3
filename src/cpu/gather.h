// Copying rows of a replay buffer into a batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "batch_row.h"
#include "cpu/replay_state.h"
#include "per.h"

namespace per::cpu {

// Which arrays a batch wants, and in how many frames.
class Gather {
 public:
    explicit Gather(const ReplayState& state) : state_(state) {}

    // Takes the arrays of `batch` that are not NULL. With `single_frames` stacks are left out: a frame each.
    void prepare(const per_batch& batch, bool single_frames);

    const GatherWishes& wishes() const { return wishes_; }
    int64_t row_bytes() const { return row_bytes_; }  // of a row of the batch

    // Fetches a row that copy() is to be called for some rows later.
    void prefetch(const GatherRow& row) const;
    // Row i of the batch.
    void copy(int64_t i, const GatherRow& row) const;

 private:
    struct Copy {
        const std::byte* array;
        const std::byte* next_array;  // with store_next_observation
        std::byte* out;
        int64_t bytes;  // of a frame
        int64_t stack;
        bool is_next;
        int64_t n_lines;  // to be fetched from the frame's first byte on, and that of byte `last`
        int64_t last;
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

// Rows between a call of prefetch() and that of copy().
inline constexpr int64_t gather_distance = 16;

}  // namespace per::cpu

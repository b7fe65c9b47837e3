// Copying rows of a replay buffer into a batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/replay_state.h"
#include "per.h"

namespace per::cpu {

// A row of a batch: where its frames lie. Older frames of a stack lie in the slots before.
struct GatherRow {
    int64_t env;
    int64_t slot;                // of the transition
    int64_t next_slot;           // of the newest next observation
    int32_t frames_before;       // frames that a stack may reach back; beyond, the oldest of them is repeated
    int32_t next_frames_before;  // the same for next observations
    bool next_is_own_array;      // the newest next observation lies in the array of next observations, of this slot;
                                 // the frame before it is the observation in the same slot
};

// Which arrays a batch wants, and in how many frames.
class Gather {
 public:
    explicit Gather(const ReplayState& state) : state_(state) {}

    // Takes the arrays of `batch` that are not NULL. With `single_frames` stacks are left out: a frame each.
    void prepare(const per_batch& batch, bool single_frames);

    bool wants_next() const { return wants_next_; }
    int64_t row_bytes() const { return row_bytes_; }  // of a row of the batch
    // The longest stack among the arrays.
    int64_t stack() const { return stack_; }

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
    const std::byte* newest_frame(const Copy& copy, const GatherRow& row) const;
    const std::byte* frame(const Copy& copy, const GatherRow& row, int64_t age) const;

    const ReplayState& state_;
    std::vector<Copy> copies_;
    int64_t stack_ = 1;
    bool wants_next_ = false;
    int64_t row_bytes_ = 0;
};

// Rows between a call of prefetch() and that of copy().
inline constexpr int64_t gather_distance = 16;

}  // namespace per::cpu

// Writing transitions of a replay buffer into a batch.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "cpu/kernels/kernels.h"
#include "cpu/memory/memory.h"
#include "cpu/memory/moves.h"
#include "cpu/memory/prefetch.h"
#include "cpu/replay/replay_state.h"
#include "per.h"
#include "rules/n_step.h"
#include "rules/row_frames.h"
#include "threads/worker_threads.h"

namespace per::cpu {

// Columns of numbers that are not in records.
using NumbersApart = std::array<Column<const std::byte>, 3>;

// The memory that is read for each row of a batch, if that is a few lines of adjacent records: `bytes` bytes from
// column.at(slot) on, and the numbers that are stored apart from the records.
struct RecordRun {
    Column<const std::byte> column;
    int64_t bytes = 0;  // 0: there is no such run
    size_t n_apart = 0;
    NumbersApart apart = {};

    void prefetch_first_line(int64_t slot) const {
        prefetch_to_read(column.at(slot));
        for (size_t k = 0; k < n_apart; ++k) prefetch_to_read(apart[k].at(slot));
    }
    // Prefetches the same number of lines for every row, although the last two prefetches may be of the same line. A
    // number that depended on where the row begins would make the end of the loop hard to predict: a branch
    // misprediction at every other row.
    void prefetch_rest(int64_t slot) const {
        const std::byte* const first = column.at(slot);
        for (int64_t at = line_bytes; at < bytes - 1; at += line_bytes) prefetch_to_read(first + at);
        prefetch_to_read(first + bytes - 1);
    }
};

// The arrays that a batch wants, their stacks, and how they are copied. Memory is kept from batch to batch.
class GatherPlan {
 public:
    explicit GatherPlan(const ReplayState& state) : state_(state) {}

    // Plans for the arrays of `batch` that are not NULL. single_frames: one frame in place of each stack. For fields
    // that `gather` wants, only the places of frames are written. Rows of any length are left out otherwise. Only this
    // function may throw.
    const GatherPlan& make(const per_batch& batch, bool single_frames, const FramePlaces* gather = nullptr);

    const GatherWishes& wishes() const { return wishes_; }
    int64_t row_bytes() const { return row_bytes_; }  // of a row of the batch

    // The number of rows to fetch and copy together: at most as many as fit in the cache. For large rows it is two, so
    // that an observation and the next, which usually lies behind it, are read close together.
    int64_t block_rows() const { return std::clamp<int64_t>(block_bytes / (row_bytes_ + 1), 2, max_block_rows); }
    static constexpr int64_t max_block_rows = 32;

    // The memory of rows and of their n-step windows is prefetched a little before copy() is called: by prefetch(), or
    // as run_of() describes it if it is a few lines of adjacent records.
    RecordRun run_of(int64_t n_step) const;
    // The rows that a draw of n rows prefetches while it computes; none if that would be slower.
    RowsOfLeaves rows_to_fetch(int64_t n, int64_t n_step) const;
    void set_fetched(bool are_fetched) { are_rows_fetched_ = are_fetched; }
    bool are_rows_fetched() const { return are_rows_fetched_; }
    void prefetch(const GatherRow* rows, int64_t n) const;
    // Prefetches from the disk the windows of n_step steps. Slots below 0 are skipped.
    void will_need(const std::vector<int64_t>& slots, int64_t n_step) const;
    // copy() writes rows first .. first + n - 1 of the batch; prefetch_out() prefetches the lines that copy() writes.
    void prefetch_out(int64_t first, int64_t n) const;
    void copy(int64_t first, const GatherRow* rows, int64_t n) const;

 private:
    static constexpr int64_t block_bytes = 16384;

    struct Copy {
        Column<const std::byte> column;
        Column<const std::byte> next_column;  // with store_next_observation
        const PackedFrames* packed;           // NULL: frames are in the column
        const PackedFrames* next_packed;
        std::byte* out;
        const std::byte** places;  // takes the places of frames; NULL: they are copied
        int64_t bytes;             // of a frame
        int64_t stack;
        int64_t place;  // in the record of the slot, of frames that lie there in nearly all rows; else -1
        bool is_next;
        bool pads_with_zeros;
        bool is_fetched_apart;  // not with the common part of the record
        const Moves* moves;
    };
    // A part of each record: the bytes from one place in it to another.
    struct Part {
        int64_t first = std::numeric_limits<int64_t>::max();
        int64_t end = 0;

        void include(int64_t place, int64_t bytes) {
            first = std::min(first, place);
            end = std::max(end, place + bytes);
        }
    };

    void add_copy(int64_t field, void* out, const FramePlaces* gather, int64_t stack, bool is_next);
    void prefetch_part(const Part& part, int64_t slot) const;
    const std::byte* frame(const Copy& copy, const GatherRow& row, int64_t age) const;
    void prefetch_packed(const Copy& copy, const GatherRow* rows, int64_t n) const;
    template <class Visit>
    void for_each_packed(const Copy& copy, const GatherRow* rows, int64_t n, const Visit& visit) const;
    void copy_packed(const Copy& copy, std::byte* out, const GatherRow* rows, int64_t n) const;
    void copy_newest(const Copy& copy, std::byte* out, const GatherRow* rows, const std::byte* const* records,
                     int64_t n) const;
    void copy_stacks(const Copy& copy, std::byte* out, const GatherRow* rows, int64_t n) const;
    void write_places(const Copy& copy, const std::byte** out, const GatherRow* rows, int64_t n) const;

    const ReplayState& state_;
    std::vector<Copy> copies_;
    Part part_;                  // read of a transition's record
    Part next_part_;             // read of the record of its next observation
    bool is_in_records_ = true;  // all that is copied lies in records
    size_t n_apart_ = 0;         // number of columns read besides records
    NumbersApart apart_ = {};
    GatherWishes wishes_ = {1, false};
    int64_t row_bytes_ = 0;
    bool are_rows_fetched_ = false;
};

// The n-step return of the row in a slot, and the places of its window's frames. Inline: calls would take 13 ns a row.
inline Return window_at(const ReplayState& state, int64_t env, int64_t slot, int64_t n_step) {
    const Ring& ring = state.ring();
    const auto flags_at = [&](int64_t k) { return state.rows.flags(k == 0 ? slot : ring.moved(env, slot, k)); };
    const auto reward_at = [&](int64_t k) { return state.rows.rewards()[k == 0 ? slot : ring.moved(env, slot, k)]; };
    // A constant n_step needs no loop.
    return n_step == 1 ? n_step_return(1, state.gamma, flags_at, reward_at)
                       : n_step_return(n_step, state.gamma, flags_at, reward_at);
}

inline GatherRow frames_at(const ReplayState& state, int64_t env, int64_t slot, const Return& window,
                           const GatherWishes& wishes) {
    const Ring& ring = state.ring();
    const auto flags_of = [&](int64_t distance) { return state.rows.flags(ring.moved(env, slot, distance)); };
    return gather_row(state.rules, env, slot, window, wishes, flags_of);
}

// The number of rows that have been added to a lane after its row k.
inline int64_t age_of_row(int64_t k, int64_t head) {
    return head - 1 - k;
}

// Writes the id of the row in a slot, and returns its age.
inline int64_t write_id(const ReplayState& state, int64_t i, int64_t env, int64_t slot, const per_batch& batch) {
    const int64_t head = state.lane(env).head;
    const int64_t row = state.ring().row_of_slot(env, slot, head);
    if (batch.ids != nullptr) batch.ids[i] = state.ring().id(env, row);
    return age_of_row(row, head);
}

// Writes the transitions in these slots, whose windows are complete: frames, returns, and ids. ages_out: [slots] or
// NULL.
void write_transitions(const ReplayState& state, const GatherPlan& plan, const NSteps& n_steps,
                       const std::vector<int64_t>& slots, const per_batch& batch, WorkerThreads& threads,
                       int64_t* ages_out);

}  // namespace per::cpu

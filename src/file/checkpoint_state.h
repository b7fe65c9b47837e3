// The state of a replay buffer as its checkpoint holds it after the options: the same bytes whatever device it lay on.
// Rows that were cleared or overwritten are left out.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/replay_statistics.h"
#include "file/checkpoint_file.h"
#include "rows/fields.h"
#include "rules/mass.h"
#include "rules/rank.h"
#include "rules/window.h"

namespace per {

// All of the state but lanes, arrays by slot, and ranks.
struct CheckpointNumbers {
    int64_t beta_step;
    int64_t batches;
    ReplayCounters counters;
    float largest_priority;  // ever
    int32_t tree_scale;
    uint64_t tree_rescales_below;
    BatchFigures figures;  // of the last batch
};

// Ranks. The priorities that they follow from may have changed since they were taken. By default they were never taken.
struct CheckpointRanks {
    int64_t n_changes = ranks_never_taken;
    int32_t tree_scale = 0;
    uint64_t tree_rescales_below = 0;
    float weights[n_rank_buckets] = {};
};

// Ranks that are due, as a checkpoint has them: the next draw takes them whatever they were, so nothing of them is kept.
// A draw that takes ranks and then fails makes them due, and thus changes no byte of a checkpoint. `are_always_there`:
// the options of the buffer ask for ranks.
inline std::optional<CheckpointRanks> due_ranks(bool are_always_there) {
    return are_always_there ? std::optional(CheckpointRanks()) : std::nullopt;
}

// An array by slot.
struct SlotArray {
    enum class Kind { flags, rewards, priorities, times_sampled, field, next_field };

    Kind kind;
    int64_t field;     // the number of the field that the last two kinds belong to
    int64_t bytes;     // of an element
    std::string name;  // of its section
};

// The arrays that a checkpoint holds, in its order.
std::vector<SlotArray> slot_arrays(const Fields& fields, const WindowRules& rules, bool has_times_sampled);

// The rows of a lane that a checkpoint holds: those that are there, whether live or not, since windows of live rows
// reach into them; and the final observation that the next step is compared with, also after a clear.
inline RowRange saved_rows(const Lane& lane, const WindowRules& rules) {
    const int64_t oldest = oldest_row(lane, rules);
    return {lane.state == LaneState::ended ? std::min(oldest, compared_row(lane)) : oldest, used_end(lane, rules)};
}

inline int64_t n_saved_rows(const std::vector<Lane>& lanes, const WindowRules& rules) {
    int64_t count = 0;
    for (const Lane& lane : lanes) count += saved_rows(lane, rules).end - saved_rows(lane, rules).first;
    return count;
}

// Calls visit(first slot, n) for the parts of an array by slot that hold those rows, in the order of the file: lane by
// lane, and in order of time.
template <class Visit>
void for_each_saved_part(const WindowRules& rules, const std::vector<Lane>& lanes, const Visit& visit) {
    for (int64_t env = 0; env < rules.ring.n_envs; ++env)
        per::for_each_part(rules.ring, env, saved_rows(lanes[static_cast<size_t>(env)], rules),
                           [&](int64_t slot, int64_t, int64_t n) { visit(slot, n); });
}

// A state is written in this order: numbers and lanes, each of slot_arrays() as a section of its own, ranks. ranks may be
// NULL.
void write_numbers(CheckpointWriter& writer, const CheckpointNumbers& numbers, const std::vector<Lane>& lanes);
// Begins the section of an array, whose elements for_each_saved_part() then names.
void begin_array(CheckpointWriter& writer, const SlotArray& array, const std::vector<Lane>& lanes,
                 const WindowRules& rules);
void write_ranks(CheckpointWriter& writer, const CheckpointRanks* ranks);

// All of a state but its arrays by slot.
struct CheckpointMoment {
    CheckpointNumbers numbers;
    std::vector<Lane> lanes;
    std::optional<CheckpointRanks> ranks;  // if there are any to keep
};

// Writes a state. write_array(i) is to write the elements of arrays[i].
template <class WriteArray>
void write_state(CheckpointWriter& writer, const CheckpointMoment& moment, const WindowRules& rules,
                 const std::vector<SlotArray>& arrays, const WriteArray& write_array) {
    write_numbers(writer, moment.numbers, moment.lanes);
    for (std::size_t i = 0; i < arrays.size(); ++i) {
        begin_array(writer, arrays[i], moment.lanes, rules);
        write_array(i);
        writer.end();
    }
    write_ranks(writer, moment.ranks ? &*moment.ranks : nullptr);
}

// How many bytes the arrays have in a file.
int64_t bytes_of_arrays(const std::vector<SlotArray>& arrays, const WindowRules& rules, const std::vector<Lane>& lanes);

// Slots first .. end - 1.
struct SlotRange {
    int64_t first;
    int64_t end;
};

// priority_to_alpha() of each of `count` priorities, one by one. A backend that has a faster one gives that.
void raise_one_by_one(int64_t count, const float* priorities, double alpha, float* powers_out);
using Raise = decltype(&raise_one_by_one);

// Reads a state in the same order, and checks all that later calls rely on without looking: which rows are live, the
// order of flags, what priorities weigh. A state that no buffer can be in throws Error with CORRUPT_FILE. The memory
// that this takes grows with the rows in the file, not with the capacity.
class CheckpointState {
 public:
    // Reads numbers and lanes. `reader` and `rules` must stay as long as this object.
    // `raise` computes what raise_one_by_one() does, to the bit.
    CheckpointState(CheckpointReader& reader, const WindowRules& rules, double alpha, int32_t max_times_sampled,
                    Raise raise = raise_one_by_one);

    const CheckpointNumbers& numbers() const { return numbers_; }
    const std::vector<Lane>& lanes() const { return lanes_; }

    // An array: begin(), its elements by read() for the parts that for_each_part() names, and end(), which checks it.
    void begin(const SlotArray& array);
    // Flags, priorities and times_sampled are read in whole elements. Where the elements stay in the file of the rows,
    // they are read there; is_in_rows() says so after begin(), and an array of a buffer that has that file need not be read.
    bool is_in_rows() const { return reader_.is_in_rows(); }
    void read(const SlotArray& array, std::byte* bytes, std::size_t size);
    // What the tree is to hold for the priorities that were read last: p^alpha of live rows, 0 of others.
    const float* leaves() const { return leaves_.data(); }
    void end(const SlotArray& array);
    // Calls visit(first slot, n) for the parts of each array, in the order of the file.
    template <class Visit>
    void for_each_part(const Visit& visit) const {
        for_each_saved_part(rules_, lanes_, visit);
    }
    // Reads ranks, which a buffer with PER_RANK always has.
    std::optional<CheckpointRanks> read_ranks(bool are_required);

    // The slots of live rows, lane by lane and in order of time, those side by side as one range. They are known once
    // the flags were checked.
    const std::vector<SlotRange>& live_slots() const { return live_slots_; }
    int64_t n_live() const { return n_live_; }

 private:
    // The place of a row among those of all lanes that are in the file.
    size_t index(int64_t env, int64_t row) const;
    uint8_t flags(int64_t env, int64_t row) const { return flags_[index(env, row)]; }
    void read_rows(int64_t element_bytes, std::byte* bytes, std::size_t size);
    void check_flags() const;
    bool is_order_possible(int64_t env) const;
    int64_t n_plain_steps(int64_t env, RowRange rows) const;
    void find_live(int64_t env);
    void add_live(int64_t env, RowRange rows);
    void see_priorities(const float* priorities, size_t n);
    void see_few_priorities(const float* priorities, size_t n, float* leaves_out);
    void check_priorities() const;
    void check_ranks(const CheckpointRanks& ranks) const;
    bool is_possible(uint8_t flags) const;
    void see_times_sampled(const int32_t* times_sampled, size_t n);

    CheckpointReader& reader_;
    const WindowRules& rules_;
    double alpha_;
    int32_t max_times_sampled_;
    CheckpointNumbers numbers_;
    std::vector<Lane> lanes_;
    std::vector<size_t> first_;     // by environment: the index of its first element
    std::vector<uint8_t> flags_;    // by index
    std::vector<uint8_t> is_live_;  // by index: 0 or 1
    std::vector<SlotRange> live_slots_;
    int64_t n_live_ = 0;
    std::vector<bool> is_used_up_;  // by index, with max_times_sampled
    size_t n_times_sampled_ = 0;    // how many were read
    bool are_times_sampled_ = true;
    // Where the next byte of an array lies that is in the file of the rows.
    struct RowCursor {
        std::vector<SlotRange> slots;  // of the parts of the array
        size_t part = 0;
        int64_t slot = 0;
        int64_t offset = 0;  // in the element
    };
    RowCursor cursor_;
    Raise raise_;
    std::vector<float> leaves_;
    size_t n_priorities_ = 0;  // how many were read
    bool are_priorities_ = true;
    // The mass of all leaves.
    WideSum mass_ = {0, 0};
    bool has_too_large_leaf_ = false;
    std::vector<uint64_t> bucket_counts_ = std::vector<uint64_t>(n_rank_buckets);  // of live rows
};

}  // namespace per

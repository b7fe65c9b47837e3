// The state of a replay buffer in its checkpoint, after the options. The bytes do not depend on the buffer's device.
// Rows that were cleared or overwritten are left out.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/replay_statistics.h"
#include "file/checkpoint_file.h"
#include "rows/fields.h"
#include "rules/freshness.h"
#include "rules/mass.h"
#include "rules/rank.h"
#include "rules/window.h"

namespace per {

// The state without lanes, arrays by slot, and ranks.
struct CheckpointNumbers {
    int64_t beta_step;
    int64_t batches;
    ReplayCounters counters;
    float largest_priority;  // ever
    int32_t tree_scale;
    uint64_t tree_rescales_below;
    BatchFigures figures;  // of the last batch
    int64_t version;       // of rows that are added
    int64_t reference;     // of freshness.h
};

// Ranks as they were taken last; the priorities may have changed since. The default values stand for ranks that were
// never taken.
struct CheckpointRanks {
    int64_t n_changes = ranks_never_taken;
    int32_t tree_scale = 0;
    uint64_t tree_rescales_below = 0;
    float weights[n_rank_buckets] = {};
};

// The ranks that a checkpoint stores while ranks are due. They have no values, since the next draw takes ranks again.
// If a draw takes ranks that are due and then fails, they are due again, so that the draw changes no byte of a
// checkpoint. `are_always_there`: the options of the buffer ask for ranks.
inline std::optional<CheckpointRanks> due_ranks(bool are_always_there) {
    return are_always_there ? std::optional(CheckpointRanks()) : std::nullopt;
}

// An array with an element for each slot.
struct SlotArray {
    enum class Kind { flags, versions, rewards, priorities, times_sampled, field, next_field };

    Kind kind;
    int64_t field;     // index of the field, for the last two kinds
    int64_t bytes;     // of an element; 0: elements are rows of any length
    std::string name;  // of its section
    // For rows of any length: the bytes of each in the file, in its order, and their mean. A writer must set both.
    std::vector<uint32_t> sizes = {};
    int64_t mean_size = 0;

    bool is_ragged() const { return bytes == 0; }
};

// A row of any length is the number of its values, and the values.
using RaggedLength = uint32_t;

// Appends a row of any length.
inline void append_row(std::span<const std::byte> values, int64_t value_bytes, std::vector<std::byte>& out) {
    const auto length = static_cast<RaggedLength>(std::ssize(values) / value_bytes);
    const auto* const first = reinterpret_cast<const std::byte*>(&length);
    out.insert(out.end(), first, first + sizeof length);
    out.insert(out.end(), values.begin(), values.end());
}

// The arrays of a checkpoint, in order.
std::vector<SlotArray> slot_arrays(const Fields& fields, const WindowRules& rules, bool has_times_sampled,
                                   bool has_versions);

// The rows of a lane that a checkpoint holds: all rows that exist, live or not, since windows of live rows reach into
// them; and the final observation that is compared with the next step, even after a clear.
inline RowRange saved_rows(const Lane& lane, const WindowRules& rules) {
    const int64_t oldest = oldest_row(lane, rules);
    return {lane.state == LaneState::ended ? std::min(oldest, compared_row(lane)) : oldest, used_end(lane, rules)};
}

inline int64_t n_saved_rows(const std::vector<Lane>& lanes, const WindowRules& rules) {
    int64_t count = 0;
    for (const Lane& lane : lanes) count += saved_rows(lane, rules).end - saved_rows(lane, rules).first;
    return count;
}

// Calls visit(first slot, n) for the parts of an array by slot that hold these rows, in the order of the file: lane by
// lane, from the oldest row on.
template <class Visit>
void for_each_saved_part(const WindowRules& rules, const std::vector<Lane>& lanes, const Visit& visit) {
    for (int64_t env = 0; env < rules.ring.n_envs; ++env)
        per::for_each_part(rules.ring, env, saved_rows(lanes[static_cast<size_t>(env)], rules),
                           [&](int64_t slot, int64_t, int64_t n) { visit(slot, n); });
}

// A state is written in this order: numbers and lanes, a section for each of slot_arrays(), ranks. ranks may be NULL.
void write_numbers(CheckpointWriter& writer, const CheckpointNumbers& numbers, const std::vector<Lane>& lanes);
// Begins the section of an array. Its elements follow in the order of for_each_saved_part().
void begin_array(CheckpointWriter& writer, const SlotArray& array, const std::vector<Lane>& lanes,
                 const WindowRules& rules);
void write_ranks(CheckpointWriter& writer, const CheckpointRanks* ranks);

// A state without its arrays by slot.
struct CheckpointMoment {
    CheckpointNumbers numbers;
    std::vector<Lane> lanes;
    std::optional<CheckpointRanks> ranks;
};

// Writes a state. write_array(i) must write the elements of arrays[i].
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

// Bytes of an array, or of all arrays, in a file.
int64_t bytes_of_array(const SlotArray& array, const WindowRules& rules, const std::vector<Lane>& lanes);
int64_t bytes_of_arrays(const std::vector<SlotArray>& arrays, const WindowRules& rules, const std::vector<Lane>& lanes);

// Slots first .. end - 1.
struct SlotRange {
    int64_t first;
    int64_t end;
};

// Computes priority_to_alpha() of each of `count` priorities. A backend may have a faster function.
void raise_one_by_one(int64_t count, const float* priorities, double alpha, float* powers_out);
using Raise = decltype(&raise_one_by_one);

// The options of the buffer that decide which states it can be in.
struct CheckpointRules {
    const WindowRules& windows;
    double alpha;
    int32_t max_times_sampled;
    Freshness freshness;  // its reference is not used: the file has one
    bool has_versions;
    int64_t max_age;  // in versions; -1: any
};

// Reads a state in the same order, and checks everything that later calls rely on: which rows are live, the order of
// flags, the mass of priorities. Throws Error with CORRUPT_FILE for a state that no buffer can be in. The memory of the
// reader grows with the rows in the file, not with the capacity.
class CheckpointState {
 public:
    // Reads numbers and lanes. `reader` and the window rules must outlive this object. `raise` must be bit-identical to
    // raise_one_by_one().
    CheckpointState(CheckpointReader& reader, const CheckpointRules& rules, Raise raise = raise_one_by_one);

    const CheckpointNumbers& numbers() const { return numbers_; }
    const std::vector<Lane>& lanes() const { return lanes_; }

    // Read an array: begin(), read() for the elements of each part of for_each_part(), and end(), which checks it.
    void begin(const SlotArray& array);
    // Flags, versions, priorities and times_sampled are read in whole elements. If is_in_rows() after begin(), the elements are
    // read from the file of the rows; a buffer that has that file need not read them.
    bool is_in_rows() const { return reader_.is_in_rows(); }
    void read(const SlotArray& array, std::byte* bytes, std::size_t size);
    // The leaves of the tree for the priorities of the last read(): p^alpha for live rows, 0 for others.
    const float* leaves() const { return leaves_.data(); }
    void end(const SlotArray& array);
    template <class Visit>
    void for_each_part(const Visit& visit) const {
        for_each_saved_part(rules_, lanes_, visit);
    }
    // `are_required` for a buffer with PER_RANK, which always has ranks.
    std::optional<CheckpointRanks> read_ranks(bool are_required);

    // The slots of live rows, lane by lane and from the oldest row on; adjacent slots are one range. Valid after the
    // flags were checked.
    const std::vector<SlotRange>& live_slots() const { return live_slots_; }
    int64_t n_live() const { return n_live_; }

 private:
    // The index of a row among all rows in the file.
    size_t index(int64_t env, int64_t row) const;
    uint8_t flags(int64_t env, int64_t row) const { return flags_[index(env, row)]; }
    void read_rows(int64_t element_bytes, std::byte* bytes, std::size_t size);
    void check_flags();
    bool is_order_possible(int64_t env);
    int64_t n_plain_steps(int64_t env, RowRange rows) const;
    void find_live(int64_t env);
    void add_live(int64_t env, RowRange rows);
    void see_priorities(const float* priorities, size_t n);
    void see_few_priorities(const float* priorities, size_t n, float* leaves_out);
    void check_priorities() const;
    void check_ranks(const CheckpointRanks& ranks) const;
    bool is_possible(uint8_t flags) const;
    void see_times_sampled(const int32_t* times_sampled, size_t n);
    void check_versions() const;
    int64_t birth(size_t index);

    CheckpointReader& reader_;
    const WindowRules& rules_;
    double alpha_;
    int32_t max_times_sampled_;
    Freshness freshness_;
    const bool has_versions_;
    const int64_t max_age_;
    CheckpointNumbers numbers_;
    std::vector<Lane> lanes_;
    std::vector<size_t> first_;     // by environment: index of its first row
    std::vector<uint8_t> flags_;    // by index
    std::vector<uint8_t> is_live_;  // by index: 0 or 1
    std::vector<SlotRange> live_slots_;
    int64_t n_live_ = 0;
    std::vector<bool> is_used_up_;      // by index, with max_times_sampled
    size_t n_times_sampled_ = 0;        // read so far
    std::vector<int64_t> stack_tails_;  // by environment: first_with_stack(), valid once flags were checked
    std::vector<int32_t> versions_;     // by index
    size_t lane_of_birth_ = 0;
    int64_t latest_birth_ = 0;  // of live rows
    bool are_times_sampled_ = true;
    // The next byte of an array in the file of the rows.
    struct RowCursor {
        std::vector<SlotRange> slots;  // of the parts of the array
        size_t part = 0;
        int64_t slot = 0;
        int64_t offset = 0;  // in the element
    };
    RowCursor cursor_;
    Raise raise_;
    std::vector<float> leaves_;
    size_t n_priorities_ = 0;  // read so far
    bool are_priorities_ = true;
    WideSum mass_ = {0, 0};  // of all leaves
    bool has_too_large_leaf_ = false;
    std::vector<uint64_t> bucket_counts_ = std::vector<uint64_t>(n_rank_buckets);  // of live rows
};

}  // namespace per

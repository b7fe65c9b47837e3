// The state of a replay buffer as its checkpoint holds it after the options: the same bytes whatever device it lay on.
// Slots that no row has used yet are left out.
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

// Ranks, if they were asked for. The priorities that they follow from may have changed since they were taken.
struct CheckpointRanks {
    int64_t n_changes;
    int32_t tree_scale;
    uint64_t tree_rescales_below;
    float weights[n_rank_buckets];
};

// An array by slot.
struct SlotArray {
    enum class Kind { flags, rewards, priorities, field, next_field };

    Kind kind;
    int64_t field;     // the number of the field that the last two kinds belong to
    int64_t bytes;     // of an element
    std::string name;  // as messages call it
};

// The arrays that a checkpoint holds, in its order.
std::vector<SlotArray> slot_arrays(const Fields& fields, const WindowRules& rules);

// How many slots of a lane were ever used: the first ones.
inline int64_t used_slots(const Lane& lane, const WindowRules& rules) {
    return std::min(used_end(lane, rules), rules.ring.rows);
}

// Calls visit(first slot, n) for the parts of an array by slot that are in use, in the order of the file.
template <class Visit>
void for_each_used_part(const WindowRules& rules, const std::vector<Lane>& lanes, const Visit& visit) {
    for (int64_t env = 0; env < rules.ring.n_envs; ++env)
        visit(rules.ring.slot(env, 0), used_slots(lanes[static_cast<size_t>(env)], rules));
}

// A state is written in this order: numbers and lanes, each of slot_arrays() with a seal of its own, ranks. NULL: no
// ranks were asked for.
void write_numbers(CheckpointWriter& writer, const CheckpointNumbers& numbers, const std::vector<Lane>& lanes);
void write_ranks(CheckpointWriter& writer, const CheckpointRanks* ranks);

// Reads a state in the same order, and checks all that later calls rely on without looking: which rows are live, the
// order of flags, what priorities weigh. A state that no buffer can be in throws Error with CORRUPT_FILE. The memory
// that this takes grows with the rows in the file, not with the capacity.
class CheckpointState {
 public:
    // Reads numbers and lanes. `reader` and `rules` must stay as long as this object.
    CheckpointState(CheckpointReader& reader, const WindowRules& rules, double alpha);

    const CheckpointNumbers& numbers() const { return numbers_; }
    const std::vector<Lane>& lanes() const { return lanes_; }

    // Reads the next bytes of an array. Flags and priorities are read in whole elements.
    void read(const SlotArray& array, std::byte* bytes, std::size_t size);
    // Checks the array and its seal once all of it was read.
    void check(const SlotArray& array);
    // Reads ranks, which a buffer with PER_RANK always has.
    std::optional<CheckpointRanks> read_ranks(bool are_required);

    // The slots of live rows, lane by lane and in order of time. They are known once the flags were checked.
    const std::vector<int64_t>& live_slots() const { return live_slots_; }

 private:
    // The place of a row's slot among those of all lanes that are in the file.
    size_t index(int64_t env, int64_t row) const;
    uint8_t flags(int64_t env, int64_t row) const { return flags_[index(env, row)]; }
    void check_flags() const;
    bool is_order_possible(int64_t env) const;
    void find_live(int64_t env);
    void see_priorities(const float* priorities, size_t n);
    void check_priorities() const;
    void check_ranks(const CheckpointRanks& ranks) const;

    CheckpointReader& reader_;
    const WindowRules& rules_;
    double alpha_;
    CheckpointNumbers numbers_;
    std::vector<Lane> lanes_;
    std::vector<size_t> first_;   // by environment: the index of its first slot
    std::vector<uint8_t> flags_;  // by index
    std::vector<bool> is_live_;   // by index
    std::vector<int64_t> live_slots_;
    size_t n_priorities_ = 0;  // how many were read
    bool are_priorities_ = true;
    // Of the leaves of live rows.
    WideSum mass_ = {0, 0};
    bool has_too_large_leaf_ = false;
    std::vector<uint64_t> bucket_counts_ = std::vector<uint64_t>(n_rank_buckets);  // of live rows
};

}  // namespace per

// The state of a replay buffer as its checkpoint holds it after the options: the same bytes whatever device it lay on.
// What lies in slots that no row has used yet is left out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "backend/batch_figures.h"
#include "backend/replay_counters.h"
#include "file/checkpoint.h"
#include "rows/fields.h"
#include "rules/rank.h"
#include "rules/window.h"

namespace per {

// All but lanes, arrays by slot, and ranks.
struct SavedNumbers {
    int64_t beta_step;
    int64_t batches;
    ReplayCounters counters;
    float largest_priority;  // ever
    int32_t tree_scale;
    uint64_t tree_rescales_below;
    BatchFigures figures;  // of the last batch
};

// Ranks, if they were asked for, beside the priorities that they follow from.
struct SavedRanks {
    int64_t n_changes;
    int32_t tree_scale;
    uint64_t tree_rescales_below;
    float weights[n_rank_buckets];
};

// Numbers and lanes; what is read throws Error with CORRUPT_FILE where it cannot be.
void write_numbers(CheckpointWriter& writer, const SavedNumbers& numbers, const std::vector<Lane>& lanes);
SavedNumbers read_numbers(CheckpointReader& reader, const WindowRules& rules, std::vector<Lane>& lanes_out);

// NULL: they were not asked for.
void write_ranks(CheckpointWriter& writer, const SavedRanks* ranks);
bool read_ranks(CheckpointReader& reader, SavedRanks& ranks_out);

// An array by slot.
struct SlotArray {
    enum class Kind { flags, rewards, priorities, field, next_field };

    Kind kind;
    int64_t field;  // of the last two
    int64_t bytes;  // of an element
};

// Those that a checkpoint holds, in its order.
std::vector<SlotArray> slot_arrays(const Fields& fields, const WindowRules& rules);

// Slots of a lane that were ever used: the first ones.
inline int64_t used_slots(const Lane& lane, const WindowRules& rules) {
    return std::min(used_end(lane, rules), rules.ring.rows);
}

// Calls visit(first slot, n) for the parts of an array by slot that are in use, in the order of the file.
template <class Visit>
void for_each_used_part(const WindowRules& rules, const std::vector<Lane>& lanes, const Visit& visit) {
    for (int64_t env = 0; env < rules.ring.n_envs; ++env)
        visit(rules.ring.slot(env, 0), used_slots(lanes[static_cast<size_t>(env)], rules));
}

}  // namespace per

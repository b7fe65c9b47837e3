#include "cpu/replay/checkpoint.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "cpu/memory/column.h"
#include "cpu/memory/moves.h"
#include "file/checkpoint_state.h"

namespace per::cpu {
namespace {

Column<std::byte> column_of(const ReplayState& state, const SlotArray& array) {
    switch (array.kind) {
        case SlotArray::Kind::flags:
            return state.rows.flags().as_bytes();
        case SlotArray::Kind::rewards:
            return state.rows.rewards().as_bytes();
        case SlotArray::Kind::priorities:
            return state.priorities.by_slot().as_bytes();
        case SlotArray::Kind::field:
            return state.rows.field(array.field);
        case SlotArray::Kind::next_field:
            return state.rows.next_field(array.field);
    }
    __builtin_unreachable();
}

// Calls visit(first slot, n) for n slots that follow each other, in parts of at most max_part_bytes.
template <class Visit>
void for_each_small_part(int64_t first, int64_t n, int64_t bytes, const Visit& visit) {
    constexpr int64_t max_part_bytes = int64_t{1} << 18;
    const int64_t max_slots = std::max<int64_t>(1, max_part_bytes / bytes);
    for (int64_t i = 0; i < n; i += max_slots) visit(first + i, std::min(max_slots, n - i));
}

void save_ranks(CheckpointWriter& writer, RankTree* ranks) {
    if (ranks == nullptr) return write_ranks(writer, nullptr);
    const RankTree::State state = ranks->state();
    CheckpointRanks saved = {state.n_changes, state.tree_scale, state.tree_rescales_below, {}};
    std::copy_n(ranks->weights(), n_rank_buckets, saved.weights);
    write_ranks(writer, &saved);
}

}  // namespace

void save_state(CheckpointWriter& writer, ReplayState& state) {
    const PriorityScale scale = state.priorities.scale();
    write_numbers(writer,
                  {state.beta_step(), state.batches, state.counters, scale.largest_ever, scale.tree_scale,
                   scale.tree_rescales_below, state.last_batch.figures()},
                  state.lanes);
    std::vector<std::byte> side_by_side;
    for (const SlotArray& array : slot_arrays(state.fields, state.rules)) {
        const Column<std::byte> column = column_of(state, array);
        begin_array(writer, array, state.lanes, state.rules);
        for_each_saved_part(state.rules, state.lanes, [&](int64_t first, int64_t n_slots) {
            for_each_small_part(first, n_slots, array.bytes, [&](int64_t slot, int64_t n) {
                const size_t size = static_cast<size_t>(n * array.bytes);
                if (column.stride == array.bytes) return writer.bytes(column.at(slot), size);
                side_by_side.resize(size);
                copy_frames(side_by_side.data(), array.bytes, column.at(slot), column.stride, n, array.bytes);
                writer.bytes(side_by_side.data(), size);
            });
        });
        writer.end();
    }
    save_ranks(writer, state.priorities.known_ranks());
}

void restore_state(CheckpointReader& reader, ReplayState& state) {
    CheckpointState saved(reader, state.rules, state.priorities.alpha());
    const CheckpointNumbers& numbers = saved.numbers();
    state.lanes = saved.lanes();
    state.beta.step = numbers.beta_step;
    state.batches = numbers.batches;
    state.counters = numbers.counters;
    state.last_batch = LastBatch(numbers.figures);
    std::vector<std::byte> side_by_side;
    for (const SlotArray& array : slot_arrays(state.fields, state.rules)) {
        const Column<std::byte> column = column_of(state, array);
        saved.begin(array);
        saved.for_each_part([&](int64_t first, int64_t n_slots) {
            for_each_small_part(first, n_slots, array.bytes, [&](int64_t slot, int64_t n) {
                const size_t size = static_cast<size_t>(n * array.bytes);
                if (column.stride == array.bytes) return saved.read(array, column.at(slot), size);
                side_by_side.resize(size);
                saved.read(array, side_by_side.data(), size);
                copy_frames(column.at(slot), column.stride, side_by_side.data(), array.bytes, n, array.bytes);
                if (array.kind != SlotArray::Kind::flags) return;
                for (int64_t i = slot; i < slot + n; ++i) state.rows.set_flags(i, state.rows.flags(i));
            });
        });
        saved.end(array);
    }
    PriorityStore& priorities = state.priorities;
    const std::optional<CheckpointRanks> ranks = saved.read_ranks(priorities.known_ranks() != nullptr);
    priorities.restore(saved.live_slots(), {numbers.largest_priority, numbers.tree_scale, numbers.tree_rescales_below});
    if (ranks)
        priorities.restore_ranks(saved.live_slots(), {ranks->n_changes, ranks->tree_scale, ranks->tree_rescales_below},
                                 ranks->weights);
}

}  // namespace per::cpu

#include "cpu/replay/checkpoint.h"

#include <algorithm>
#include <optional>

#include "file/checkpoint_state.h"

namespace per::cpu {
namespace {

std::byte* data_of(ReplayState& state, const SlotArray& array) {
    switch (array.kind) {
        case SlotArray::Kind::flags:
            return reinterpret_cast<std::byte*>(state.rows.flags());
        case SlotArray::Kind::rewards:
            return reinterpret_cast<std::byte*>(state.rows.rewards());
        case SlotArray::Kind::priorities:
            return reinterpret_cast<std::byte*>(state.priorities.by_slot());
        case SlotArray::Kind::field:
            return state.rows.field(array.field);
        case SlotArray::Kind::next_field:
            return state.rows.next_field(array.field);
    }
    __builtin_unreachable();
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
    for (const SlotArray& array : slot_arrays(state.fields, state.rules)) {
        const std::byte* const data = data_of(state, array);
        for_each_used_part(state.rules, state.lanes, [&](int64_t slot, int64_t n) {
            writer.bytes(data + slot * array.bytes, static_cast<size_t>(n * array.bytes));
        });
        writer.seal();
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
    for (const SlotArray& array : slot_arrays(state.fields, state.rules)) {
        std::byte* const data = data_of(state, array);
        for_each_used_part(state.rules, state.lanes, [&](int64_t slot, int64_t n) {
            saved.read(array, data + slot * array.bytes, static_cast<size_t>(n * array.bytes));
        });
        saved.check(array);
    }
    PriorityStore& priorities = state.priorities;
    const std::optional<CheckpointRanks> ranks = saved.read_ranks(priorities.known_ranks() != nullptr);
    priorities.restore(saved.live_slots(), {numbers.largest_priority, numbers.tree_scale, numbers.tree_rescales_below});
    if (ranks)
        priorities.restore_ranks(saved.live_slots(), {ranks->n_changes, ranks->tree_scale, ranks->tree_rescales_below},
                                 ranks->weights);
}

}  // namespace per::cpu

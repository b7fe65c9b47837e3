// A replay buffer in host memory is saved to a checkpoint and restored from one.
#include <algorithm>
#include <optional>

#include "cpu/replay/replay_backend.h"
#include "file/checkpoint_file.h"
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

void CpuReplayBackend::save(CheckpointWriter& writer) {
    const PriorityScale scale = state_.priorities.scale();
    write_numbers(writer,
                  {beta_step(), batches_, state_.counters, scale.largest_ever, scale.tree_scale,
                   scale.tree_rescales_below, last_batch_.figures(state_.priorities.tree().kernels().power)},
                  state_.lanes);
    for (const SlotArray& array : slot_arrays(state_.fields, state_.rules)) {
        const std::byte* const data = data_of(state_, array);
        for_each_used_part(state_.rules, state_.lanes, [&](int64_t slot, int64_t n) {
            writer.bytes(data + slot * array.bytes, static_cast<size_t>(n * array.bytes));
        });
        writer.seal();
    }
    save_ranks(writer, state_.priorities.known_ranks());
}

void CpuReplayBackend::restore(CheckpointReader& reader) {
    CheckpointState saved(reader, state_.rules, state_.priorities.alpha());
    const CheckpointNumbers& numbers = saved.numbers();
    state_.lanes = saved.lanes();
    beta_.step = numbers.beta_step;
    batches_ = numbers.batches;
    state_.counters = numbers.counters;
    last_batch_.restore(numbers.figures);
    for (const SlotArray& array : slot_arrays(state_.fields, state_.rules)) {
        std::byte* const data = data_of(state_, array);
        for_each_used_part(state_.rules, state_.lanes, [&](int64_t slot, int64_t n) {
            saved.read(array, data + slot * array.bytes, static_cast<size_t>(n * array.bytes));
        });
        saved.check(array);
    }
    PriorityStore& priorities = state_.priorities;
    const std::optional<CheckpointRanks> ranks = saved.read_ranks(priorities.known_ranks() != nullptr);
    priorities.restore(saved.live_slots(), {numbers.largest_priority, numbers.tree_scale, numbers.tree_rescales_below});
    if (ranks)
        priorities.restore_ranks(saved.live_slots(), {ranks->n_changes, ranks->tree_scale, ranks->tree_rescales_below},
                                 ranks->weights);
}

}  // namespace per::cpu

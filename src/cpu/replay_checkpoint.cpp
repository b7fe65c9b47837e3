// Saving and restoring the replay buffer in host memory. What lies in slots that no row has used yet is left out.
#include <algorithm>
#include <limits>
#include <vector>

#include "checkpoint.h"
#include "cpu/replay_backend.h"

namespace per::cpu {
namespace {

// Slots of a lane that were ever used: the first ones.
int64_t used_slots(const Lane& lane, const WindowRules& rules) {
    return std::min(used_end(lane, rules), rules.ring.rows);
}

// Calls visit(array, bytes of an element) for each array by slot.
template <class State, class Visit>
void for_each_array(State& state, Visit visit) {
    visit(state.rows.flags(), int64_t{sizeof(uint8_t)});
    visit(state.rows.rewards(), int64_t{sizeof(float)});
    visit(state.priorities.by_slot(), int64_t{sizeof(float)});
    for (int64_t i = 0; i < state.fields.count(); ++i) {
        visit(state.rows.field(i), state.fields[i].bytes);
        if (state.rules.store_next_observation && state.fields[i].is_observation())
            visit(state.rows.next_field(i), state.fields[i].bytes);
    }
}

template <class Counters, class Visit>
void for_each_counter(Counters& counters, Visit visit) {
    visit(counters.added);
    visit(counters.dropped);
    visit(counters.episodes);
    visit(counters.cuts);
    visit(counters.updates);
    visit(counters.stale_updates);
    visit(counters.rejected_updates);
}

void save_figures(CheckpointWriter& writer, const BatchFigures& figures) {
    writer.number(figures.size);
    writer.number(figures.max_age);
    writer.number(figures.mean_age);
    writer.number(figures.effective_size);
    writer.number(figures.duplicates);
}

BatchFigures read_figures(CheckpointReader& reader) {
    constexpr int64_t most = std::numeric_limits<int64_t>::max();
    BatchFigures figures;
    figures.size = reader.number<int64_t>(0, most);
    figures.max_age = reader.number<int64_t>(0, most);
    figures.mean_age = reader.number<double>(0.0, static_cast<double>(figures.max_age));
    figures.effective_size = reader.number<double>(0.0, std::numeric_limits<double>::max());
    figures.duplicates = reader.number<double>(0.0, 1.0);
    return figures;
}

bool can_be(const Lane& lane, const WindowRules& rules) {
    const int64_t most_rows = std::numeric_limits<int64_t>::max() / rules.ring.n_envs - 2;
    if (!(0 <= lane.first && lane.first <= lane.tail && lane.tail <= lane.head && lane.head < most_rows)) return false;
    if (lane.tail < oldest_row(lane, rules)) return false;
    if (lane.in_episode()) return lane.first <= lane.episode && lane.episode < lane.head;
    return lane.state == LaneState::idle || (rules.drops_reset_step && lane.head > 0);
}

Lane read_lane(CheckpointReader& reader, const WindowRules& rules) {
    Lane lane;
    lane.head = reader.number<int64_t>();
    lane.first = reader.number<int64_t>();
    lane.tail = reader.number<int64_t>();
    lane.episode = reader.number<int64_t>();
    lane.state = static_cast<LaneState>(reader.number<uint8_t>(0, static_cast<uint8_t>(LaneState::ended)));
    if (!can_be(lane, rules)) reader.refuse("a lane in it cannot be");
    return lane;
}

std::vector<int64_t> live_slots(const ReplayState& state) {
    std::vector<int64_t> slots;
    for (int64_t env = 0; env < state.ring().n_envs; ++env) {
        const Lane& lane = state.lane(env);
        const auto flags_of = [&](int64_t row) { return state.flags(env, row); };
        for (int64_t row = lane.tail; row < complete_end(lane, state.rules); ++row) {
            if (!(flags_of(row) & row_is_step && starts_sequence(state.rules, flags_of(row)))) continue;
            const int64_t needed = state.rules.sequence.burn_in + 1;
            if (transitions_from(lane, row, needed, flags_of) == needed) slots.push_back(state.ring().slot(env, row));
        }
    }
    return slots;
}

void save_ranks(CheckpointWriter& writer, RankTree* ranks) {
    writer.number(static_cast<uint8_t>(ranks != nullptr));
    if (ranks != nullptr) {
        const RankTree::State state = ranks->state();
        writer.number(state.n_changes);
        writer.number(state.tree_scale);
        writer.number(state.tree_rescales_below);
        writer.bytes(ranks->weights(), n_rank_buckets * sizeof(float));
    }
    writer.seal();
}

void restore_ranks(CheckpointReader& reader, PriorityStore& priorities) {
    if (reader.number<uint8_t>(0, 1) == 1) {
        RankTree& ranks = priorities.ranks();
        RankTree::State state;
        state.n_changes = reader.number<int64_t>(0, std::numeric_limits<int64_t>::max());
        state.tree_scale = reader.number<int32_t>();
        state.tree_rescales_below = reader.number<uint64_t>();
        for (int32_t bucket = 0; bucket < n_rank_buckets; ++bucket)
            ranks.weights()[bucket] = reader.number<float>(0.0f, 1.0f);
        if (!ranks.restore(state)) reader.refuse("its ranks cannot be");
    }
    reader.check_seal();
}

}  // namespace

void CpuReplayBackend::save(CheckpointWriter& writer) {
    writer.number(beta_step());
    writer.number(batches_);
    for_each_counter(state_.counters, [&](int64_t counter) { writer.number(counter); });
    const PriorityScale scale = state_.priorities.scale();
    writer.number(scale.largest_ever);
    writer.number(scale.tree_scale);
    writer.number(scale.tree_rescales_below);
    save_figures(writer, last_batch_.figures(state_.priorities.tree().kernels().power));
    for (const Lane& lane : state_.lanes) {
        writer.number(lane.head);
        writer.number(lane.first);
        writer.number(lane.tail);
        writer.number(lane.episode);
        writer.number(static_cast<uint8_t>(lane.state));
    }
    writer.seal();
    for_each_array(state_, [&](const auto* array, int64_t bytes) {
        const std::byte* const slots = reinterpret_cast<const std::byte*>(array);
        for (int64_t env = 0; env < state_.ring().n_envs; ++env)
            writer.bytes(slots + state_.ring().slot(env, 0) * bytes,
                         static_cast<size_t>(used_slots(state_.lane(env), state_.rules) * bytes));
        writer.seal();
    });
    save_ranks(writer, state_.priorities.known_ranks());
}

void CpuReplayBackend::restore(CheckpointReader& reader) {
    constexpr int64_t most = std::numeric_limits<int64_t>::max();
    beta_.step = reader.number<int64_t>(0, most);
    batches_ = reader.number<int64_t>(0, most);
    for_each_counter(state_.counters, [&](int64_t& counter) { counter = reader.number<int64_t>(0, most); });
    PriorityScale scale;
    scale.largest_ever = reader.number<float>(1.0f, std::numeric_limits<float>::max());
    scale.tree_scale = reader.number<int32_t>();
    scale.tree_rescales_below = reader.number<uint64_t>();
    last_batch_.restore(read_figures(reader));
    for (Lane& lane : state_.lanes) lane = read_lane(reader, state_.rules);
    reader.check_seal();
    for_each_array(state_, [&](auto* array, int64_t bytes) {
        std::byte* const slots = reinterpret_cast<std::byte*>(array);
        for (int64_t env = 0; env < state_.ring().n_envs; ++env)
            reader.bytes(slots + state_.ring().slot(env, 0) * bytes,
                         static_cast<size_t>(used_slots(state_.lane(env), state_.rules) * bytes));
        reader.check_seal();
    });
    if (!state_.priorities.restore(live_slots(state_), scale)) reader.refuse("its priorities cannot be");
    restore_ranks(reader, state_.priorities);
}

}  // namespace per::cpu

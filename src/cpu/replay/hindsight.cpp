#include "cpu/replay/hindsight.h"

#include <algorithm>
#include <cstring>

#include "rules/hindsight.h"
#include "rules/sequence.h"

namespace per::cpu {
namespace {

// Returns one past the last step that the episode of `row` has so far.
int64_t episode_end(const ReplayState& state, int64_t env, int64_t row) {
    const Ring& ring = state.ring();
    const int64_t head = state.lane(env).head;
    while (row < head) {
        const int64_t slot = ring.slot(env, row);
        const int64_t n = std::min(head - row, (env + 1) * ring.rows - slot);
        const int64_t count = front_without(state.rows.flags_side_by_side().at(slot), n, row_ends_episode);
        if (count < n) return row + count + 1;
        row += n;
    }
    return head;
}

// Returns the first step of the episode of `row` that is still stored. It is at or after `oldest`.
int64_t episode_first(const ReplayState& state, int64_t env, int64_t row, int64_t oldest) {
    const Ring& ring = state.ring();
    while (row >= oldest) {
        const int64_t slot = ring.slot(env, row);
        const int64_t n = std::min(row - oldest, slot - env * ring.rows) + 1;
        const int64_t count = back_without(state.rows.flags_side_by_side().at(slot - n + 1), n, row_starts_episode);
        if (count < n) return row - count;
        row -= n;
    }
    return oldest;
}

void write_goal_frames(const Field& field, const std::byte* goal, int64_t n_frames, std::byte* stack_out) {
    std::byte* out = stack_out + (field.stack - n_frames) * field.bytes;
    for (int64_t frame = 0; frame < n_frames; ++frame, out += field.bytes)
        std::memcpy(out, goal, static_cast<size_t>(field.bytes));
}

// For each transition of a span but the last, appends the goal's stack in the observation after it. Frames from before
// the episode are zero.
void append_inner_goals(const Field& field, const std::byte* goal, const SequenceSpan& span, int64_t frames_before,
                        std::vector<std::byte>& stacks) {
    const size_t bytes = static_cast<size_t>(field.stack * field.bytes);
    for (int64_t k = 1; k < span.n_transitions; ++k) {
        stacks.resize(stacks.size() + bytes);
        write_goal_frames(field, goal, goal_frames(field.stack, field.pads_with_zeros(), frames_before, k),
                          stacks.data() + stacks.size() - bytes);
    }
}

// Returns the observation after the step in that slot. A compressed one is unpacked into `unpacked`.
const std::byte* next_frame(const ReplayState& state, int64_t field, int64_t env, int64_t slot,
                            std::vector<std::byte>& unpacked) {
    const bool is_apart = state.rules.store_next_observation;
    const Column<const std::byte> column = is_apart ? state.rows.next_field(field) : state.rows.field(field);
    const int64_t slot_of_frame = is_apart ? slot : state.ring().moved(env, slot, 1);
    const PackedFrames* const packed = is_apart ? state.rows.next_packed(field) : state.rows.packed(field);
    if (packed == nullptr) return column.at(slot_of_frame);
    unpacked.resize(static_cast<size_t>(state.fields[field].bytes));
    packed->read(slot_of_frame, unpacked.data());
    return unpacked.data();
}

// Returns the transitions of the sequence that starts in a row, or of the row's window. For a window, n_steps is 1.
SequenceSpan span_of(const ReplayState& state, int64_t env, int64_t row, int64_t n_step) {
    if (state.has_sequences)
        return sequence_span(
            state.lane(env), state.rules, row, n_step, [&](int64_t k) { return state.flags(env, k); }, 0);
    return span_of_window(window_at(state, env, state.ring().slot(env, row), n_step));
}

// At place i of the batch, writes a goal over the frames of the field and of its next observations, except over
// padding. n_step is that of place i.
void write_goal(const ReplayState& state, int64_t i, int64_t field, const std::byte* goal, const SequenceSpan& span,
                int64_t n_step, int64_t frames_before, const ReplaySample& sample) {
    const Field& written = state.fields[field];
    const GoalEntries entries =
        goal_entries(written.role, span, state.has_sequences, state.rules.sequence.steps, sample.n_step);
    const int64_t stack_bytes = written.stack * written.bytes;
    for (const bool is_next : {false, true}) {
        void* const* const arrays = is_next ? sample.batch.next_fields : sample.batch.fields;
        if ((is_next && !written.is_observation()) || arrays == nullptr || arrays[field] == nullptr) continue;
        std::byte* out = static_cast<std::byte*>(arrays[field]) + i * entries.length * stack_bytes;
        for (int64_t entry = 0; entry < entries.n_goals; ++entry, out += stack_bytes) {
            if (!has_observation(span, entry, n_step)) continue;
            const int64_t distance = is_next ? span.n_transitions : entry;
            write_goal_frames(written, goal,
                              goal_frames(written.stack, written.pads_with_zeros(), frames_before, distance), out);
        }
    }
}

// Puts entry k of relabelling.next_fields at place i of the batch.
void write_inner_observation(const ReplayState& state, int64_t i, int64_t k, const Relabelling& relabelling,
                             const per_batch& batch) {
    for (int64_t j = 0; j < state.fields.count(); ++j) {
        const std::vector<std::byte>& frames = relabelling.next_fields[static_cast<size_t>(j)];
        if (frames.empty()) continue;
        const int64_t bytes = state.fields[j].stack * state.fields[j].bytes;
        std::memcpy(static_cast<std::byte*>(batch.next_fields[j]) + i * bytes, frames.data() + k * bytes,
                    static_cast<size_t>(bytes));
    }
}

}  // namespace

void GoalWriter::choose_goals(const ReplaySample& sample, const ReplayHindsight& hindsight,
                              const std::vector<int64_t>& slots, Relabelling& relabelling) {
    inner_rows_.clear();
    for (int64_t i = 0; i < sample.batch_size; ++i)
        if (slots[static_cast<size_t>(i)] >= 0 &&
            is_relabelled(state_.seed, relabelling.batch_number, i, hindsight.fraction))
            relabel_row(i, slots[static_cast<size_t>(i)], sample, hindsight, relabelling);
    relabelling.rewards.resize(relabelling.terminated.size());
    gather_inner_observations(sample.batch, hindsight.goal_field, relabelling);
}

// Relabels place i of the batch: the transition in `slot`, or the sequence that starts there.
void GoalWriter::relabel_row(int64_t i, int64_t slot, const ReplaySample& sample, const ReplayHindsight& hindsight,
                             Relabelling& relabelling) {
    const Ring& ring = state_.ring();
    const int64_t env = ring.env_of_slot(slot);
    const Lane& lane = state_.lane(env);
    const int64_t row = ring.row_of_slot(env, slot, lane.head);
    const int64_t n_step = sample.n_steps({state_.seed, relabelling.batch_number}).of_place(i);
    const SequenceSpan span = span_of(state_, env, row, n_step);
    if (span.repeats_last) return;  // the goal that its last step achieved is unknown

    const int64_t from = choose_goal_row(
        lane, hindsight.strategy, state_.seed, relabelling.batch_number, i, row,
        [&](int64_t k) { return state_.flags(env, k); },
        [&] { return episode_first(state_, env, row, oldest_row(lane, state_.rules)); },
        [&] { return episode_end(state_, env, row); });

    const Field& goal_field = state_.fields[hindsight.goal_field];
    const size_t bytes = static_cast<size_t>(goal_field.bytes);
    const std::byte* const goal = next_frame(state_, hindsight.achieved_field, env, ring.slot(env, from), goal_);
    const int64_t before = frames_before(row, goal_field.stack, [&](int64_t k) { return state_.flags(env, k); });
    write_goal(state_, i, hindsight.goal_field, goal, span, n_step, before, sample);
    for (int64_t k = 0; k < span.n_transitions; ++k) {
        const std::byte* const achieved =
            next_frame(state_, hindsight.achieved_field, env, ring.moved(env, slot, k), achieved_);
        relabelling.achieved.insert(relabelling.achieved.end(), achieved, achieved + bytes);
        relabelling.goals.insert(relabelling.goals.end(), goal, goal + bytes);
        relabelling.terminated.push_back(0);
    }
    relabelling.terminated.back() = (span.last_flags & row_terminated) != 0;
    relabelling.spans.push_back({i, span.n_steps, span.n_transitions, span.last_flags, n_step});
    void* const* const next_fields = sample.batch.next_fields;
    if (state_.has_sequences || next_fields == nullptr) return;
    for (int32_t k = 1; k < span.n_transitions; ++k)
        inner_rows_.push_back(
            frames_at(state_, env, slot, {0.0f, 0.0f, k, row_is_step, k}, {state_.rules.stack, true}));
    if (next_fields[hindsight.goal_field] != nullptr && goal_field.is_observation() && goal_field.pads_with_zeros())
        append_inner_goals(goal_field, goal, span, before,
                           relabelling.next_fields[static_cast<size_t>(hindsight.goal_field)]);
}

// Gathers the inner observations: those after each transition of a span but the last. inner_rows_ has their rows. The
// goal field is left out: relabel_row() has written it where it is needed.
void GoalWriter::gather_inner_observations(const per_batch& batch, int64_t goal_field, Relabelling& relabelling) {
    if (inner_rows_.empty()) return;
    inner_arrays_.assign(static_cast<size_t>(state_.fields.count()), nullptr);
    for (int64_t i = 0; i < state_.fields.count(); ++i) {
        const Field& field = state_.fields[i];
        if (!field.is_observation() || i == goal_field || batch.next_fields[i] == nullptr) continue;
        std::vector<std::byte>& frames = relabelling.next_fields[static_cast<size_t>(i)];
        frames.resize(inner_rows_.size() * static_cast<size_t>(field.stack * field.bytes));
        inner_arrays_[static_cast<size_t>(i)] = frames.data();
    }
    per_batch inner = {};
    inner.next_fields = inner_arrays_.data();
    plan_.make(inner, false).copy(0, inner_rows_.data(), static_cast<int64_t>(inner_rows_.size()));
}

void write_returns(const ReplayState& state, const Relabelling& relabelling, const per_batch& batch) {
    const int64_t returns_of_place = state.has_sequences ? state.rules.sequence.steps : 1;
    for_each_relabelled_return(relabelling, returns_of_place, [&](int64_t i, const Return& answer, int64_t inner) {
        write_return(i, answer, batch);
        // A transition has one return, so i is also its place in the batch.
        if (!state.has_sequences && inner >= 0) write_inner_observation(state, i, inner, relabelling, batch);
    });
}

}  // namespace per::cpu

#include "cuda/batch/hindsight.h"

#include <algorithm>

#include "cuda/runtime/device.h"
#include "cuda/runtime/dialect.h"
#include "cuda/tree/layout.h"
#include "rules/hindsight.h"
#include "rules/row_frames.h"

namespace per::cuda {
namespace {

// ---- the choice of goals: a warp for each place of the batch

// The parameters of a call.
struct GoalQuestion {
    int64_t batch_size;
    int64_t n_step;
    int64_t n_step_min;  // see ReplaySample
    uint64_t batch_number;
    double fraction;
    int32_t strategy;
};

// One past the last step that the episode of `row` has so far.
template <class FlagsOf>
__device__ __forceinline__ int64_t episode_end(int64_t row, int64_t head, const FlagsOf& flags_of) {
    for (int64_t first = row; first < head; first += warp_size) {
        const int64_t k = first + lane_of_thread();
        const unsigned ends = __ballot_sync(all_lanes, k < head && (flags_of(k) & row_ends_episode) != 0);
        if (ends != 0) return first + __ffs(static_cast<int>(ends));
    }
    return head;
}

// The first existing step of the episode of `row`; rows before `oldest` do not exist.
template <class FlagsOf>
__device__ __forceinline__ int64_t episode_first(int64_t row, int64_t oldest, const FlagsOf& flags_of) {
    for (int64_t last = row; last >= oldest; last -= warp_size) {
        const int64_t k = last - lane_of_thread();
        const unsigned starts = __ballot_sync(all_lanes, k >= oldest && (flags_of(k) & row_starts_episode) != 0);
        if (starts != 0) return last - (__ffs(static_cast<int>(starts)) - 1);
    }
    return oldest;
}

__device__ __forceinline__ SequenceSpan span_of(const DeviceReplay& replay, const WindowRules& rules, const Lane& lane,
                                                int64_t env, int64_t row, int64_t n_step) {
    const auto flags_of = [&](int64_t k) { return replay.flags[rules.ring.slot(env, k)]; };
    if (replay.has_sequences) return sequence_span(lane, rules, row, n_step, flags_of, 0);
    // Only the window of the return is needed, so rewards are taken as 0.
    return span_of_window(n_step_return(
        n_step, replay.state->gamma, [&](int64_t k) { return flags_of(row + k); }, [](int64_t) { return 0.0f; }));
}

__device__ __forceinline__ GoalChoice choose_goal(const DeviceReplay& replay, const GoalQuestion& question,
                                                  const int64_t* slots, int64_t i) {
    const ReplayState& state = *replay.state;
    const GoalChoice none = {0, 0, 0, 0, 0, 0, 0};
    const bool was_drawn = state.batches == question.batch_number + 1;
    if (!was_drawn || !is_relabelled(replay.seed, question.batch_number, i, question.fraction)) return none;
    const WindowRules& rules = state.rules;
    const int64_t slot = slots[i];
    if (slot < 0) return none;
    const int64_t env = rules.ring.env_of_slot(slot);
    const Lane lane = replay.lanes[env];
    const int64_t row = rules.ring.row_of_slot(env, slot, lane.head);
    const int64_t n_step = NSteps{question.n_step, question.n_step_min, replay.seed, question.batch_number}.of_place(i);
    const SequenceSpan span = span_of(replay, rules, lane, env, row, n_step);
    if (span.repeats_last) return none;  // the result of its last step is unknown
    const auto flags_of = [&](int64_t k) { return replay.flags[rules.ring.slot(env, k)]; };
    const int64_t from = choose_goal_row(
        lane, question.strategy, replay.seed, question.batch_number, i, row, flags_of,
        [&] { return episode_first(row, oldest_row(lane, rules), flags_of); },
        [&] { return episode_end(row, lane.head, flags_of); });
    return {env, slot, rules.ring.slot(env, from), span.n_steps, span.n_transitions, span.last_flags, n_step};
}

__global__ void __launch_bounds__(n_threads, 1)
    choose_goals_kernel(DeviceReplay replay, GoalQuestion question, const int64_t* slots, GoalChoice* choices_out) {
    const GridSpan span = warp_span();
    for (int64_t i = span.first; i < question.batch_size; i += span.step) {
        const GoalChoice choice = choose_goal(replay, question, slots, i);
        if (lane_of_thread() == 0) choices_out[i] = choice;
    }
}

// ---- copies of the achieved and the new goals: a warp for each span

struct GoalCopies {
    const GoalSpan* spans;
    int64_t n_spans;
    int64_t achieved_field;
    int64_t goal_field;
    std::byte* achieved;  // [steps, bytes]
    std::byte* goals;     // [steps, bytes]
    void* arrays[2];      // of the batch: goals, and next goals if the goal is an observation; or NULL
};

// A warp copies a frame, or writes zeros if `from` is NULL.
__device__ __forceinline__ void copy_frame(std::byte* to, const std::byte* from, int64_t bytes) {
    for (int64_t i = lane_of_thread(); i < bytes; i += warp_size) to[i] = from != nullptr ? from[i] : std::byte{0};
}

// The frame that was observed after the step in the slot.
__device__ __forceinline__ const std::byte* next_frame(const DeviceField& field, const WindowRules& rules, int64_t env,
                                                       int64_t slot) {
    if (rules.store_next_observation) return field.next_frames + slot * field.bytes;
    return field.frames + rules.ring.moved(env, slot, 1) * field.bytes;
}

__global__ void __launch_bounds__(n_threads, 1)
    copy_goals_kernel(DeviceReplay replay, GoalQuestion question, GoalCopies copies) {
    const WindowRules& rules = replay.state->rules;
    const DeviceField& achieved_field = replay.fields[copies.achieved_field];
    const DeviceField& goal_field = replay.fields[copies.goal_field];
    const int64_t bytes = goal_field.bytes;
    const GridSpan grid = warp_span();
    for (int64_t s = grid.first; s < copies.n_spans; s += grid.step) {
        const GoalSpan& span = copies.spans[s];
        const GoalChoice& choice = span.choice;
        const std::byte* const goal = next_frame(achieved_field, rules, choice.env, choice.goal_slot);
        for (int64_t k = 0; k < choice.n_transitions; ++k) {
            const int64_t slot = rules.ring.moved(choice.env, choice.slot, k);
            const int64_t at = (span.first_step + k) * bytes;
            copy_frame(copies.achieved + at, next_frame(achieved_field, rules, choice.env, slot), bytes);
            copy_frame(copies.goals + at, goal, bytes);
        }
        const SequenceSpan of_entries = {choice.n_steps, choice.n_transitions, 0, false};
        const GoalEntries entries =
            goal_entries(goal_field.role, of_entries, replay.has_sequences, rules.sequence.steps, question.n_step);
        const int64_t before = frames_before(0, goal_field.stack, [&](int64_t distance) {
            return replay.flags[rules.ring.moved(choice.env, choice.slot, distance)];
        });
        for (int which = 0; which < 2; ++which) {
            if (copies.arrays[which] == nullptr) continue;
            const int64_t stack = goal_field.stack;
            std::byte* out =
                static_cast<std::byte*>(copies.arrays[which]) + span.place * entries.length * stack * bytes;
            for (int64_t entry = 0; entry < entries.n_goals; ++entry, out += stack * bytes) {
                if (!has_observation(of_entries, entry, choice.n_step)) continue;
                const int64_t distance = which == 1 ? choice.n_transitions : entry;
                const int64_t n = goal_frames(stack, goal_field.pads_with_zeros, before, distance);
                for (int64_t frame = stack - n; frame < stack; ++frame) copy_frame(out + frame * bytes, goal, bytes);
            }
        }
    }
}

// Copies the next observations of all steps of each span but the last.
__global__ void __launch_bounds__(n_threads, 1)
    copy_inner_kernel(DeviceReplay replay, GoalCopies copies, int64_t of_field, std::byte* out) {
    const WindowRules& rules = replay.state->rules;
    const DeviceField& field = replay.fields[of_field];
    const DeviceField& achieved_field = replay.fields[copies.achieved_field];
    const GridSpan grid = warp_span();
    for (int64_t s = grid.first; s < copies.n_spans; s += grid.step) {
        const GoalSpan& span = copies.spans[s];
        const GoalChoice& choice = span.choice;
        const std::byte* const goal =
            of_field == copies.goal_field ? next_frame(achieved_field, rules, choice.env, choice.goal_slot) : nullptr;
        const auto flags_of = [&](int64_t distance) {
            return replay.flags[rules.ring.moved(choice.env, choice.slot, distance)];
        };
        for (int32_t k = 1; k < choice.n_transitions; ++k) {
            const Return window = {0.0f, 0.0f, k, row_is_step, k};
            const GatherRow row = gather_row(rules, choice.env, choice.slot, window, {field.stack, true}, flags_of);
            for (int64_t age = 0; age < field.stack; ++age) {
                const FramePlace place = frame_place(rules.ring, row, true, age);
                const std::byte* from = place.is_next_array ? field.next_frames : field.frames;
                from = goal != nullptr ? goal : from + place.slot * field.bytes;
                if (field.pads_with_zeros && is_padding(row, true, age)) from = nullptr;
                const int64_t at = (span.first_inner + k - 1) * field.stack + field.stack - 1 - age;
                copy_frame(out + at * field.bytes, from, field.bytes);
            }
        }
    }
}

// ---- after the rewards: returns, and next observations that change with them

__global__ void __launch_bounds__(n_threads, 1)
    write_returns_kernel(const PlacedReturn* returns, int64_t count, per_batch batch) {
    const GridSpan span = grid_span();
    for (int64_t k = span.first; k < count; k += span.step) write_return(returns[k].i, returns[k].answer, batch);
}

// A warp copies a frame to its place in the batch.
__global__ void __launch_bounds__(n_threads, 1)
    place_frames_kernel(const int64_t* places, int64_t count, const std::byte* frames, int64_t bytes, void* array) {
    const GridSpan span = warp_span();
    for (int64_t k = span.first; k < count; k += span.step)
        copy_frame(static_cast<std::byte*>(array) + places[k] * bytes, frames + k * bytes, bytes);
}

// ---- on the host

template <class T>
void copy_in(T* to, const std::vector<T>& from, cudaStream_t stream) {
    if (!from.empty()) copy_to_device(to, from.data(), from.size(), stream);
}

template <class T>
void copy_out(std::vector<T>& to, const T* from, cudaStream_t stream) {
    if (!to.empty()) copy_to_host(to.data(), from, to.size(), stream);
}

template <class T>
int64_t count_of(const std::vector<T>& of) {
    return static_cast<int64_t>(of.size());
}

void* array_of(void* const* arrays, int64_t field) {
    return arrays == nullptr ? nullptr : arrays[field];
}

}  // namespace

HindsightQueue::HindsightQueue(const ReplayMemory& memory, const Fields& fields, const per_replay_options& options)
    : replay_(memory),
      fields_(fields),
      returns_of_place_(memory.device().has_sequences ? options.burn_in + options.sequence_length : 1) {
    load_kernels(choose_goals_kernel, copy_goals_kernel, copy_inner_kernel, write_returns_kernel, place_frames_kernel);
}

// Returns memory whose content is lost with the next call of scratch().
std::byte* HindsightQueue::scratch(std::size_t n_bytes, const StreamOrder::Call& call) {
    if (n_bytes > scratch_bytes_) {
        wait_for(call.stream());
        scratch_.reset();
        scratch_bytes_ = 0;
        scratch_.emplace(n_bytes);
        scratch_bytes_ = n_bytes;
    }
    return scratch_ ? scratch_->data() : nullptr;
}

void HindsightQueue::choose_goals(const ReplaySample& sample, const ReplayHindsight& hindsight, const int64_t* slots,
                                  Relabelling& relabelling, const StreamOrder::Call& call) {
    read_choices(sample, hindsight, slots, relabelling.batch_number, call);
    list_spans(hindsight.goal_field, sample.batch, relabelling);
    copy_spans(sample, hindsight, relabelling, call);
}

namespace {

GoalQuestion question_of(const ReplaySample& sample, const ReplayHindsight& hindsight, uint64_t batch_number) {
    return {sample.batch_size, sample.n_step, sample.n_step_min, batch_number, hindsight.fraction, hindsight.strategy};
}

}  // namespace

void HindsightQueue::read_choices(const ReplaySample& sample, const ReplayHindsight& hindsight, const int64_t* slots,
                                  uint64_t batch_number, const StreamOrder::Call& call) {
    choices_.resize(static_cast<std::size_t>(sample.batch_size));
    Layout layout(scratch(choices_.size() * sizeof(GoalChoice), call));
    GoalChoice* const choices = layout.array<GoalChoice>(sample.batch_size);
    const WaitAtEnd wait_at_end = {call.stream()};
    launch(call.stream(), blocks_for(sample.batch_size, n_warps), n_threads, choose_goals_kernel, replay_.device(),
           question_of(sample, hindsight, batch_number), slots, choices);
    copy_out(choices_, choices, call.stream());
    wait_for(call.stream());
}

// Lists the spans, and sizes the arrays of the relabelling. copy_spans() fills them.
void HindsightQueue::list_spans(int64_t goal_field, const per_batch& batch, Relabelling& relabelling) {
    spans_.clear();
    int64_t n_steps = 0;
    int64_t n_inner = 0;
    for (int64_t i = 0; i < count_of(choices_); ++i) {
        const GoalChoice& choice = choices_[static_cast<std::size_t>(i)];
        if (choice.n_transitions == 0) continue;
        const uint8_t last_flags = static_cast<uint8_t>(choice.last_flags);
        spans_.push_back({choice, i, n_steps, n_inner});
        relabelling.spans.push_back({i, choice.n_steps, choice.n_transitions, last_flags, choice.n_step});
        n_steps += choice.n_transitions;
        n_inner += choice.n_transitions - 1;
        relabelling.terminated.resize(static_cast<std::size_t>(n_steps), 0);
        relabelling.terminated.back() = (last_flags & row_terminated) != 0;
    }
    const std::size_t bytes = static_cast<std::size_t>(n_steps * fields_[goal_field].bytes);
    relabelling.achieved.resize(bytes);
    relabelling.goals.resize(bytes);
    relabelling.rewards.resize(static_cast<std::size_t>(n_steps));
    for (int64_t j = 0; j < fields_.count() && !replay_.device().has_sequences; ++j) {
        const Field& field = fields_[j];
        if (!field.is_observation() || array_of(batch.next_fields, j) == nullptr) continue;
        if (j == goal_field && !field.pads_with_zeros()) continue;
        relabelling.next_fields[static_cast<std::size_t>(j)].resize(
            static_cast<std::size_t>(n_inner * field.stack * field.bytes));
    }
}

void HindsightQueue::copy_spans(const ReplaySample& sample, const ReplayHindsight& hindsight, Relabelling& relabelling,
                                const StreamOrder::Call& call) {
    if (spans_.empty()) return;
    GoalSpan* spans = nullptr;
    GoalCopies copies = {};
    std::vector<std::byte*>& inner = inner_memory_;
    lay_out_twice([&](std::size_t n_bytes) { return scratch(n_bytes, call); },
                  [&](Layout& layout) {
                      spans = layout.array<GoalSpan>(count_of(spans_));
                      copies.achieved = layout.bytes(count_of(relabelling.achieved), 1);
                      copies.goals = layout.bytes(count_of(relabelling.goals), 1);
                      inner.clear();
                      for (const std::vector<std::byte>& frames : relabelling.next_fields)
                          inner.push_back(layout.bytes(count_of(frames), 1));
                  });

    const Field& goal = fields_[hindsight.goal_field];
    copies.spans = spans;
    copies.n_spans = count_of(spans_);
    copies.achieved_field = hindsight.achieved_field;
    copies.goal_field = hindsight.goal_field;
    copies.arrays[0] = array_of(sample.batch.fields, hindsight.goal_field);
    if (goal.is_observation()) copies.arrays[1] = array_of(sample.batch.next_fields, hindsight.goal_field);
    const WaitAtEnd wait_at_end = {call.stream()};
    copy_in(spans, spans_, call.stream());
    launch(call.stream(), blocks_for(copies.n_spans, n_warps), n_threads, copy_goals_kernel, replay_.device(),
           question_of(sample, hindsight, relabelling.batch_number), copies);
    copy_out(relabelling.achieved, copies.achieved, call.stream());
    copy_out(relabelling.goals, copies.goals, call.stream());
    for (std::size_t j = 0; j < inner.size(); ++j) {
        if (relabelling.next_fields[j].empty()) continue;
        launch(call.stream(), blocks_for(copies.n_spans, n_warps), n_threads, copy_inner_kernel, replay_.device(),
               copies, static_cast<int64_t>(j), inner[j]);
        copy_out(relabelling.next_fields[j], inner[j], call.stream());
    }
    wait_for(call.stream());
}

void HindsightQueue::write_returns(const Relabelling& relabelling, const per_batch& batch,
                                   const StreamOrder::Call& call) {
    returns_.clear();
    inner_places_.clear();
    inner_.clear();
    for_each_relabelled_return(relabelling, returns_of_place_, [&](int64_t i, const Return& answer, int64_t inner) {
        returns_.push_back({i, answer});
        if (replay_.device().has_sequences || inner < 0) return;
        inner_places_.push_back(i);
        inner_.push_back(inner);
    });
    if (returns_.empty()) return;
    Layout layout(scratch(returns_.size() * sizeof(PlacedReturn), call));
    PlacedReturn* const returns = layout.array<PlacedReturn>(count_of(returns_));
    const WaitAtEnd wait_at_end = {call.stream()};
    copy_in(returns, returns_, call.stream());
    launch(call.stream(), blocks_for(count_of(returns_)), n_threads, write_returns_kernel, returns, count_of(returns_),
           batch);
    wait_for(call.stream());
    if (!inner_.empty()) write_inner_observations(relabelling, batch, call);
}

// Writes the next observations of windows that end earlier than before the relabelling.
void HindsightQueue::write_inner_observations(const Relabelling& relabelling, const per_batch& batch,
                                              const StreamOrder::Call& call) {
    for (int64_t j = 0; j < fields_.count(); ++j) {
        const std::vector<std::byte>& frames = relabelling.next_fields[static_cast<std::size_t>(j)];
        if (frames.empty()) continue;
        const std::size_t bytes = static_cast<std::size_t>(fields_[j].stack * fields_[j].bytes);
        inner_frames_.resize(inner_.size() * bytes);
        for (std::size_t k = 0; k < inner_.size(); ++k)
            std::copy_n(frames.data() + static_cast<std::size_t>(inner_[k]) * bytes, bytes,
                        inner_frames_.data() + k * bytes);
        int64_t* places = nullptr;
        std::byte* placed = nullptr;
        lay_out_twice([&](std::size_t n_bytes) { return scratch(n_bytes, call); },
                      [&](Layout& layout) {
                          places = layout.array<int64_t>(count_of(inner_places_));
                          placed = layout.bytes(count_of(inner_frames_), 1);
                      });
        const WaitAtEnd wait_at_end = {call.stream()};
        copy_in(places, inner_places_, call.stream());
        copy_in(placed, inner_frames_, call.stream());
        launch(call.stream(), blocks_for(count_of(inner_), n_warps), n_threads, place_frames_kernel, places,
               count_of(inner_), placed, static_cast<int64_t>(bytes), array_of(batch.next_fields, j));
        wait_for(call.stream());
    }
}

}  // namespace per::cuda

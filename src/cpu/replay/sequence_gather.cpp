#include "cpu/replay/sequence_gather.h"

#include <algorithm>
#include <cstring>

#include "cpu/memory/moves.h"
#include "cpu/memory/prefetch.h"

namespace per::cpu {
namespace {

// The first flags of a sequence are prefetched this many sequences ahead.
constexpr size_t numbers_distance = 8;
// Bytes of each array that are prefetched one sequence ahead; the hardware continues from there.
constexpr int64_t prefetched_bytes = 8192;

}  // namespace

// Prefetches the rows of a sequence before it forms the sequence's numbers and copies the frames of the one before, so
// that the memory works meanwhile.
void SequenceGather::run(const std::vector<int64_t>& slots) {
    const size_t n = slots.size();
    const int64_t n_before = longest_stack_ - 1;
    state_.will_need(slots, n_before, n_before + state_.rules.sequence.steps + n_steps_.longest);
    Sequence sequences[2] = {};
    for (size_t i = 0; i < std::min(numbers_distance, n); ++i) prefetch_numbers(slots[i]);
    for (size_t i = 0; i <= n; ++i) {
        if (i < n) {
            if (i + numbers_distance < n) prefetch_numbers(slots[i + numbers_distance]);
            Sequence& sequence = sequences[i % 2];
            sequence = find(static_cast<int64_t>(i), slots[i]);
            prefetch(sequence);
            write_numbers(static_cast<int64_t>(i), sequence);
        }
        if (i == 0) continue;
        for (const Copy& copy : copies_) copy_field(static_cast<int64_t>(i - 1), sequences[(i - 1) % 2], copy);
    }
}

void SequenceGather::prefetch_numbers(int64_t slot) const {
    prefetch_to_read(state_.rows.flags_side_by_side().at(slot));
    prefetch_to_read(state_.rows.flags_side_by_side().at(slot + 64));
}

void SequenceGather::prepare(const NSteps& n_steps, const per_batch& batch, const FramePlaces* gather) {
    const int64_t steps = state_.rules.sequence.steps;
    const int64_t n_step = n_steps.longest;
    batch_ = batch;
    n_steps_ = n_steps;
    gammas_.resize(static_cast<size_t>(n_step + 1));
    double gamma_m = 1.0;
    for (float& rounded : gammas_) {
        rounded = static_cast<float>(gamma_m);
        gamma_m *= state_.gamma;
    }
    flags_.resize(static_cast<size_t>(steps + n_step));
    rewards_.resize(flags_.size());
    sums_.resize(static_cast<size_t>(steps));
    copies_.clear();
    longest_stack_ = 1;
    for (int64_t i = 0; i < state_.fields.count() && batch.fields != nullptr; ++i) {
        if (batch.fields[i] == nullptr) continue;
        const Field& field = state_.fields[i];
        if (field.is_ragged() && !has_places(gather, i, false)) continue;
        const bool is_state = field.role == PER_ROLE_RECURRENT_STATE;
        const int64_t length = is_state ? 1 : field.is_observation() ? steps + n_step : steps;
        const std::byte** const places = gather != nullptr ? gather->places(i, false) : nullptr;
        const Frames frames = {static_cast<std::byte*>(batch.fields[i]), places, field.bytes};
        const Source source = {state_.rows.field(i), state_.rows.packed(i)};
        const Source next_source = {state_.rows.next_field(i), state_.rows.next_packed(i)};
        copies_.push_back(
            {source, next_source, frames, field.stack, length, field.is_observation(), field.pads_with_zeros()});
        longest_stack_ = std::max<int64_t>(longest_stack_, field.stack);
    }
}

// The flags and rewards of a sequence's rows as contiguous arrays, up to the observation after the last return.
const uint8_t* SequenceGather::flags_of(const Sequence& sequence) {
    const int64_t n = static_cast<int64_t>(flags_.size());
    const uint8_t* const flags = state_.rows.flags_side_by_side().at(0);
    const int64_t before_end = (sequence.env + 1) * state_.ring().rows - sequence.slot;
    if (n <= before_end) return flags + sequence.slot;
    std::copy_n(flags + sequence.slot, before_end, flags_.begin());
    std::copy_n(flags + sequence.env * state_.ring().rows, n - before_end, flags_.begin() + before_end);
    return flags_.data();
}

const float* SequenceGather::rewards_of(const Sequence& sequence) {
    const Frames out = {reinterpret_cast<std::byte*>(rewards_.data()), nullptr, sizeof(float)};
    copy_run(sequence, {state_.rows.rewards().as_bytes(), nullptr}, 0, sequence.span.n_transitions, out);
    return rewards_.data();
}

// The sequence for place i of the batch, which starts in that slot.
SequenceGather::Sequence SequenceGather::find(int64_t i, int64_t slot) {
    const Ring& ring = state_.ring();
    Sequence sequence = {ring.env_of_slot(slot), slot, 0, n_steps_.of_place(i), {}};
    const Lane& lane = state_.lane(sequence.env);
    const int64_t start = ring.row_of_slot(sequence.env, slot, lane.head);
    const uint8_t* const flags = flags_of(sequence);
    const int64_t most = std::min(state_.rules.sequence.steps + sequence.n_step - 1, lane.head - start);
    sequence.span = sequence_span(
        lane, state_.rules, start, sequence.n_step, [&](int64_t row) { return flags[row - start]; },
        front_without(flags, most, row_ends_episode));
    sequence.frames_before =
        frames_before(start, longest_stack_, [&](int64_t row) { return state_.flags(sequence.env, row); });
    return sequence;
}

void SequenceGather::write_numbers(int64_t i, const Sequence& sequence) {
    const SequenceSpan& span = sequence.span;
    const int64_t n_step = sequence.n_step;
    const int64_t steps = state_.rules.sequence.steps;
    const int64_t first = i * steps;
    if (batch_.reward != nullptr) {
        const float* const rewards = rewards_of(sequence);
        sequence_returns(span, n_step, state_.gamma, rewards, sums_.data());
        float* const out = batch_.reward + first;
        for (int64_t t = 0; t < span.n_steps; ++t) out[t] = static_cast<float>(sums_[static_cast<size_t>(t)]);
        std::fill(out + span.n_steps, out + steps, 0.0f);
    }
    // Writes one value for each step: `whole` where the window has all n_step steps and does not reach the last
    // transition, of_step(t) for the later steps, and 0 in the padding.
    const int64_t n_whole = whole_windows(span, n_step);
    const auto write = [&](auto* array, auto whole, const auto& of_step) {
        if (array == nullptr) return;
        auto* const out = array + first;
        std::fill(out, out + n_whole, whole);
        for (int64_t t = n_whole; t < span.n_steps; ++t) out[t] = of_step(t);
        std::fill(out + span.n_steps, out + steps, decltype(whole)(0));
    };
    const auto window = [&](int64_t t) { return window_of_step(span, t, n_step); };
    const auto end_flags = [&](int64_t t) { return window_end_flags(span, t, window(t)); };
    const auto gamma_m = [&](int64_t t) { return gammas_[static_cast<size_t>(window(t))]; };
    write(batch_.discount, gammas_[static_cast<size_t>(n_step)],
          [&](int64_t t) { return end_flags(t) & row_terminated ? 0.0f : gamma_m(t); });
    write(batch_.gamma_m, gammas_[static_cast<size_t>(n_step)], gamma_m);
    write(batch_.n_steps, static_cast<int32_t>(n_step), [&](int64_t t) { return static_cast<int32_t>(window(t)); });
    write(batch_.terminated, uint8_t{0}, [&](int64_t t) { return uint8_t{(end_flags(t) & row_terminated) != 0}; });
    write(batch_.truncated, uint8_t{0}, [&](int64_t t) { return uint8_t{(end_flags(t) & row_truncated) != 0}; });
    write(batch_.mask, uint8_t{1}, [](int64_t) { return uint8_t{1}; });
}

// ------------------------------------------------------------------------------------------------------------ frames

void SequenceGather::Frames::clear(int64_t n) const {
    if (places != nullptr)
        std::fill_n(places, n, nullptr);
    else
        std::memset(out, 0, static_cast<size_t>(n * bytes));
}

void SequenceGather::Frames::repeat(int64_t n) const {
    if (places != nullptr)
        std::copy_n(places - n, n, places);
    else
        std::memcpy(out, out - n * bytes, static_cast<size_t>(n * bytes));
}

void SequenceGather::prefetch(const Sequence& sequence) const {
    for (const Copy& copy : copies_) {
        if (copy.frames.places != nullptr) continue;
        const std::byte* const first = copy.source.column.at(sequence.slot);
        const int64_t bytes = std::min(copy.length * copy.source.column.stride, prefetched_bytes);
        for (int64_t i = 0; i < bytes; i += 64) prefetch_to_read(first + i);
    }
}

void SequenceGather::copy_side_by_side(const Source& source, int64_t slot, int64_t n, const Frames& out) const {
    const Column<const std::byte>& column = source.column;
    if (source.packed != nullptr && out.places == nullptr) {
        for (int64_t i = 0; i < n; ++i) source.packed->prefetch(slot + i);
        for (int64_t i = 0; i < n; ++i) source.packed->read(slot + i, out.after(i).out);
        return;
    }
    if (out.places == nullptr) return copy_frames(out.out, out.bytes, column.at(slot), column.stride, n, out.bytes);
    for (int64_t i = 0; i < n; ++i) {
        out.places[i] = column.at(slot + i);
        state_.reads.note(slot + i);
    }
}

// Copies n rows of the sequence, from row `first` on, counted from the sequence's start.
void SequenceGather::copy_run(const Sequence& sequence, const Source& source, int64_t first, int64_t n,
                              const Frames& out) const {
    const Ring& ring = state_.ring();
    const int64_t slot = ring.moved(sequence.env, sequence.slot, first);
    const int64_t before_end = std::min(n, (sequence.env + 1) * ring.rows - slot);
    copy_side_by_side(source, slot, before_end, out);
    if (before_end < n) copy_side_by_side(source, sequence.env * ring.rows, n - before_end, out.after(before_end));
}

void SequenceGather::copy_field(int64_t i, const Sequence& sequence, const Copy& copy) const {
    const SequenceSpan& span = sequence.span;
    const Frames out = copy.frames.after(i * copy.length * copy.stack);
    int64_t n = std::min(copy.length, copy.is_observation ? span.n_transitions + 1 : span.n_steps);
    if (copy.is_observation && (span.repeats_last || state_.rules.store_next_observation)) {
        copy_rows(sequence, copy, n - 1, out);
        copy_observation_after(sequence, copy, out.after((n - 1) * copy.stack));
    } else {
        copy_rows(sequence, copy, n, out);
    }
    out.after(n * copy.stack).clear((copy.length - n) * copy.stack);
    if (!copy.is_observation) return;
    for (int64_t entry = span.n_steps; entry < n && !has_observation(span, entry, sequence.n_step); ++entry)
        out.after(entry * copy.stack).clear(copy.stack);
}

void SequenceGather::copy_rows(const Sequence& sequence, const Copy& copy, int64_t n_rows, const Frames& out) const {
    if (copy.stack == 1) return copy_run(sequence, copy.source, 0, n_rows, out);
    for (int64_t t = 0; t < n_rows; ++t)
        copy_stack(sequence, copy, copy.stack, t, sequence.frames_before + t, out.after(t * copy.stack));
}

// Copies n_frames frames, up to that of row `newest`, counted from the sequence's start. Frames up to `reach` rows
// before it are copied; older ones are padding.
void SequenceGather::copy_stack(const Sequence& sequence, const Copy& copy, int64_t n_frames, int64_t newest,
                                int64_t reach, Frames out) const {
    reach = std::min(reach, n_frames - 1);
    for (int64_t frame = reach + 1; frame < n_frames; ++frame, out = out.after(1)) {
        if (copy.pads_with_zeros)
            out.clear(1);
        else
            copy_run(sequence, copy.source, newest - reach, 1, out);
    }
    copy_run(sequence, copy.source, newest - reach, reach + 1, out);
}

// Copies the observation after the last transition. Call it only if the following row does not have that observation.
void SequenceGather::copy_observation_after(const Sequence& sequence, const Copy& copy, const Frames& out) const {
    if (sequence.span.repeats_last) return out.repeat(copy.stack);
    // The newest of the older frames is the last transition's observation.
    const int64_t last = sequence.span.n_transitions - 1;
    if (copy.stack > 1) copy_stack(sequence, copy, copy.stack - 1, last, sequence.frames_before + last, out);
    copy_run(sequence, copy.next_source, last, 1, out.after(copy.stack - 1));
}

}  // namespace per::cpu

#include "cpu/replay/ragged_gather.h"

#include <algorithm>
#include <cstring>

#include "backend/replay_options.h"
#include "base/error.h"
#include "cpu/memory/prefetch.h"

namespace per::cpu {
namespace {

constexpr std::size_t pointers_ahead = 16;  // the distance at which pointers are prefetched
constexpr std::size_t rows_ahead = 2;       // the distance at which rows are prefetched
constexpr int64_t max_lines = 8;            // of a row are prefetched; the hardware continues from there

void prefetch_row(const FrameHeap::Block* block) {
    const std::span<const std::byte> bytes = RaggedRows::bytes_of(block);
    const int64_t n = std::min(std::ssize(bytes), max_lines * line_bytes);
    for (int64_t at = 0; at < n; at += line_bytes) prefetch_to_read(bytes.data() + at);
}

}  // namespace

RaggedGather::RaggedGather(const ReplayState& state)
    : state_(state),
      plan_(state),
      sequences_(state),
      fields_(static_cast<std::size_t>(state.fields.count())),
      next_fields_(fields_.size()) {}

const std::byte** RaggedGather::places(int64_t field, bool is_next) const {
    for (std::size_t k = 0; k < n_arrays_; ++k)
        if (arrays_[k].field == field && arrays_[k].is_next == is_next) return arrays_[k].places.data();
    return nullptr;
}

// Returns `out`, or NULL for an array that is not wanted.
void* RaggedGather::begin_array(int64_t field, bool is_next, void* out, int64_t n_rows) {
    if (out == nullptr) return nullptr;
    if (n_arrays_ == arrays_.size()) arrays_.emplace_back();
    Array& array = arrays_[n_arrays_++];
    array.field = field;
    array.is_next = is_next;
    array.out = static_cast<per_ragged*>(out);
    array.given = *array.out;
    array.value_bytes = state_.fields[field].bytes;
    array.places.resize(static_cast<std::size_t>(n_rows));
    array.blocks.resize(array.places.size());
    array.ends.resize(array.places.size() + 1);
    return out;
}

// Returns true if the batch has such arrays.
bool RaggedGather::begin(const per_batch& batch, const BatchShape& shape) {
    n_arrays_ = 0;
    if (!state_.fields.has_ragged()) return false;
    for (int64_t i = 0; i < state_.fields.count(); ++i) {
        const Field& field = state_.fields[i];
        const int64_t n_rows = rows_of(field, shape);
        const auto begin = [&](void* const* arrays, bool is_next) {
            return field.is_ragged() && arrays != nullptr ? begin_array(i, is_next, arrays[i], n_rows) : nullptr;
        };
        fields_[static_cast<std::size_t>(i)] = begin(batch.fields, false);
        next_fields_[static_cast<std::size_t>(i)] = field.is_observation() ? begin(batch.next_fields, true) : nullptr;
    }
    batch_ = default_batch;
    batch_.fields = fields_.data();
    batch_.next_fields = next_fields_.data();
    return n_arrays_ > 0;
}

void RaggedGather::find(const per_batch& batch, const NSteps& n_steps, const std::vector<int64_t>& slots,
                        const std::vector<int64_t>& live_slots, WorkerThreads& threads) {
    const int64_t steps = state_.has_sequences ? state_.rules.sequence.steps : 0;
    if (!begin(batch, {std::ssize(slots), steps, n_steps.longest})) return;
    if (state_.has_sequences) {
        sequences_.prepare(n_steps, batch_, this);
        sequences_.run(live_slots);
    } else {
        write_transitions(state_, plan_.make(batch_, false, this), n_steps, live_slots, batch_, threads, nullptr);
    }
    for (std::size_t k = 0; k < n_arrays_; ++k) {
        const std::size_t n_rows = arrays_[k].places.size() / slots.size();
        for (std::size_t i = 0; i < slots.size(); ++i)
            if (slots[i] < 0) std::fill_n(arrays_[k].places.data() + i * n_rows, n_rows, nullptr);
    }
    look_up();
}

void RaggedGather::find_transitions(const per_batch& batch, const NSteps& n_steps, const std::vector<int64_t>& slots,
                                    WorkerThreads& threads) {
    if (!begin(batch, {std::ssize(slots), 0, n_steps.longest})) return;
    write_transitions(state_, plan_.make(batch_, false, this), n_steps, slots, batch_, threads, nullptr);
    look_up();
}

void RaggedGather::find_steps(const per_batch& batch, const std::vector<int64_t>& slots) {
    if (!begin(batch, {std::ssize(slots), 0, 1})) return;
    plan_.make(batch_, true, this);
    for (std::size_t i = 0; i < slots.size(); ++i) {
        const int64_t env = state_.ring().env_of_slot(slots[i]);
        const Return step = own_step(0.0f, state_.gamma, state_.rows.flags(slots[i]));
        const GatherRow row = frames_at(state_, env, slots[i], step, plan_.wishes());
        plan_.copy(static_cast<int64_t>(i), &row, 1);
    }
    look_up();
}

void RaggedGather::look_up() {
    const Array* full = nullptr;
    for (std::size_t k = 0; k < n_arrays_; ++k) {
        arrays_[k].look_up();
        if (full == nullptr && !has_room(arrays_[k].given)) full = &arrays_[k];
    }
    if (full == nullptr) return;
    const Field& field = state_.fields[full->field];
    throw_no_room(full->is_next ? field.next_name : field.name, full->given);
}

// Replaces places by rows, sums up their lengths, and tells the total.
void RaggedGather::Array::look_up() {
    const std::size_t n = places.size();
    const auto place_ahead = [&](std::size_t i) {
        if (i < n && places[i] != nullptr) prefetch_to_read(places[i]);
    };
    for (std::size_t i = 0; i < pointers_ahead; ++i) place_ahead(i);
    for (std::size_t i = 0; i < n; ++i) {
        place_ahead(i + pointers_ahead);
        blocks[i] = nullptr;
        if (places[i] != nullptr) std::memcpy(&blocks[i], places[i], sizeof blocks[i]);
        if (blocks[i] != nullptr) prefetch_to_read(blocks[i]);
    }
    ends[0] = longest = 0;
    for (std::size_t i = 0; i < n; ++i) {
        const int64_t length = std::ssize(RaggedRows::bytes_of(blocks[i])) / value_bytes;
        longest = std::max(longest, length);
        ends[i + 1] = ends[i] + length;
    }
    out->total = given.total = given.padded_length > 0 ? longest : ends[n];
}

void RaggedGather::Array::write(std::size_t first, std::size_t end) const {
    std::byte* const values = static_cast<std::byte*>(given.values);
    const int64_t padded_bytes = given.padded_length * value_bytes;
    for (std::size_t i = first; i < std::min(first + rows_ahead, end); ++i) prefetch_row(blocks[i]);
    for (std::size_t i = first; i < end; ++i) {
        if (i + rows_ahead < end) prefetch_row(blocks[i + rows_ahead]);
        const std::span<const std::byte> bytes = RaggedRows::bytes_of(blocks[i]);
        std::byte* const row =
            values + (padded_bytes > 0 ? static_cast<int64_t>(i) * padded_bytes : ends[i] * value_bytes);
        if (!bytes.empty()) std::memcpy(row, bytes.data(), bytes.size());
        if (padded_bytes > 0) std::memset(row + bytes.size(), 0, static_cast<std::size_t>(padded_bytes) - bytes.size());
    }
}

void RaggedGather::take_room() {
    for (std::size_t k = 0; k < n_arrays_; ++k) {
        arrays_[k].given.values = arrays_[k].out->values;
        arrays_[k].given.offsets = arrays_[k].out->offsets;
    }
}

void RaggedGather::write(WorkerThreads& threads) const {
    constexpr int64_t least_bytes_of_part = int64_t{1} << 21;
    for (std::size_t k = 0; k < n_arrays_; ++k) {
        const Array& array = arrays_[k];
        if (array.given.offsets != nullptr) std::ranges::copy(array.ends, array.given.offsets);
        if (array.given.values == nullptr) continue;
        const int64_t n = std::ssize(array.blocks);
        const int64_t n_values = array.given.padded_length > 0 ? n * array.given.padded_length : array.ends.back();
        const int64_t max_parts = std::max<int64_t>(1, std::min(threads.count(), n));
        const int64_t n_parts = std::clamp<int64_t>(n_values * array.value_bytes / least_bytes_of_part, 1, max_parts);
        const auto write_part = [&](int64_t part) {
            array.write(static_cast<std::size_t>(n * part / n_parts),
                        static_cast<std::size_t>(n * (part + 1) / n_parts));
        };
        threads.run(n_parts, write_part);
    }
}

}  // namespace per::cpu

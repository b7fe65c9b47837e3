#include "process/step_ring.h"

#include <algorithm>

#include "base/error.h"
#include "base/overflow.h"
#include "rules/limits.h"

namespace per {
namespace {

constexpr MemoryKind ring_kind = {"PER RING", 1, "channel", sizeof(RingHeader), channel_lock};
constexpr int64_t default_bytes = int64_t{4} << 20;
constexpr int64_t min_default_slots = 16;

int64_t resolve_slots(int64_t slots, const Fields& fields, int64_t n_envs) {
    if (slots != 0) return slots;
    const RingArrays one(fields, 1, n_envs, 0);
    return std::max(default_bytes / static_cast<int64_t>(one.n_bytes()), min_default_slots);
}

}  // namespace

// ------------------------------------------------------------------------------------------------------------ arrays

RingArrays::RingArrays(const Fields& declared, int64_t n_slots, int64_t n_envs, std::size_t first_byte)
    : n_bytes_(first_byte) {
    int64_t n = 0;
    if (__builtin_mul_overflow(n_slots, n_envs, &n)) throw_out_of_memory(SIZE_MAX);
    kinds = place(n_slots, sizeof(uint32_t));
    mask = place(n, 1);
    next_mask = place(n, 1);
    terminated = place(n, 1);
    truncated = place(n, 1);
    reward = place(n, sizeof(float));
    priorities = place(n, sizeof(float));
    for (const Field& field : declared) {
        const auto place_fixed = [&](int64_t bytes) { return field.is_ragged() ? 0 : place(n, bytes); };
        const auto place_offsets = [&] {
            return field.is_ragged() ? place(saturated_sum(n, n_slots), sizeof(int64_t)) : 0;
        };
        fields.push_back(place_fixed(field.bytes));
        offsets.push_back(place_offsets());
        next_fields.push_back(field.is_observation() ? place_fixed(field.bytes) : 0);
        next_offsets.push_back(field.is_observation() ? place_offsets() : 0);
    }
    n_allocated_ = n_bytes_;
    for (int64_t i = 0; i < declared.count(); ++i) {
        const Field& field = declared[i];
        const auto at = static_cast<std::size_t>(i);
        if (!field.is_ragged()) continue;
        fields[at] = place(n, field.max_length * field.bytes);
        if (field.is_observation()) next_fields[at] = place(n, field.max_length * field.bytes);
    }
}

std::size_t RingArrays::place(int64_t count, int64_t bytes) {
    const std::size_t first = n_bytes_;
    n_bytes_ = line_after(first, static_cast<std::size_t>(count), static_cast<std::size_t>(bytes));
    return first;
}

// -------------------------------------------------------------------------------------------------------------- ends

StepRing::StepRing(const per_replay_options& options, const Fields& fields, int64_t slots, int32_t when_full,
                   int32_t moved_by)
    : n_slots_(resolve_slots(slots, fields, options.n_envs)),
      memory_(ring_kind, options, fields, [&](std::size_t first_byte) {
          arrays_ = std::make_unique<RingArrays>(fields, n_slots_, options.n_envs, first_byte);
          return MemorySize{arrays_->n_bytes(), arrays_->n_allocated()};
      }) {
    RingHeader& made = header();
    made.when_full = when_full;
    made.moved_by = moved_by;
    made.n_slots = static_cast<uint64_t>(n_slots_);
    made.room_at = never;
    made.wake_at = never;
}

StepRing::StepRing(const char* path, int descriptor) : n_slots_(0), memory_(ring_kind, path, descriptor) {
    n_slots_ = static_cast<int64_t>(memory_.read(header().n_slots, "n_slots", min_ring_slots, max_ring_slots));
    arrays_ = std::make_unique<RingArrays>(fields(), n_slots_, n_envs(), memory_.first_byte());
    if (arrays_->n_bytes() != memory_.n_bytes()) memory_.refuse("it has another size");
}

}  // namespace per

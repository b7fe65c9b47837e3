#include "cpu/replay/given_steps.h"

#include <cstring>

#include "base/error.h"
#include "cpu/memory/memory.h"
#include "rows/cast.h"
#include "rows/dtype.h"
#include "rules/td_error.h"

namespace per::cpu {
namespace {

// Counts flags from `entry` on, `stride` apart, up to the first that is not `flag` (0 or 1). Returns at most `most`.
int64_t steps_with(const std::vector<uint8_t>& flags, uint8_t flag, int64_t entry, int64_t stride, int64_t most) {
    const uint8_t* const first = flags.data() + entry;
    if (stride == 1) {
        const void* const other = std::memchr(first, 1 - flag, static_cast<size_t>(most));
        return other != nullptr ? static_cast<const uint8_t*>(other) - first : most;
    }
    int64_t n = 0;
    while (n < most && first[n * stride] == flag) ++n;
    return n;
}

}  // namespace

void read_values(std::string_view argument, const GivenArray& given, int32_t dtype, int64_t elements, int64_t n_entries,
                 const uint8_t* mask, GivenValues& values_out) {
    const int64_t bytes = elements * dtype_size(dtype);
    if (given.array.dtype == dtype) {
        values_out.data = static_cast<const std::byte*>(given.array.data) + (given.frames - 1) * bytes;
        values_out.stride = given.frames * bytes;
        return;
    }
    const size_t size = array_bytes(n_entries, bytes);
    if (values_out.casts.size() < size) values_out.casts.resize(size);
    cast(argument, given.array, dtype, values_out.casts.data(), {n_entries, elements, given.frames, mask});
    values_out.data = values_out.casts.data();
    values_out.stride = bytes;
}

// Copies the offsets, since another thread may write to the caller's, and checks them.
void read_rows(std::string_view argument, const per_array& given, const Field& field, int64_t n_entries,
               const uint8_t* mask, GivenValues& values_out) {
    std::vector<int64_t>& offsets = values_out.offsets;
    copy_offsets(argument, given, field, n_entries, mask, offsets);
    values_out.n_before = offsets.front();
    for (int64_t& offset : offsets) offset -= values_out.n_before;
    values_out.stride = field.bytes;
    if (given.dtype == field.dtype) {
        values_out.data = static_cast<const std::byte*>(given.data) + values_out.n_before * field.bytes;
        return;
    }
    const size_t size = array_bytes(offsets.back(), field.bytes);
    if (values_out.casts.size() < size) values_out.casts.resize(size);
    for (int64_t i = 0; i < n_entries; ++i) {
        if (mask != nullptr && mask[i] == 0) continue;
        const int64_t first = offsets[static_cast<size_t>(i)];
        cast(argument, given, field.dtype, values_out.casts.data() + first * field.bytes,
             {offsets[static_cast<size_t>(i + 1)] - first, field.elements, 1, nullptr, values_out.n_before + first});
    }
    values_out.data = values_out.casts.data();
}

void write_to_slots(const GivenValues& values, const std::vector<int64_t>& slots, int64_t bytes,
                    const RowColumn<std::byte>& column) {
    const int64_t n_entries = static_cast<int64_t>(slots.size());
    for (int64_t i = 0; i < n_entries;) {
        const int64_t slot = slots[static_cast<size_t>(i)];
        int64_t n = 1;
        if (slot >= 0) {
            while (i + n < n_entries && slots[static_cast<size_t>(i + n)] == slot + n) ++n;
            values.copy(i, 1, n, bytes, column.to_write(slot, n));
        }
        i += n;
    }
}

GivenSteps::GivenSteps(const Fields& fields, bool refuses_nan)
    : fields_(fields),
      refuses_nan_(refuses_nan),
      fields_values_(static_cast<size_t>(fields.count())),
      next_values_(static_cast<size_t>(fields.count())) {}

void GivenSteps::read_masks(const ReplaySteps& steps) {
    const size_t n = static_cast<size_t>(n_entries_);
    has_mask_ = steps.mask.data != nullptr;
    has_next_mask_ = steps.next_mask.data != nullptr;
    mask_.assign(n, 1);
    if (has_mask_) cast_flags("mask", steps.mask, mask_.data(), {n_entries_, 1});
    const CastSize given = {n_entries_, 1, 1, has_mask_ ? mask_.data() : nullptr};
    terminated_.resize(n);
    truncated_.resize(n);
    cast_flags("terminated", steps.terminated, terminated_.data(), given);
    cast_flags("truncated", steps.truncated, truncated_.data(), given);
    if (has_next_mask_) {
        next_mask_.resize(n);
        cast_flags("next_mask", steps.next_mask, next_mask_.data(), given);
    }
    if (steps.next_fields == nullptr) {
        next_known_.assign(n, 0);
    } else {
        next_known_ = has_next_mask_ ? next_mask_ : mask_;
    }
}

void GivenSteps::read_priorities(const ReplaySteps& steps, double epsilon) {
    const bool from_errors = steps.td_errors.data != nullptr;
    has_priorities_ = from_errors || steps.priorities.data != nullptr;
    if (!has_priorities_) return;
    read_values(from_errors ? "td_errors" : "priorities", {from_errors ? steps.td_errors : steps.priorities, 1},
                PER_FLOAT32, 1, n_entries_, has_mask_ ? mask_.data() : nullptr, given_priorities_);
    priorities_.resize(static_cast<size_t>(n_entries_));
    for (int64_t i = 0; i < n_entries_; ++i) {
        if (!is_given(i)) continue;
        float value;
        std::memcpy(&value, given_priorities_.at(i), sizeof value);
        priorities_[static_cast<size_t>(i)] =
            from_errors ? td_error_priority(&value, 1, 1, PER_CRITICS_MEAN, epsilon) : value;
    }
}

// Reads the values of a field, and refuses NaN among those of an observation.
void GivenSteps::read_array(std::string_view argument, const GivenArray& given, const Field& field, const uint8_t* mask,
                            GivenValues& values_out) const {
    if (!field.is_ragged()) {
        read_values(argument, given, field.dtype, field.elements, n_entries_, mask, values_out);
        if (field.is_observation()) check_nan(argument, given, field.elements, mask);
        return;
    }
    read_rows(argument, given.array, field, n_entries_, mask, values_out);
    if (!field.is_observation() || !refuses_nan_) return;
    for (int64_t i = 0; i < n_entries_; ++i) {
        const int64_t* const ends = values_out.offsets.data() + i;
        if (mask == nullptr || mask[i] != 0)
            refuse_nan(argument, given.array,
                       {ends[1] - ends[0], field.elements, 1, nullptr, values_out.n_before + ends[0]});
    }
}

void GivenSteps::check_nan(std::string_view argument, const GivenArray& given, int64_t elements,
                           const uint8_t* mask) const {
    if (refuses_nan_) refuse_nan(argument, given.array, {n_entries_, elements, given.frames, mask});
}

void GivenSteps::read(const ReplaySteps& steps, double epsilon) {
    n_entries_ = steps.length * steps.n_envs;
    read_masks(steps);
    const uint8_t* const mask = has_mask_ ? mask_.data() : nullptr;
    const uint8_t* const next_mask = has_next_mask_ ? next_mask_.data() : mask;
    for (int64_t i = 0; i < fields_.count(); ++i) {
        const Field& field = fields_[i];
        GivenValues& values = fields_values_[static_cast<size_t>(i)];
        if (steps.fields[i].array.data == nullptr) {
            values.data = field.default_value.data();
            values.stride = 0;
        } else {
            read_array(field.name, steps.fields[i], field, mask, values);
        }
        if (field.is_observation() && steps.next_fields != nullptr)
            read_array(field.next_name, steps.next_fields[i], field, next_mask, next_values_[static_cast<size_t>(i)]);
    }
    read_values("reward", {steps.reward, 1}, PER_FLOAT32, 1, n_entries_, mask, rewards_);
    check_nan("reward", {steps.reward, 1}, 1, mask);
    read_priorities(steps, epsilon);
}

void GivenSteps::check_next(int64_t entry, int64_t k, int64_t env, int32_t autoreset, bool stores_next) const {
    const bool ends = terminated(entry) || truncated(entry);
    const char* missing = nullptr;
    if (ends && autoreset == PER_AUTORESET_SAME_STEP && !has_next_mask_)
        missing =
            "next_mask must say whether the next observation is its final one (autoreset is PER_AUTORESET_SAME_STEP)";
    else if (ends && !next_known(entry) && !next_unavailable(entry))
        missing =
            "its final observation must be given as its next observation, or be marked as unknown by a false next_mask";
    else if (!ends && !next_known(entry) && stores_next)
        missing = "with store_next_observation every step needs one";
    if (missing == nullptr) return;
    throw Error(PER_ERROR_INVALID_ARGUMENT, "step %lld of environment %lld %s: %s", static_cast<long long>(k),
                static_cast<long long>(env), ends ? "ends an episode" : "has no next observation", missing);
}

int64_t GivenSteps::steps_that_run_on(int64_t entry, int64_t stride, int64_t most) const {
    int64_t n = steps_with(terminated_, 0, entry, stride, most);
    n = steps_with(truncated_, 0, entry, stride, n);
    if (has_mask_) n = steps_with(mask_, 1, entry, stride, n);
    if (has_next_mask_) n = steps_with(next_known_, next_known_[static_cast<size_t>(entry)], entry, stride, n);
    if (!has_priorities_) return n;
    int64_t i = 0;
    while (i < n && is_priority(priority(entry + i * stride))) ++i;
    return i;
}

}  // namespace per::cpu

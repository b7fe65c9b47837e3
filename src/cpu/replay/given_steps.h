// The values of a call of per_replay_add(), cast to the buffer's dtypes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "cpu/memory/column.h"
#include "cpu/memory/moves.h"
#include "rows/fields.h"

namespace per::cpu {

// The entries of one array of the call, in the buffer's dtype: entry i lies at data + i * stride. `data` points into
// the caller's array, or into `casts` if the dtypes differ. If a field is not given, `data` is its default, and stride
// is 0. Entries of any length are row(i) instead, and stride is the bytes of a value.
struct GivenValues {
    const std::byte* data = nullptr;
    int64_t stride = 0;
    std::vector<std::byte> casts;
    std::vector<int64_t> offsets;  // of entries of any length, in values from `data` on
    int64_t n_before = 0;          // values of the caller's array that lie before those at `data`

    const std::byte* at(int64_t entry) const { return data + entry * stride; }
    std::span<const std::byte> row(int64_t entry) const {
        const int64_t* const ends = offsets.data() + entry;
        return {data + ends[0] * stride, static_cast<std::size_t>((ends[1] - ends[0]) * stride)};
    }

    // Copies n entries of `bytes` each, from `entry` on and `step` entries apart, to slots 0 .. n - 1.
    template <class Value>
    void copy(int64_t entry, int64_t step, int64_t n, int64_t bytes, const Column<Value>& column) const {
        copy_frames(column.first, column.stride, at(entry), step * stride, n, bytes);
    }
};

// Entry i = k * n_envs + j is step k of the call's j-th environment. If the mask of an entry is 0, none of its values
// are read, and they are undefined here. Memory is kept from call to call.
class GivenSteps {
 public:
    // refuses_nan: NaN in observations and rewards is an error.
    GivenSteps(const Fields& fields, bool refuses_nan);

    // Throws for values that cannot be cast, and for NaN that is refused.
    void read(const ReplaySteps& steps, double epsilon);

    bool is_given(int64_t entry) const { return mask_[static_cast<size_t>(entry)] != 0; }
    bool next_known(int64_t entry) const { return next_known_[static_cast<size_t>(entry)] != 0; }
    bool terminated(int64_t entry) const { return terminated_[static_cast<size_t>(entry)] != 0; }
    bool truncated(int64_t entry) const { return truncated_[static_cast<size_t>(entry)] != 0; }
    // Throws if a step must have the observation after it, or mark it as unknown, and does neither. The step is step k
    // of environment `env`; `entry` is its entry. autoreset and stores_next are those of the buffer.
    void check_next(int64_t entry, int64_t k, int64_t env, int32_t autoreset, bool stores_next) const;

    // True if next_mask marks the observation after the step as unknown.
    bool next_unavailable(int64_t entry) const { return has_next_mask_ && next_mask_[static_cast<size_t>(entry)] == 0; }

    // Counts steps from `entry` on, `stride` entries apart, as long as each is given, does not end an episode, and has
    // a valid priority if priorities are given. The observation after it must also be known, or unknown, like that of
    // the first. Returns at most `most`.
    int64_t steps_that_run_on(int64_t entry, int64_t stride, int64_t most) const;

    const GivenValues& rewards() const { return rewards_; }
    float reward(int64_t entry) const {
        float reward;
        std::memcpy(&reward, rewards_.at(entry), sizeof reward);
        return reward;
    }
    bool has_priorities() const { return has_priorities_; }
    // As given, or computed from the TD error. Not checked.
    float priority(int64_t entry) const { return priorities_[static_cast<size_t>(entry)]; }

    const GivenValues& field(int64_t i) const { return fields_values_[static_cast<size_t>(i)]; }
    const GivenValues& next_field(int64_t i) const { return next_values_[static_cast<size_t>(i)]; }

 private:
    void read_masks(const ReplaySteps& steps);
    void read_array(std::string_view argument, const GivenArray& given, const Field& field, const uint8_t* mask,
                    GivenValues& values_out) const;
    void check_nan(std::string_view argument, const GivenArray& given, int64_t elements, const uint8_t* mask) const;
    void read_priorities(const ReplaySteps& steps, double epsilon);

    const Fields& fields_;
    const bool refuses_nan_;
    int64_t n_entries_ = 0;
    bool has_mask_ = false;
    bool has_next_mask_ = false;
    bool has_priorities_ = false;
    std::vector<uint8_t> mask_;
    std::vector<uint8_t> next_mask_;
    std::vector<uint8_t> next_known_;
    std::vector<uint8_t> terminated_;
    std::vector<uint8_t> truncated_;
    GivenValues rewards_;
    GivenValues given_priorities_;
    std::vector<float> priorities_;
    std::vector<GivenValues> fields_values_;
    std::vector<GivenValues> next_values_;
};

// Takes the last frame of each entry, which has given.frames of them. Casts if the dtypes differ.
void read_values(std::string_view argument, const GivenArray& given, int32_t dtype, int64_t elements, int64_t n_entries,
                 const uint8_t* mask, GivenValues& values_out);

// The same for rows of any length: one for each entry.
void read_rows(std::string_view argument, const per_array& given, const Field& field, int64_t n_entries,
               const uint8_t* mask, GivenValues& values_out);

// Writes the frame of entry i to slots[i]; an entry with slot -1 is left out. Adjacent slots are written at once.
void write_to_slots(const GivenValues& values, const std::vector<int64_t>& slots, int64_t bytes,
                    const RowColumn<std::byte>& column);

}  // namespace per::cpu

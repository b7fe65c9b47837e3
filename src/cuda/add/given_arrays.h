// Passes the arrays of a call of per_replay_add() to kernels: arrays in device memory as they are, arrays in host
// memory piece by piece through the staging ring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "cuda/add/given_steps.h"
#include "cuda/replay/replay_memory.h"
#include "cuda/runtime/staging.h"
#include "per.h"
#include "rows/cast.h"
#include "rows/fields.h"

namespace per::cuda {

// Consecutive entries of a call: whole steps, or part of one.
struct StepPiece {
    int64_t first_entry;
    int64_t length;   // steps
    int64_t n_lanes;  // of each
};

class GivenArrays {
 public:
    // Allocates on the current device. `max_entries` is the largest size of a piece. `memory` has the defaults of
    // fields.
    GivenArrays(const Fields& fields, const ReplayMemory& memory, int64_t n_envs, int64_t max_entries);

    // Reads the descriptions of the arrays of a call.
    void read(const ReplaySteps& steps);
    // The name of an array in host memory; empty if there is none.
    std::string_view host_array() const { return host_array_; }
    bool casts_on_host() const { return casts_on_host_; }
    // The number of entries that the staging ring has room for at a time.
    int64_t max_staged() const { return max_staged_; }

    // Throws Error with INVALID_ARGUMENT if a value that the host casts does not fit.
    void check_values(const StepPiece& piece) { fill(piece); }
    // Copies the piece's arrays to the device, and describes them for kernels. The caller must add the rules, the lanes
    // and a copy of further_fields() in device memory: the fields that are not passed by value. Throws as
    // check_values() does, before anything is queued.
    GivenSteps stage(const StepPiece& piece, cudaStream_t stream);
    const std::vector<GivenField>& further_fields() const { return further_fields_; }

    Staging& staging() { return staging_; }

 private:
    // The arrays that hold one number for each entry: their indices in arrays_, after those of fields and next
    // observations.
    enum Number { reward, terminated, truncated, mask, next_mask, priorities, td_errors, n_numbers };

    struct Array {
        std::string_view name;
        per_array given = {};
        int64_t frames = 1;
        int64_t elements = 1;
        int32_t dtype = 0;  // the dtype that kernels see
        bool is_staged = false;
        bool are_flags = false;                      // made and checked on the host
        const std::vector<uint8_t>* mask = nullptr;  // entries of the piece whose values are checked; NULL: all
        std::size_t offset = 0;                      // in the staging buffer

        bool is_given() const { return given.data != nullptr; }
        int64_t given_bytes() const;  // of an entry
        int64_t kept_bytes() const;   // of its newest frame
    };

    Array& next_of(int64_t field) { return arrays_[static_cast<std::size_t>(fields_.count() + field)]; }
    Array& number(Number which) { return arrays_[static_cast<std::size_t>(2 * fields_.count() + which)]; }
    void read_array(Array& array, const GivenArray& given);
    void read_values(Array& array, const GivenArray& given, int32_t dtype, bool is_next);
    void read_flags(Number which, const per_array& given);
    void read_masks(const StepPiece& piece);
    static CastSize size_of(const Array& array, const StepPiece& piece);
    std::size_t fill(const StepPiece& piece);
    const std::byte* kept(const Array& array, const StepPiece& piece) const;
    GivenNumbers given_numbers(Number which, const StepPiece& piece);
    GivenFrames given_frames(const Array& array, const StepPiece& piece, const Field& field,
                             const std::byte* default_value, int64_t& n_units) const;

    const Fields& fields_;
    const ReplayMemory& memory_;
    std::vector<Array> arrays_;
    std::string_view host_array_;
    bool casts_on_host_ = false;
    bool are_in_host_memory_ = false;
    int64_t max_staged_ = 0;
    std::vector<uint8_t> mask_;       // of the piece, as bytes 0 and 1
    std::vector<uint8_t> next_mask_;  // 0 where mask_ is
    std::vector<GivenField> further_fields_;
    Staging staging_;
};

}  // namespace per::cuda

// These functions check what a caller gives, and put defaults where nothing was given. Of arrays they look at the
// elements of env_ids only: backends check the others. Each throws Error, which names the argument, its value and what
// is allowed. rules/limits.h has the bounds of single numbers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/relabelling.h"
#include "per.h"
#include "rows/fields.h"

namespace per {

// The device of any handle.
void check_device(int32_t device, int32_t device_index);

// The number of entries that one call sets in a tree or buffer on that device.
void check_count_set(int64_t count, int32_t device);

void check_tree_sample(const TreeSample& sample);

void check_compression_level(const char* name, int32_t level);
void check_save_options(const per_save_options& options);
void check_load_options(const per_load_options& options);

// Checks all options but `fields`, which Fields checks.
void check_replay_options(const per_replay_options& options);

// What per_replay_compute_capacity() gives.
int64_t capacity_for(const per_replay_options& options, int64_t transitions, int64_t episode_length);

// The options with capacity and stride as they will be. In the functions below `buffer` are such options, and `fields`
// those of the buffer.
per_replay_options resolve_replay_options(const per_replay_options& options, const Fields& fields);

void check_settings(const per_replay_settings& settings, const per_replay_options& buffer, const Fields& fields);

// What a call draws: where its options say so, what the buffer's options say. The caller adds the arrays.
ReplaySample resolve_sample_options(const per_sample_options& given, int64_t batch_size,
                                    const per_replay_options& buffer);

// What per_replay_get_windows() is asked for.
struct WindowIds {
    int32_t on_invalid;  // a per_on_invalid
    int64_t count;
    const int64_t* ids;
};

// What per_replay_get_units() is asked for.
struct WindowUnits {
    int64_t count;
    const int64_t* units;
    uint64_t* masses_out;
    uint64_t* first_units_out;
};

// For what makes no draw, or more than one.
void require_no_key(const per_sample_options& given);
void require_no_hindsight(const per_sample_options& given);

// What a call writes as if it were drawn. The caller adds the arrays.
ReplaySample resolve_windows(const per_sample_options& given, const WindowIds& windows,
                             const per_replay_options& buffer);
ReplaySample resolve_windows(const per_sample_options& given, const WindowUnits& windows,
                             const per_replay_options& buffer);

ReplayHindsight resolve_hindsight_options(const per_hindsight_options& given, const Fields& fields);

// The arrays of a batch: of what the buffer draws, transitions or sequences, or of rows that are named by ids.
void check_drawn_batch(const per_batch& batch, const Fields& fields, const per_replay_options& buffer);
void check_batch_by_id(const per_batch& batch, const Fields& fields, const per_replay_options& buffer);

// The update that a call makes.
ReplayUpdate resolve_priorities(const per_priorities& given, const per_replay_options& buffer);

void check_fields_set(int64_t count, const per_array* given, const Fields& fields, int32_t device);
void check_advantages(const ReplayAdvantages& advantages, const Fields& fields);

// Checks the steps that a buffer is given. What it returns is valid until its next call.
class StepChecks {
 public:
    // Both must outlive it.
    StepChecks(const Fields& fields, const per_replay_options& buffer);

    ReplaySteps steps(const per_steps& steps);

    // Each environment once. Given a second time it is left out, or an error.
    std::span<const int64_t> environments(int64_t count, const int64_t* env_ids, bool may_repeat);

 private:
    bool has_next_fields(const per_steps& steps) const;

    const Fields& declared_;
    const per_replay_options& buffer_;
    std::vector<GivenArray> fields_;
    std::vector<GivenArray> next_fields_;
    std::vector<int64_t> environments_;
    std::vector<uint64_t> last_call_of_;  // by environment: the number of the call that last had it
    uint64_t n_calls_ = 0;
};

}  // namespace per

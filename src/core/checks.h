// Checks of options and of calls, which also fill in defaults. Elements of arrays are checked by the backends. Each
// throws Error, which names the argument, its value and what is allowed. The bounds of single numbers are in
// rules/limits.h.
#pragma once

#include <cstdint>

#include "backend/backend.h"
#include "backend/relabelling.h"
#include "per.h"
#include "rows/fields.h"

namespace per {

void check_device(int32_t device, int32_t device_index);

// Checks the number of entries that one call sets in a tree or buffer on that device.
void check_count_set(int64_t count, int32_t device);

void check_tree_sample(const TreeSample& sample);

// Throws Error with UNSUPPORTED if a field has rows of any length; `where` takes none of these.
void require_no_ragged(const Fields& fields, const char* where);
void check_compression_level(const char* name, int32_t level);
void check_save_options(const per_save_options& options);
void check_load_options(const per_load_options& options);

// Checks all options but `fields`, which Fields checks.
void check_replay_options(const per_replay_options& options);

// Checks the reference of a buffer's leaves (rules/freshness.h).
void check_reference(const char* name, int64_t reference, const per_replay_options& options);

// The result of per_replay_compute_capacity().
int64_t capacity_for(const per_replay_options& options, int64_t transitions, int64_t episode_length);

// Returns the options with capacity and stride resolved. The functions below take such options as `buffer`, and the
// buffer's fields as `fields`.
per_replay_options resolve_replay_options(const per_replay_options& options, const Fields& fields);

void check_settings(const per_replay_settings& settings, const per_replay_options& buffer, const Fields& fields);

// Returns a draw with the options of a call. Options that the call leaves to the buffer are replaced by the buffer's.
// The caller adds the arrays.
ReplaySample resolve_sample_options(const per_sample_options& given, int64_t batch_size,
                                    const per_replay_options& buffer);

// Refuses a key. Call it for calls that make no draw, or more than one.
void require_no_key(const per_sample_options& given);
void require_no_hindsight(const per_sample_options& given);
// where: "in a mixture"
void require_no_newest(const per_sample_options& given, const char* where);

// A batch of `count` rows that are named: RowsOfIds or RowsOfUnits. The caller adds the arrays.
ReplaySample resolve_windows(const per_sample_options& given, int64_t count, const BatchRows& rows,
                             const per_replay_options& buffer);

ReplayHindsight resolve_hindsight_options(const per_hindsight_options& given, const Fields& fields);

// Check the arrays of a batch of drawn transitions or sequences, and those of a batch of single rows by id.
void check_drawn_batch(const per_batch& batch, const Fields& fields, const per_replay_options& buffer);
void check_batch_by_id(const per_batch& batch, const Fields& fields, const per_replay_options& buffer);

ReplayUpdate resolve_priorities(const per_priorities& given, const per_replay_options& buffer);

void check_advantages(const ReplayAdvantages& advantages, const Fields& fields);

}  // namespace per

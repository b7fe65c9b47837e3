// Reads and writes rows of a replay buffer by id.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/draw/live_draw.h"

namespace per::cuda {

// queue_single_steps() and queue_get() read rows without their frames; the caller then queues these with
// queue_copies(). This function reads single steps, whose slots lie in memory.found. If the plan asks for next
// observations, all of these must exist.
void queue_single_steps(const DeviceReplay& replay, const DrawMemory& memory, const RowPlan& plan, cudaStream_t stream);
// Reads rows as they were added.
void queue_get(const DeviceReplay& replay, const DrawMemory& memory, const RowPlan& plan, const int64_t* ids,
               cudaStream_t stream);

// A field to be written: values [count, elements], cast where the dtypes differ.
struct FieldValues {
    DeviceField field;
    const std::byte* values;
    int64_t bytes;  // of an entry
    int32_t dtype;
    int32_t piece_bytes;  // bytes copied at a time, which divide sizes and addresses; 0: elements are cast
};

inline constexpr int max_fields_set = 16;

// The fields that one launch writes.
struct FieldsSet {
    FieldValues fields[max_fields_set];
    int32_t n;
    bool has_casts;
};

// Queues the writing of fields; the last of equal ids wins. Entries whose rows are not there, or with a value that does
// not fit its field, are skipped and counted. memory.found is scratch for `count` rows.
void queue_set(const DeviceReplay& replay, const DrawMemory& memory, const WindowRules& rules, int64_t count,
               const int64_t* ids, const std::vector<FieldsSet>& launches, cudaStream_t stream);

void load_rows_by_id_kernels();

}  // namespace per::cuda

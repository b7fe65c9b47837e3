// Reading and writing rows of a replay buffer by id.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/batch/draw.h"

namespace per::cuda {

// Queue the reading of rows; queue_copies() has to follow. Of live transitions or sequences, with weights 1 and a
// probability; ids in memory.found.
template <class Row>
void queue_take(const DeviceReplay& replay, const DrawMemory& memory, const RowPlan& plan, float probability,
                cudaStream_t stream);
// Of single steps; slots in memory.found. All that the plan asks of them must be there.
void queue_steps(const DeviceReplay& replay, const DrawMemory& memory, const RowPlan& plan, cudaStream_t stream);
// Of rows as they were added.
void queue_get(const DeviceReplay& replay, const DrawMemory& memory, const RowPlan& plan, const int64_t* ids,
               cudaStream_t stream);

// A field to be written: values [count, elements], cast where the dtypes differ.
struct FieldValues {
    DeviceField field;
    const std::byte* values;
    int64_t bytes;  // of the values of an entry
    int32_t dtype;
    int32_t piece_bytes;  // copied at a time: 16, 8, 4, 2 or 1, divides bytes and addresses; 0: elements are cast
};

inline constexpr int max_fields_set = 16;

// Those that one launch writes.
struct FieldsSet {
    FieldValues fields[max_fields_set];
    int32_t n;
    bool has_casts;
};

// Queues the writing of fields, of equal ids the last value. Entries whose rows are not there, and those with a value
// that its field cannot hold, are skipped and counted. Uses memory.found for `count` rows.
void queue_set(const DeviceReplay& replay, const DrawMemory& memory, const WindowRules& rules, int64_t count,
               const int64_t* ids, const std::vector<FieldsSet>& launches, cudaStream_t stream);

void load_access_kernels();

}  // namespace per::cuda

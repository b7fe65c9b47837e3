// Reading and writing rows of a replay buffer by id.
#pragma once

#include <cstdint>

#include "cuda/draw.h"

namespace per::cuda {

// Queue the copying of ids from host memory: by value, as the memory may be gone when they are needed.
void queue_ids(int64_t count, const int64_t* host_ids, int64_t* ids_out, cudaStream_t stream);

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

// A field to be written: [count, bytes], in the dtype of the field.
struct FieldValues {
    std::byte* frames;
    const std::byte* values;
    int64_t bytes;
    int32_t piece_bytes;  // 16, 8, 4, 2 or 1: divides bytes and addresses
};

inline constexpr int max_fields_set = 16;
struct FieldsSet {
    FieldValues fields[max_fields_set];
    int32_t n;
};

// Queues the writing of fields. The first launch of a call claims the rows, the last gives them back.
void queue_claims(const DeviceReplay& replay, const WindowRules& rules, int64_t count, const int64_t* ids,
                  cudaStream_t stream);
void queue_set(const DeviceReplay& replay, const WindowRules& rules, int64_t count, const int64_t* ids,
               const FieldsSet& fields, bool is_last, cudaStream_t stream);

void load_access_kernels();

}  // namespace per::cuda

// Kernels that change lanes and their rows: they add steps, cut episodes and change n_step.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/add/change_lanes.h"
#include "cuda/add/given_steps.h"
#include "cuda/replay/leaf_change.h"
#include "cuda/replay/replay_state.h"

namespace per::cuda {

struct StepFacts {
    uint32_t n_arrived;    // blocks; 0 between launches
    uint32_t has_waiting;  // rows wait for their priority
    ChangeBounds bounds;
};

// The record of an entry holds the row that the entry took, in the upper bits, and these flags in the bits below.
inline constexpr int64_t observation_is_there = 1;  // the step before announced it
inline constexpr int64_t has_next_frame = 2;
inline constexpr int entry_flag_bits = 2;

// How many rows of a lane had died, and how many had been born, by the end of a step. These are the first rows of the
// ranges of its LaneChange.
struct LaneProgress {
    int32_t n_died;
    int32_t n_born;
};

// Data that the kernels of an add leave for each other, in device memory that is zeroed first.
struct StepScratch {
    // By entry: its record, see above; -1 if it took no row.
    int64_t* entries;
    LaneProgress* progress;  // by entry
    // By step: the largest priority that a lane recorded for the step, or 0. A lane records a priority only if it
    // exceeds all that the lane has seen. All 0 between launches.
    uint32_t* largest_of_step;
    uint32_t* largest_before;  // by step: the largest priority before it
    StepFacts* facts;
    // The fields from index max_fields_by_value on.
    GivenField* further_fields;
    int64_t* env_ids;  // [n_envs]
};

// The lanes of a call: env_ids in device memory, or NULL for the first `count`.
struct LaneList {
    int64_t count;
    const int64_t* env_ids;
};

// True if queue_add_at_once() may be called: no row waits for its priority, there are at most warp_size steps, and the
// device has a warp for each lane and a thread for every few units of frames. If there are several steps, the kernel
// must also be able to rebuild the tree between them.
bool can_add_at_once(const DeviceReplay& replay, const GivenSteps& steps);
// Adds the steps of a whole call, and changes the leaves: one launch.
void queue_add_at_once(const DeviceReplay& replay, const GivenSteps& steps, const StepScratch& scratch,
                       int64_t* ids_out, cudaStream_t stream);

// Adds steps and copies their frames. `ends_step` is false if the next call has further lanes of the same step. If it
// is true, the PendingSums take effect from the next call on, and the change of the leaves must be queued next: by
// queue_change_of_steps() for several steps, by queue_change_of_lanes() for one. ids_out: by entry, or NULL.
void queue_add(const DeviceReplay& replay, const GivenSteps& steps, const StepScratch& scratch, int64_t* ids_out,
               bool ends_step, cudaStream_t stream);
// Changes the leaves with the same result as one change after each step. It may be called only if no row that these
// steps made live has died since.
void queue_change_of_steps(const DeviceReplay& replay, const GivenSteps& steps, const StepScratch& scratch,
                           cudaStream_t stream);
void queue_cut(const DeviceReplay& replay, const LaneList& lanes, cudaStream_t stream);
void queue_n_step(const DeviceReplay& replay, int64_t n_step, cudaStream_t stream);
// With max_age in versions, rows that are now too old become dead: queue_change_of_lanes() must follow.
void queue_version(const DeviceReplay& replay, int64_t version, cudaStream_t stream);

// Copies to the device as kernel parameters: the values are read now, even if the call is captured.
void queue_ids(int64_t count, const int64_t* ids, int64_t* to, cudaStream_t stream);
void queue_fields(int64_t count, const GivenField* fields, GivenField* to, cudaStream_t stream);
inline constexpr int64_t max_ids_by_value = 256;

void load_add_kernels();

}  // namespace per::cuda

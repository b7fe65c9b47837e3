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

// The record of an entry: in the upper bits the row that it took, below it these bits.
inline constexpr int64_t observation_is_there = 1;  // the step before announced it
inline constexpr int64_t has_next_frame = 2;
inline constexpr int entry_flag_bits = 2;

// The number of rows of each range of a lane's LaneChange that had died or been born by the end of a step.
struct LaneProgress {
    int32_t n_died;
    int32_t n_born;
};

// Data that the kernels of an add leave for each other, in device memory that is zeroed first.
struct StepScratch {
    // By entry: its row with the bits above; -1 if it took none.
    int64_t* entries;
    LaneProgress* progress;  // by entry
    // By step: the largest priority given with it that exceeds all that its lane had seen before, or 0. All 0 between
    // launches.
    uint32_t* largest_of_step;
    uint32_t* largest_before;  // by step: of all priorities before it
    StepFacts* facts;
    // By field, from the max_fields_by_value-th on.
    GivenField* further_fields;
    int64_t* env_ids;  // [n_envs]
};

// The lanes of a call: env_ids in device memory, or NULL for the first `count`.
struct LaneList {
    int64_t count;
    const int64_t* env_ids;
};

// True if queue_add_at_once() may be called: a warp has at most one lane, a thread few units of frames, and the steps
// are one group; if there are several, the kernel can rebuild the tree between them.
bool can_add_at_once(const DeviceReplay& replay, const GivenSteps& steps);
// Adds the steps of a whole call, and changes the leaves: one launch.
void queue_add_at_once(const DeviceReplay& replay, const GivenSteps& steps, const StepScratch& scratch,
                       int64_t* ids_out, cudaStream_t stream);

// Adds steps and copies their frames. If `ends_step`, the PendingSums take effect from the next call on, and the change
// of the leaves must follow: queue_change_of_steps() for several steps, else queue_change_of_lanes(). ids_out: by
// entry, or NULL.
void queue_add(const DeviceReplay& replay, const GivenSteps& steps, const StepScratch& scratch, int64_t* ids_out,
               bool ends_step, cudaStream_t stream);
// Changes the leaves with the same result as one change after each step. No row that a step made live may have died
// since.
void queue_change_of_steps(const DeviceReplay& replay, const GivenSteps& steps, const StepScratch& scratch,
                           cudaStream_t stream);
void queue_cut(const DeviceReplay& replay, const LaneList& lanes, cudaStream_t stream);
void queue_n_step(const DeviceReplay& replay, int64_t n_step, cudaStream_t stream);

// Copies to the device as kernel parameters: the values are read now, even if the call is captured.
void queue_ids(int64_t count, const int64_t* ids, int64_t* to, cudaStream_t stream);
void queue_fields(int64_t count, const GivenField* fields, GivenField* to, cudaStream_t stream);
inline constexpr int64_t max_ids_by_value = 256;

void load_add_kernels();

}  // namespace per::cuda

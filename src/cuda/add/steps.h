// Kernels that change lanes and their rows.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/add/given_steps.h"
#include "cuda/add/lanes.h"
#include "cuda/replay/replay_state.h"

namespace per::cuda {

struct StepFacts {
    uint32_t n_arrived;    // blocks; 0 between launches
    uint32_t has_waiting;  // rows wait for their priority
};

// Where the steps of a call go on their way; in the memory of the device, which is zeroed first.
struct StepScratch {
    // By entry: which row it took, and flags below that (step_frames.h); -1: none.
    int64_t* entries;
    // By step, of priorities given with it those above all that the lane knew of; 0: none. All 0 between launches.
    uint32_t* largest_of_step;
    uint32_t* largest_before;  // by step: of all priorities before it
    StepFacts* facts;
    // By field, from the n_fields_by_value-th on.
    GivenField* further_fields;
    int64_t* env_ids;  // [n_envs]
};

// Lanes of a call: env_ids in the memory of the device, or NULL for the first `count`.
struct LaneList {
    int64_t count;
    const int64_t* env_ids;
};

// Takes steps, and copies their frames. What is added up on the way counts from the next call on, if `ends_step`.
// ids_out: by entry, or NULL.
void queue_steps(const DeviceReplay& replay, const GivenSteps& steps, const StepScratch& scratch, int64_t* ids_out,
                 bool ends_step, cudaStream_t stream);
void queue_cut(const DeviceReplay& replay, const LaneList& lanes, cudaStream_t stream);
void queue_n_step(const DeviceReplay& replay, int64_t n_step, cudaStream_t stream);

// Copies by way of kernel parameters: they are read now, also when the call is captured.
void queue_ids(int64_t count, const int64_t* ids, int64_t* to, cudaStream_t stream);
void queue_fields(int64_t count, const GivenField* fields, GivenField* to, cudaStream_t stream);
inline constexpr int64_t n_ids_at_once = 256;

void load_step_kernels();

}  // namespace per::cuda

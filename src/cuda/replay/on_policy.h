// Advantages on a device, and the transitions that need bootstrap values for them.
#pragma once

#include "backend/backend.h"
#include "cuda/replay/replay_state.h"

namespace per::cuda {

// Queues counting the transitions that need a bootstrap value. replay.bootstraps then says for each lane how many there
// are in smaller lanes, and in its last entry how many there are in all.
void queue_count_bootstraps(const DeviceReplay& replay, cudaStream_t stream);

// After that: writes the slots of the first `capacity` of them, lane by lane in order of time.
void queue_list_bootstraps(const DeviceReplay& replay, int64_t capacity, int64_t* slots_out, cudaStream_t stream);

// Queues all of per_replay_compute_advantages(). Where ids or values are not those that are due, nothing is changed but a count
// of such calls.
void queue_advantages(const DeviceReplay& replay, const ReplayAdvantages& advantages, cudaStream_t stream);

void load_on_policy_kernels();

}  // namespace per::cuda

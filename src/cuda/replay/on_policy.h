// Advantages on a device, and the transitions that need bootstrap values for them.
#pragma once

#include "backend/backend.h"
#include "cuda/replay/replay_state.h"

namespace per::cuda {

// Queues counting the transitions that need a bootstrap value. replay.bootstraps then has for each lane the sum of the
// counts of all lanes before it, and in its last entry the total.
void queue_count_bootstraps(const DeviceReplay& replay, cudaStream_t stream);

// Queues writing the slots of the first `capacity` of these transitions, lane by lane, in order of time. Call it after
// queue_count_bootstraps().
void queue_list_bootstraps(const DeviceReplay& replay, int64_t capacity, int64_t* slots_out, cudaStream_t stream);

// Queues per_replay_compute_advantages(). If the ids are not those of the transitions that need bootstrap values, or if
// a value is not finite, nothing changes but n_refused_advantages.
void queue_advantages(const DeviceReplay& replay, const ReplayAdvantages& advantages, cudaStream_t stream);

void load_on_policy_kernels();

}  // namespace per::cuda

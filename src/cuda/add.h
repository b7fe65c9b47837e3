// Adding steps to a replay buffer in the memory of a device, and what else ends or completes windows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend.h"
#include "cuda/device.h"
#include "cuda/replay_memory.h"
#include "cuda/stream_order.h"
#include "fields.h"
#include "per.h"

namespace per::cuda {

// Queues what the CPU's StepWriter does. A warp takes the steps of a lane one after the other, since each depends on
// those before; the copies of their frames, which do not, are spread over the whole device; then the leaves of all rows
// that died or became live are written in one change. A step that the CPU would refuse is skipped and counted.
//
// Nothing is allocated after creation. With arrays of the device the host waits for nothing, and calls can be captured.
class StepQueue {
 public:
    // On the current device. `options` as resolved; memory and fields must outlive it.
    StepQueue(const ReplayMemory& memory, const Fields& fields, const per_replay_options& options);

    // Throws Error with INVALID_ARGUMENT for values in host memory that do not fit their field, and for arrays in host
    // memory while the stream is captured: nothing is changed then. ids_out is memory that the device can write.
    void add(const ReplaySteps& steps, int64_t* ids_out, const StreamOrder::Call& call);
    // env_ids in host memory, some perhaps several times; NULL: the first `count`.
    void cut(int64_t count, const int64_t* env_ids, const StreamOrder::Call& call);
    void set_n_step(int64_t n_step, const StreamOrder::Call& call);

    std::size_t n_bytes() const;
    // In a forked child the memory is not this process's to free.
    void abandon();

 private:
    const ReplayMemory& replay_;
};

}  // namespace per::cuda

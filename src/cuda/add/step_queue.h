// Adds steps to a replay buffer in device memory, cuts episodes and changes n_step.
#pragma once

#include <cstdint>

#include "backend/backend.h"
#include "cuda/add/add_kernels.h"
#include "cuda/add/given_arrays.h"
#include "cuda/replay/replay_memory.h"
#include "cuda/runtime/device.h"
#include "cuda/runtime/stream_order.h"
#include "per.h"
#include "rows/fields.h"

namespace per::cuda {

// Copies ids from host memory, which the caller may reuse at once, to the device. Few ids, and those of a captured
// call, are passed as kernel parameters; others go through the staging ring.
void send_ids(int64_t count, const int64_t* ids, int64_t* to, Staging& staging, const StreamOrder::Call& call);

// The counterpart of the CPU's StepWriter. A warp adds the steps of a lane in order, and the steps of a run (see
// longest_run()) at once. The copies of their frames are independent and spread over the whole device. Then the leaves
// of all rows that died or became live are changed. A call is split into pieces. A piece of many steps takes two
// launches, and a third for the change of the leaves; with PER_MAX_NOW each step is a piece. A call with few steps of
// few lanes takes a single launch. A step that the CPU would refuse is skipped and counted.
//
// Nothing is allocated after creation. With arrays of the device the host waits for nothing, and calls can be captured.
class StepQueue {
 public:
    // Allocates on the current device; ready once the work queued on `stream` is done. `options` must have been
    // resolved; memory and fields must outlive it.
    StepQueue(const ReplayMemory& memory, const Fields& fields, const per_replay_options& options, cudaStream_t stream);

    // Throws Error with INVALID_ARGUMENT for values in host memory that do not fit their field, and for arrays in host
    // memory while the stream is captured; nothing has changed then. ids_out is memory that the device can write.
    void add(const ReplaySteps& steps, int64_t* ids_out, const StreamOrder::Call& call);
    // Ends the running episodes of `count` environments. env_ids lie in host memory, without repeats; NULL means the
    // first `count` environments.
    void cut(int64_t count, const int64_t* env_ids, const StreamOrder::Call& call);
    void set_n_step(int64_t n_step, const StreamOrder::Call& call);
    void set_version(int64_t version, const StreamOrder::Call& call);

    // The ring through which arrays of the host come to the device.
    Staging& staging() { return arrays_.staging(); }

 private:
    StepPiece piece_from(int64_t first_entry, const ReplaySteps& steps) const;
    void check(const ReplaySteps& steps, const int64_t* ids_out, const StreamOrder::Call& call);
    LaneList send_env_ids(int64_t count, const int64_t* env_ids, const StreamOrder::Call& call);
    // Queues the change of the leaves of all rows in the lanes' changes.
    void settle(int64_t rows_per_lane, const StreamOrder::Call& call);
    void queue_piece(const StepPiece& piece, const ReplaySteps& steps, const LaneList& lanes, int64_t* ids_out,
                     const StreamOrder::Call& call);

    const ReplayMemory& replay_;
    const int64_t max_entries_;  // of a piece
    WindowRules rules_;          // but for n_step
    const int64_t window_rows_;  // the most rows of a lane that wait for further steps
    GivenArrays arrays_;
    DeviceMemory memory_;
    StepScratch scratch_ = {};
    // False if the leaves do not reflect the lanes, since a call failed when only a part of its launches was queued.
    // The next call that changes lanes then first updates the leaves of all lanes.
    bool is_settled_ = true;
};

}  // namespace per::cuda

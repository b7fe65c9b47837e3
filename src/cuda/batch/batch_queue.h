// The batches of a replay buffer on a device: drawn batches, minibatches of epochs, and rows that are read or written
// by id.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/replay_statistics.h"
#include "cuda/batch/copy_frames.h"
#include "cuda/batch/rows_by_id.h"
#include "cuda/draw/live_draw.h"
#include "cuda/replay/replay_memory.h"
#include "cuda/runtime/device.h"
#include "cuda/runtime/staging.h"
#include "cuda/runtime/stream_order.h"
#include "per.h"
#include "rows/fields.h"

namespace per::cuda {

// Queues the work of these calls. The host waits only for the staging ring, and only in minibatches of epochs. Memory
// is allocated for a batch that has more than 4096 rows and more than all before it, and for the first batch that needs
// ranks or PER_BUFFER_MAX if the buffer's options did not ask for these. The owner must load the kernels of
// priorities.h and add_kernels.h. The device checks the content of arrays, and counts errors in ReplayErrors.
class BatchQueue {
 public:
    // `options` must have been resolved; `fields`, `memory` and `staging` must outlive it.
    BatchQueue(const per_replay_options& options, const Fields& fields, ReplayMemory& memory, Staging& staging,
               cudaStream_t stream);

    // Allocates the memory that sample() needs.
    void prepare(const ReplaySample& sample, const StreamOrder::Call& call);
    // If no transition is live, or too few are for a draw without replacement, ids are -1 and all else 0, and the draw
    // does not count. Throws Error with INVALID_ARGUMENT if it would have to allocate while the stream is captured. If
    // transitions are named by id, one that is not live gets id -1 and zeros, and counts as a bad id unless on_invalid
    // is PER_INVALID_SKIP.
    void sample(const ReplaySample& sample, const StreamOrder::Call& call);
    // The slots of the batch that sample() wrote, in device memory; -1 if not live.
    const int64_t* slots_of(const ReplaySample& sample) const {
        return sample.is_drawn() ? memory_.slots : memory_.found;
    }

    // The shares of the batch that sample() has drawn, in device memory.
    const double* shares() const { return memory_.shares; }

    // Reads rows as they were added; ids lie in device memory. A row that is not there gets id -1 and zeros.
    void get(int64_t count, const int64_t* ids, const per_batch& batch, const StreamOrder::Call& call);
    void set(int64_t count, const int64_t* ids, const per_array* fields, const StreamOrder::Call& call);

    // Writes the first `count` transitions that need a bootstrap value. Call it after queue_count_bootstraps(), which
    // counts them. They are written as single steps with stacks, even if the buffer draws sequences.
    void bootstraps(int64_t count, const per_batch& batch, const StreamOrder::Call& call);

    // The last batch. `last` is the state's record of it; the rest is read from the device. Waits for the stream.
    LastBatch& last_batch(const LastDraw& last, const StreamOrder::Call& call);
    // Sets the last batch of a loaded buffer, which is used until the state has one.
    void restore(LastBatch&& batch) { last_batch_ = std::move(batch); }

    // Memory for the entries of an update.
    UpdateEntry* entries_for(int64_t count, const StreamOrder::Call& call);

 private:
    // The kind of a row of a batch.
    enum class RowShape {
        drawn,  // a window or a sequence
        step,   // one step, with stacks
        frame   // one step, one frame
    };

    const DrawMemory& memory_for(int64_t n_rows, const StreamOrder::Call& call);
    void allocate(int64_t n_rows, cudaStream_t stream);

    // Makes the plan, and fills copies_.
    RowPlan plan_rows(int64_t n, int64_t n_step, const per_batch& batch, RowShape shape);
    void add_copy(std::size_t field, void* out, int64_t length, int64_t stack, bool is_next);
    void get_windows(const ReplaySample& sample, const DrawPlan& plan, const StreamOrder::Call& call);
    // Queues the launches of copies_ from index `first` on. The launch that finds the places of the rows must be queued
    // before.
    void queue_copies_from(std::size_t first, const RowPlan& plan, bool of_sequences, cudaStream_t stream);

    const Fields& fields_;
    ReplayMemory& replay_;
    Staging& staging_;
    const WindowRules rules_;           // but for n_step
    std::vector<DeviceMemory> blocks_;  // the last is in use; captured graphs may use the others
    DrawMemory memory_ = {};
    // One for each launch of the current call.
    std::vector<FrameCopies> copies_;
    std::vector<FieldsSet> set_launches_;
    // Kept from call to call, as hindsight reads it with each batch.
    LastBatch last_batch_;
};

}  // namespace per::cuda

// Priorities of rows on a device: what cpu/tree/priority_store.h does on the host. All of it is queued; nothing
// waits.
//
// Leaves are written last. Kernels that make rows live or dead change live bits, priorities.given and state->n_live,
// and note in replay.changes where such rows lie. Once a call, after them, queue_change_of_lanes() brings the sum tree
// and the ranks up to date as one change (mass.h).
#pragma once

#include <cstdint>

#include "backend/backend.h"
#include "cuda/replay/replay_state.h"

namespace per::cuda {

// Ends what replay.changes say. `rows_per_lane` is about how many rows a lane may have changed; it only decides how
// many threads there are.
void queue_change_of_lanes(const DeviceReplay& replay, int64_t rows_per_lane, cudaStream_t stream);

// Sets the priorities of ids in the device's memory, at most max_count_set_on_cuda of them. What cannot be set is
// skipped and counted as stale or rejected, as the CPU does with PER_INVALID_SKIP; an id never issued also in
// errors.n_bad_ids.
void queue_priorities(const DeviceReplay& replay, const ReplayUpdate& update, UpdateEntry* entries,
                      cudaStream_t stream);

// Reads priorities, 0 for rows that are not live. Ids that were never issued are counted.
void queue_read_priorities(const DeviceReplay& replay, int64_t count, const int64_t* ids, float* priorities_out,
                           cudaStream_t stream);

// ---- the whole buffer

// Sets alpha, and all leaves by it.
void queue_alpha(const DeviceReplay& replay, double alpha, cudaStream_t stream);

// Makes all rows dead, but leaves lanes to the caller. The largest priority ever stays.
void queue_no_priorities(const DeviceReplay& replay, cudaStream_t stream);

// Makes everything that follows from priorities.given, the words of the live set and the state, after these were copied
// from a checkpoint. The tree gets the scale that it had, and the total below which it asks for another.
void queue_restored_priorities(const DeviceReplay& replay, int32_t scale, uint64_t rescales_below, cudaStream_t stream);

// Fills the smallest leaves for the rows there are, after ReplayMemory::add_smallest_leaf() added them.
void queue_smallest_leaves(const DeviceReplay& replay, cudaStream_t stream);

// ---- ranks

// Fills ranks for the rows there are, after they were added to the memory. The next draw takes them anew.
void queue_ranks(const DeviceReplay& replay, cudaStream_t stream);

// What the buffer must have for a draw to be one.
struct LeastToDraw {
    int64_t live;
    int64_t n_step;
};

// Must come before each draw by rank. Where the draw will be none, ranks stay as they are.
void queue_take_ranks_if_due(const DeviceReplay& replay, const LeastToDraw& least, cudaStream_t stream);

// Makes ranks due again, whatever has changed.
void queue_forget_ranks(const DeviceReplay& replay, cudaStream_t stream);

// Ends restoring ranks, after queue_ranks() and after weights were copied from a checkpoint.
void queue_restored_ranks(const DeviceReplay& replay, int64_t n_changes, int32_t scale, uint64_t rescales_below,
                          cudaStream_t stream);

// Loads the kernels of all of these; see load_kernels().
void load_priority_kernels();
void load_all_priority_kernels();  // of all_priorities.cu: a part of it

}  // namespace per::cuda

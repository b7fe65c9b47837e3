// Priorities of rows on a device, the counterpart of cpu/tree/priority_store.h. All work is queued; nothing waits.
//
// Leaves are written last. Kernels that make rows live or dead change live bits, priorities.given and state->n_live,
// and record the slots of such rows in replay.changes. At the end of a call, queue_change_of_lanes() updates the sum
// tree and the ranks in one change (mass.h).
#pragma once

#include <cstdint>

#include "backend/backend.h"
#include "cuda/replay/replay_state.h"

namespace per::cuda {

// Queues the change of the leaves in replay.changes. `rows_per_lane`, about the number of rows that a lane has changed,
// only determines the number of threads.
void queue_change_of_lanes(const DeviceReplay& replay, int64_t rows_per_lane, cudaStream_t stream);

// Sets the priorities of up to max_count_set_on_cuda ids in device memory. Like the CPU with PER_INVALID_SKIP, it skips
// bad entries and counts them as stale or rejected. Ids that were never issued are also counted in errors.n_bad_ids.
void queue_priorities(const DeviceReplay& replay, const ReplayUpdate& update, UpdateEntry* entries,
                      cudaStream_t stream);

// Reads priorities; those of rows that are not live are 0. Ids never issued are counted.
void queue_read_priorities(const DeviceReplay& replay, int64_t count, const int64_t* ids, float* priorities_out,
                           cudaStream_t stream);

// ---- the whole buffer

// Sets alpha, and updates all leaves.
void queue_alpha(const DeviceReplay& replay, double alpha, cudaStream_t stream);

// Raises the reference of leaves to `reference`, by `raised` > 0. The sums do not follow: the caller queues a new scale
// next.
void queue_reference(const DeviceReplay& replay, int64_t reference, int64_t raised, cudaStream_t stream);

// Makes all rows dead; the caller clears the lanes. The largest priority ever stays.
void queue_no_priorities(const DeviceReplay& replay, cudaStream_t stream);

// Computes everything that follows from priorities.given, the words of the live set and the state, after these were
// copied from a checkpoint. The tree gets the saved scale, and the saved total below which it chooses another scale.
void queue_restored_priorities(const DeviceReplay& replay, int32_t scale, uint64_t rescales_below, cudaStream_t stream);

// Computes the smallest leaves after ReplayMemory::add_smallest_leaf().
void queue_smallest_leaves(const DeviceReplay& replay, cudaStream_t stream);

// ---- ranks

// Sorts all rows into buckets. Call it after ReplayMemory::add_ranks(). The next draw by rank computes the weights.
void queue_ranks(const DeviceReplay& replay, cudaStream_t stream);

// A draw is possible if the buffer has at least this many live transitions, and its n_step is at least this n_step.
struct LeastToDraw {
    int64_t live;
    int64_t n_step;
};

// Must be queued before each draw by rank. If it is due, computes the weights of all rows from their ranks. If the draw
// is not possible, nothing changes.
void queue_take_ranks_if_due(const DeviceReplay& replay, const LeastToDraw& least, cudaStream_t stream);

// Lets the next draw by rank compute the weights again.
void queue_forget_ranks(const DeviceReplay& replay, cudaStream_t stream);

// Finishes restoring ranks. Call it after queue_ranks(), and after the weights were copied from a checkpoint.
void queue_restored_ranks(const DeviceReplay& replay, int64_t n_changes, int32_t scale, uint64_t rescales_below,
                          cudaStream_t stream);

// Loads the kernels of all of these; see load_kernels().
void load_priority_kernels();
void load_all_priority_kernels();  // only those of all_priorities.cu

}  // namespace per::cuda

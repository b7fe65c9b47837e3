#include "cuda/tree/tree_kernels.h"

#include <cfloat>

#include "cuda/tree/tree_change.h"

namespace per::cuda {
namespace {

// For up to so many entries one block does everything in one launch, with barriers between the parts. Beyond that, each
// part is a launch of its own.
constexpr int64_t max_one_block_update = 4096;

struct Batch {
    int64_t count;
    const int64_t* indices;
    const float* priorities;
    UpdateEntry* entries;  // [count]
};

__device__ __forceinline__ bool is_index(const DeviceTree& tree, int64_t index) {
    return static_cast<uint64_t>(index) < static_cast<uint64_t>(tree.capacity);
}

__device__ __forceinline__ bool is_good(const DeviceTree& tree, int64_t index, float priority) {
    return is_index(tree, index) && priority >= 0.0f && priority <= FLT_MAX;
}

// One number counts the bad entries of both arrays, of which a call has fewer than 2^32.
constexpr int bits_of_count = 32;
constexpr uint64_t one_bad_index = 1;
constexpr uint64_t one_bad_priority = uint64_t{1} << bits_of_count;

__device__ __forceinline__ void count_bad(TreeState& state, TreeArgument argument, uint64_t n) {
    if (n != 0) atomic_add(&state.n_bad_entries[static_cast<int>(argument)], n);
}

// ---- the parts of an update. Between each two every thread of the grid must have ended the first.

// Claims leaves, the last entry of equal indices winning.
__device__ __forceinline__ void claim_leaves(const DeviceTree& tree, const Batch& batch) {
    uint64_t n_bad = 0;
    const GridSpan span = grid_span();
    for (int64_t i = span.first; i < batch.count; i += span.step) {
        const int64_t index = read_once(batch.indices[i]);
        const float priority = read_once(batch.priorities[i]);
        const bool counts = is_good(tree, index, priority);
        batch.entries[i] = {counts ? index : -1, priority + 0.0f};  // -0 becomes 0
        if (counts)
            atomicMax(&tree.claims[index], static_cast<uint32_t>(i + 1));
        else
            n_bad += is_index(tree, index) ? one_bad_priority : one_bad_index;
    }
    n_bad = sum_of_warp(n_bad);
    if (lane_of_thread() != 0 || n_bad == 0) return;
    count_bad(*tree.state, TreeArgument::indices, n_bad & (one_bad_priority - 1));
    count_bad(*tree.state, TreeArgument::priorities, n_bad >> bits_of_count);
}

// The entry that holds the claim writes its leaf and ends the claim.
__device__ __forceinline__ void write_leaves(const DeviceTree& tree, const Batch& batch) {
    LeafWriter leaves(tree);
    const GridSpan span = grid_span();
    for (int64_t i = span.first; i < batch.count; i += span.step) {
        const UpdateEntry entry = batch.entries[i];
        if (entry.index < 0) continue;
        const uint32_t claim = static_cast<uint32_t>(i + 1);
        if (atomicCAS(&tree.claims[entry.index], claim, 0u) == claim) leaves.write(entry.index, entry.priority);
    }
    leaves.finish();
}

// ---- kernels

__global__ void __launch_bounds__(n_threads, 1) update_in_one_block(DeviceTree tree, Batch batch) {
    PER_SHARED(TopRow, row);
    claim_leaves(tree, batch);
    __syncthreads();
    write_leaves(tree, batch);
    __syncthreads();
    if (threadIdx.x == 0) finish_change(tree);
    __syncthreads();
    rebuild_in_one_block(tree, row);
}

__global__ void __launch_bounds__(n_threads, 1) claim_leaves_kernel(DeviceTree tree, Batch batch) {
    claim_leaves(tree, batch);
}

__global__ void __launch_bounds__(n_threads, 1) write_leaves_kernel(DeviceTree tree, Batch batch) {
    write_leaves(tree, batch);
}

__global__ void finish_change_kernel(DeviceTree tree) {
    finish_change(tree);
}

}  // namespace

void queue_update(const DeviceTree& tree, int64_t count, const int64_t* indices, const float* priorities,
                  UpdateEntry* entries, cudaStream_t stream) {
    const Batch batch = {count, indices, priorities, entries};
    if (count <= max_one_block_update) {
        launch(stream, 1, n_threads, update_in_one_block, tree, batch);
        return;
    }
    const int64_t n_blocks = blocks_for(count);
    launch(stream, n_blocks, n_threads, claim_leaves_kernel, tree, batch);
    launch(stream, n_blocks, n_threads, write_leaves_kernel, tree, batch);
    launch(stream, 1, 1, finish_change_kernel, tree);
    queue_rebuild(tree, stream);
}

void load_update_kernels() {
    load_kernels(update_in_one_block, claim_leaves_kernel, write_leaves_kernel, finish_change_kernel);
    load_rebuild_kernels();
}

}  // namespace per::cuda

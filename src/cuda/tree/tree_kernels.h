// The work of a tree on the device: each function queues kernels. A bad entry is skipped and counted in the tree's
// state. Where something is looked up, the answer is then -1 or 0.
#pragma once

#include "backend/backend.h"
#include "cuda/tree/sum_tree.h"

namespace per::cuda {

// entries: memory for [count].
void queue_update(const DeviceTree& tree, int64_t count, const int64_t* indices, const float* priorities,
                  UpdateEntry* entries, cudaStream_t stream);

// Zeroes the levels of sums, which lie side by side from the top down, and the leaves behind them up to `end`.
void queue_zeros(const DeviceSums& sums, const void* end, const char* doing_what, cudaStream_t stream);

// Zeroes all leaves. The scale stays.
void queue_reset(const DeviceTree& tree, cudaStream_t stream);

// What the plan in the tree's state asks for once the stream gets there: a scale for the leaves as they are, and sums
// at it. One launch, by the whole device, which ends at once where the plan asks for nothing. `other` is another tree of
// which the same is asked; its state may be NULL.
void queue_rebuild(const DeviceTree& tree, const DeviceTree& other, cudaStream_t stream);
void queue_rebuild(const DeviceTree& tree, cudaStream_t stream);

// The same at a scale, and with the total that asks for another, of a tree that had the same leaves.
void queue_rebuild_at(const DeviceTree& tree, int32_t scale, uint64_t rescales_below, cudaStream_t stream);

// The scale stays until leaves or their sum become too large for it, which they must not be now.
void queue_fixed_scale(const DeviceTree& tree, int32_t scale, cudaStream_t stream);
// The scale is chosen for the leaves as they are, and again whenever they ask for it.
void queue_automatic_scale(const DeviceTree& tree, cudaStream_t stream);

// Whether the kernel of a change, which has so many blocks, also does what the plan asks for. It takes a block about a
// millisecond (estimated), which is rare: a launch behind every change would take longer in the end. That is what larger
// trees have.
inline bool rebuilds_itself(const DeviceTree& tree, int64_t n_blocks) {
    constexpr int64_t max_leaves_of_block = 1 << 20;
    return tree.capacity <= max_leaves_of_block * n_blocks;
}

// Draws by any scheme but PER_WITHOUT_REPLACEMENT. From an empty tree: indices -1, priorities and weights 0, and the
// draw does not count. Few draws are made by a cluster, which has up to cluster_blocks blocks; 0: the device has none.
void queue_draw(const DeviceTree& tree, const TreeSample& sample, uint64_t seed, int32_t cluster_blocks,
                cudaStream_t stream);
// Of the current device, once load_draw_kernels() was called.
int32_t blocks_of_draw_cluster();

// Draws different leaves, the same as the CPU's. If fewer than batch_size leaves have mass: indices -1, priorities and
// weights 0, and the draw does not count.
void queue_distinct_draw(const DeviceTree& tree, const TreeSample& sample, uint64_t seed, cudaStream_t stream);

void queue_find(const DeviceTree& tree, int64_t count, const double* prefix_sums, int64_t* indices_out,
                cudaStream_t stream);
void queue_find(const DeviceTree& tree, int64_t count, const uint64_t* units, int64_t* indices_out,
                cudaStream_t stream);
void queue_read(const DeviceTree& tree, int64_t count, const int64_t* indices, float* priorities_out,
                cudaStream_t stream);

// Load the kernels; see load_kernels().
void load_update_kernels();
void load_rebuild_kernels();
void load_draw_kernels();

}  // namespace per::cuda

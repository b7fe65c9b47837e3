// The work of a tree on the device: each function queues kernels. A bad entry is skipped and counted in the tree's
// state; the result of a bad look-up is -1 or 0.
#pragma once

#include "backend/backend.h"
#include "cuda/tree/sum_tree.h"

namespace per::cuda {

// `entries` is memory for `count` entries.
void queue_update(const DeviceTree& tree, int64_t count, const int64_t* indices, const float* priorities,
                  UpdateEntry* entries, cudaStream_t stream);

// Zeroes the levels of sums, which lie side by side from the top down, and the leaves behind them up to `end`.
void queue_zeros(const DeviceSums& sums, const void* end, const char* doing_what, cudaStream_t stream);

// Zeroes all leaves. The scale stays.
void queue_reset(const DeviceTree& tree, cudaStream_t stream);

// Carries out the plan in the tree's state: a new scale for the leaves, and new sums. One launch by the whole device,
// which ends at once if the plan is to keep the scale. It does the same for `other`, whose state may be NULL.
void queue_rebuild(const DeviceTree& tree, const DeviceTree& other, cudaStream_t stream);
void queue_rebuild(const DeviceTree& tree, cudaStream_t stream);

// Computes the sums of the leaves at the given scale, and sets the total mass below which another scale is chosen. A
// restored tree takes both values from the saved one.
void queue_rebuild_at(const DeviceTree& tree, int32_t scale, uint64_t rescales_below, cudaStream_t stream);

// Keeps this scale until a leaf or the sum becomes too large for it. The leaves and their sum must fit it now.
void queue_fixed_scale(const DeviceTree& tree, int32_t scale, cudaStream_t stream);
// Chooses the scale for the leaves now, and again whenever they require it.
void queue_automatic_scale(const DeviceTree& tree, cudaStream_t stream);

// The blocks of n units of work of a change.
inline Grid grid_of_change(const DeviceTree& tree, int64_t n) {
    return {blocks_for(n, n_threads, tree.max_blocks)};
}

// The threads of a large block: the most that a block can have.
inline constexpr int large_block = 1024;
// The same for a kernel that allows large blocks: as many units as one has threads get a single block, which waits for
// no other.
inline Grid grid_of_large_block(const DeviceTree& tree, int64_t n) {
    if (n <= large_block) return {1, n <= n_threads ? n_threads : large_block};
    return grid_of_change(tree, n);
}

// True if the kernel of a change also carries out the plan. A rebuild by one block takes about a millisecond
// (estimated), but is rare. Another launch after every change, which larger trees need, would take more time in total.
inline bool rebuilds_itself(const DeviceTree& tree, const Grid& grid) {
    constexpr int64_t max_leaves_of_thread = 1 << 12;
    return tree.capacity <= max_leaves_of_thread * grid.n_blocks * grid.block_size;
}

// Draws by any scheme but PER_WITHOUT_REPLACEMENT. A draw from an empty tree gives indices -1, priorities and weights
// 0, and does not count.
void queue_draw(const DeviceTree& tree, const TreeSample& sample, uint64_t seed, cudaStream_t stream);

// Draws different leaves, the same as the CPU's. If fewer than batch_size leaves have mass, the draw gives indices -1,
// priorities and weights 0, and does not count.
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

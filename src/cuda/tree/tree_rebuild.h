// Making the sums of a tree anew, and emptying it.
#pragma once

#include "cuda/tree/sum_tree.h"

namespace per::cuda {

// Threads of a block, and blocks at most, of kernels that go over many leaves or entries.
inline constexpr int n_threads = 256;
inline constexpr int64_t max_blocks = 1024;

inline int64_t blocks_for(int64_t n) {
    const int64_t n_blocks = (n + n_threads - 1) / n_threads;
    return n_blocks < 1 ? 1 : n_blocks < max_blocks ? n_blocks : max_blocks;
}

// Queues a rebuild, for the case that the plan is plan_rebuild by then: a scale for the leaves as they are, and all
// sums.
void queue_rebuild(const DeviceTree& tree, cudaStream_t stream);

// The same at a scale, and with the total that asks for another, of a tree that had the same leaves.
void queue_rebuild_at(const DeviceTree& tree, int32_t scale, uint64_t rescales_below, cudaStream_t stream);

// All leaves 0; the scale stays.
void queue_reset(const DeviceTree& tree, cudaStream_t stream);

void load_rebuild_kernels();

}  // namespace per::cuda

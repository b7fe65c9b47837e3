// Drawing from the tree without replacement.
#pragma once

#include "backend/backend.h"
#include "cuda/tree/sum_tree.h"

namespace per::cuda {

// Queues a draw of different leaves, the same as the CPU's. If fewer than batch_size leaves have mass: indices -1,
// priorities and weights 0, and the draw does not count.
void queue_distinct_draw(const DeviceTree& tree, const TreeSample& sample, uint64_t seed, cudaStream_t stream);

void load_distinct_kernels();

}  // namespace per::cuda

// Drawing from the tree with replacement, and looking leaves up.
#pragma once

#include "backend/backend.h"
#include "cuda/tree/sum_tree.h"

namespace per::cuda {

// Queues a draw of any scheme but PER_WITHOUT_REPLACEMENT. From an empty tree: indices -1, priorities and weights 0,
// and the draw does not count.
void queue_draw(const DeviceTree& tree, const TreeSample& sample, uint64_t seed, cudaStream_t stream);

// Queue look-ups; bad entries give -1, bad indices priority 0, and are counted.
void queue_find(const DeviceTree& tree, int64_t count, const double* prefix_sums, int64_t* indices_out,
                cudaStream_t stream);
void queue_find_mass(const DeviceTree& tree, int64_t count, const uint64_t* units, int64_t* indices_out,
                     cudaStream_t stream);
void queue_read(const DeviceTree& tree, int64_t count, const int64_t* indices, float* priorities_out,
                cudaStream_t stream);

void load_draw_kernels();

}  // namespace per::cuda

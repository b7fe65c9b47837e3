// Setting priorities, and choosing the scale anew where they ask for it.
#pragma once

#include "cuda/tree/sum_tree.h"

namespace per::cuda {

// Largest count of one update: claims are numbered in 32 bits.
inline constexpr int64_t largest_update = 0xfffffffe;

// Queues the update; bad entries are skipped and counted.
void queue_update(const DeviceTree& tree, int64_t count, const int64_t* indices, const float* priorities,
                  cudaStream_t stream);

// Loads the kernels, which would otherwise happen at their first launch, and may then synchronise.
void load_update_kernels();

}  // namespace per::cuda

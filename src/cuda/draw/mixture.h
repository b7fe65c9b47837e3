// The weights of a batch that was drawn from several buffers: see DrawnShares.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>

#include "backend/backend.h"
#include "per.h"

namespace per::cuda {

// Queues the work of ReplayBackend::write_mixture(). All buffers must have queued their draws on this stream.
void queue_mixture(std::span<const SourceRows> sources, int32_t normalize_weights, const per_batch& batch,
                   int32_t* sources_out, cudaStream_t stream);
void load_mixture_kernels();

}  // namespace per::cuda

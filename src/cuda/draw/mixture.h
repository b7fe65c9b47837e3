// The weights of a batch that was drawn from several buffers.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>

#include "backend/backend.h"
#include "per.h"

namespace per::cuda {

// The results of a draw with PER_NONE, on the device. P(i) is shares[i] / (even_share * n_live), and the weight is
// (even_share / shares[i])^beta. Without rows only n_live is valid.
struct SourceShares {
    const double* shares;  // [count]
    const double* even_share;
    const double* beta;
    const int64_t* n_live;
    double share;  // of the source; all shares add up to 1
    int64_t first;
    int64_t count;
};

// Queues the writing of weights, probabilities and sources. All buffers must have queued their draws on this stream.
void queue_mixture(std::span<const SourceShares> sources, int32_t normalize_weights, const per_batch& batch,
                   int32_t* sources_out, cudaStream_t stream);
void load_mixture_kernels();

}  // namespace per::cuda

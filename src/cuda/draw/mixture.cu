#include "cuda/draw/mixture.h"

#include <algorithm>

#include "cuda/draw/draw_law.h"
#include "cuda/runtime/device.h"
#include "cuda/runtime/dialect.h"
#include "rules/draw.h"
#include "rules/limits.h"

namespace per::cuda {
namespace {

struct MixturePlan {
    SourceShares sources[max_sources];
    int32_t n_sources;
    int32_t normalize_weights;
    const int64_t* ids;  // -1 in rows that could not be drawn
    float* weights;      // may be NULL, like the next two
    float* probabilities;
    int32_t* sources_out;
};

__device__ __forceinline__ double factor_of(const SourceShares& rows) {
    return mixture_factor(rows.share, *rows.even_share, *rows.n_live);
}

// One block weighs the whole batch, since the largest weight depends on all rows.
__global__ void __launch_bounds__(n_threads, 1) mixture_kernel(const __grid_constant__ MixturePlan plan) {
    PER_SHARED(FinishShared, shared);
    double smallest = no_share();
    int64_t n_live = 0;
    for (int k = 0; k < plan.n_sources; ++k) {
        const SourceShares& rows = plan.sources[k];
        n_live += *rows.n_live;
        for (int64_t j = threadIdx.x; j < rows.count; j += n_threads)
            if (plan.ids[rows.first + j] >= 0) smallest = smaller(smallest, rows.shares[j] * factor_of(rows));
    }
    smallest = smallest_of_block(least_of_warp(smallest), shared.of_warp);
    const double reference = plan.normalize_weights == PER_NONE ? 1.0 / static_cast<double>(n_live) : smallest;
    for (int k = 0; k < plan.n_sources; ++k) {
        const SourceShares& rows = plan.sources[k];
        if (rows.count == 0) continue;
        const double factor = factor_of(rows);
        for (int64_t j = threadIdx.x; j < rows.count; j += n_threads) {
            const int64_t i = rows.first + j;
            const bool is_drawn = plan.ids[i] >= 0;
            const double share = rows.shares[j];
            if (plan.weights != nullptr)
                plan.weights[i] = is_drawn ? importance_weight(reference / factor, share, *rows.beta) : 0.0f;
            if (plan.probabilities != nullptr)
                plan.probabilities[i] = is_drawn ? static_cast<float>(share * factor) : 0.0f;
            if (plan.sources_out != nullptr) plan.sources_out[i] = k;
        }
    }
}

}  // namespace

void queue_mixture(std::span<const SourceShares> sources, int32_t normalize_weights, const per_batch& batch,
                   int32_t* sources_out, cudaStream_t stream) {
    MixturePlan plan = {};
    std::copy(sources.begin(), sources.end(), plan.sources);
    plan.n_sources = static_cast<int32_t>(sources.size());
    plan.normalize_weights = normalize_weights;
    plan.ids = batch.ids;
    plan.weights = batch.weights;
    plan.probabilities = batch.probabilities;
    plan.sources_out = sources_out;
    launch(stream, 1, n_threads, mixture_kernel, plan);
}

void load_mixture_kernels() {
    load_kernels(mixture_kernel);
}

}  // namespace per::cuda

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
    SourceRows sources[max_sources];
    int32_t n_sources;
    int32_t normalize_weights;
    const int64_t* ids;  // -1 in rows that could not be drawn
    float* weights;      // may be NULL, like the next two
    float* probabilities;
    int32_t* sources_out;
};

// Calls visit(i, source, P(i)) for the rows of this thread that were drawn.
template <class Visit>
__device__ __forceinline__ void for_each_drawn(const MixturePlan& plan, const Visit& visit) {
    for (int k = 0; k < plan.n_sources; ++k) {
        const SourceRows& rows = plan.sources[k];
        for (int64_t j = threadIdx.x; j < rows.count; j += n_threads) {
            if (plan.ids[rows.first + j] < 0) continue;
            const double factor = mixture_factor(rows.share, *rows.drawn.even_share, *rows.drawn.n_live);
            visit(rows.first + j, k, rows.drawn.shares[j] * factor);
        }
    }
}

// One block weighs the whole batch, since the largest weight depends on all rows.
__global__ void __launch_bounds__(n_threads, 1) mixture_kernel(const __grid_constant__ MixturePlan plan) {
    PER_SHARED(FinishShared, shared);
    double smallest = no_share();
    for_each_drawn(plan, [&](int64_t, int, double probability) { smallest = smaller(smallest, probability); });
    double reference = smallest_of_block(shared, least_of_warp(smallest));
    if (plan.normalize_weights == PER_NONE) {
        int64_t n_live = 0;
        for (int k = 0; k < plan.n_sources; ++k) n_live += *plan.sources[k].drawn.n_live;
        reference = 1.0 / static_cast<double>(n_live);
    }
    for_each_drawn(plan, [&](int64_t i, int k, double probability) {
        const double beta = *plan.sources[k].drawn.beta;
        if (plan.weights != nullptr) plan.weights[i] = importance_weight(reference, probability, beta);
        if (plan.probabilities != nullptr) plan.probabilities[i] = static_cast<float>(probability);
    });
    for (int k = 0; plan.sources_out != nullptr && k < plan.n_sources; ++k)
        for (int64_t j = threadIdx.x; j < plan.sources[k].count; j += n_threads)
            plan.sources_out[plan.sources[k].first + j] = k;
}

}  // namespace

void queue_mixture(std::span<const SourceRows> sources, int32_t normalize_weights, const per_batch& batch,
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

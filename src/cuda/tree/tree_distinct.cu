#include "cuda/tree/tree_kernels.h"

#include "cuda/tree/distinct_rounds.h"

namespace per::cuda {
namespace {

struct DistinctOut {
    int64_t batch_size;
    int64_t* indices;
    float* priorities;  // may be NULL
    float* weights;     // may be NULL
    double beta;
};

struct Shared {
    TopRow row;
    DistinctShared draws;
    double smallest[distinct_warps];
};

// The smallest inclusion probability of the batch, for all threads.
__device__ __forceinline__ double smallest_probability(const DeviceTree& tree, Shared& shared, const DistinctOut& out,
                                                       double whole, double n_draws, double factor) {
    double smallest = 2.0;
    for (int64_t i = threadIdx.x; i < out.batch_size; i += distinct_threads) {
        const double share = static_cast<double>(leaf_mass(tree.leaves[out.indices[i]], factor)) / whole;
        const double probability = inclusion_probability<double, uint64_t>(share, n_draws);
        smallest = probability < smallest ? probability : smallest;
    }
    for (int bits = warp_size / 2; bits != 0; bits /= 2) {
        const double other = __shfl_xor_sync(all_lanes, smallest, bits);
        smallest = other < smallest ? other : smallest;
    }
    if (lane_of_thread() == 0) shared.smallest[threadIdx.x / warp_size] = smallest;
    __syncthreads();
    for (int64_t warp = 0; warp < distinct_warps; ++warp)
        smallest = shared.smallest[warp] < smallest ? shared.smallest[warp] : smallest;
    return smallest;
}

__device__ __forceinline__ void write_outputs(const DeviceTree& tree, Shared& shared, const DistinctOut& out,
                                              double n_draws) {
    const double whole = static_cast<double>(tree.state->total);
    const double factor = power_of_two(tree.state->scale);
    const double reference = smallest_probability(tree, shared, out, whole, n_draws, factor);
    const double log2_reference = log2_of<double, uint64_t>(reference);
    for (int64_t i = threadIdx.x; i < out.batch_size; i += distinct_threads) {
        const float priority = tree.leaves[out.indices[i]];
        if (out.priorities != nullptr) out.priorities[i] = priority;
        if (out.weights == nullptr) continue;
        const double share = static_cast<double>(leaf_mass(priority, factor)) / whole;
        const double probability = inclusion_probability<double, uint64_t>(share, n_draws);
        const double weight = importance_weight_of<double, uint64_t>(log2_reference, probability, out.beta);
        out.weights[i] = static_cast<float>(weight);
    }
}

__device__ __forceinline__ void write_nothing(const DistinctOut& out) {
    for (int64_t i = threadIdx.x; i < out.batch_size; i += distinct_threads) {
        out.indices[i] = -1;
        if (out.priorities != nullptr) out.priorities[i] = 0.0f;
        if (out.weights != nullptr) out.weights[i] = 0.0f;
    }
}

__global__ void __launch_bounds__(distinct_threads, 1)
    distinct_kernel(DeviceTree tree, DistinctOut out, uint64_t seed) {
    PER_SHARED(Shared, shared);
    TreeState& state = *tree.state;
    TreeSource source = {tree, shared.row, power_of_two(state.scale), static_cast<double>(state.total)};
    const DistinctResult result = draw_distinct(source, shared.draws, {out.batch_size, out.indices, tree.claims},
                                                {out.batch_size, PER_INDEPENDENT, seed, state.batches});
    const bool is_whole = result.n_found >= out.batch_size;
    if (is_whole)
        write_outputs(tree, shared, out, result.n_draws);
    else
        write_nothing(out);
    if (threadIdx.x != 0) return;
    if (is_whole)
        ++state.batches;
    else if (state.total == 0)
        ++state.n_empty_draws;
    else
        ++state.n_short_draws;
}

}  // namespace

void queue_distinct_draw(const DeviceTree& tree, const TreeSample& sample, uint64_t seed, cudaStream_t stream) {
    const DistinctOut out = {sample.batch_size, sample.indices_out, sample.priorities_out, sample.weights_out,
                             sample.beta};
    launch(stream, 1, distinct_threads, distinct_kernel, tree, out, seed);
}

void load_distinct_kernels() {
    load_kernels(distinct_kernel);
}

}  // namespace per::cuda

// Kernels that draw from the tree of a per_tree, and that look up its leaves.

#include <type_traits>

#include "backend/backend.h"
#include "cuda/draw/distinct_draw.h"
#include "cuda/tree/tree_kernels.h"
#include "rules/draw.h"

namespace per::cuda {
namespace {

// The last block to finish computes the weights of up to this many draws. For more, another launch takes less time.
constexpr int64_t max_weights_of_a_block = 1024;

// The blocks of a draw on a multiprocessor at the same time: as many as its registers allow.
constexpr int draw_blocks_each = 4;

struct DrawShared {
    TopRow row;
    uint64_t of_warp[n_warps];
    bool is_last;
};

// The threads of `span` write the weights. In one block `ends_draw` is true: it counts the draw. A thread reads the
// leaf of its first weight together with the smallest masses.
__device__ __forceinline__ void weigh(const DeviceTree& tree, int64_t n_draw_blocks, const TreeSample& sample,
                                      const GridSpan& span, bool ends_draw, uint64_t (&shared)[n_warps]) {
    TreeState& state = *tree.state;
    const bool is_empty = state.total == 0;
    // Only one thread reads and writes the number, so that no other can still be reading it when it is written.
    const uint64_t batches = ends_draw && threadIdx.x == 0 ? state.batches : 0;
    const double factor = power_of_two(state.scale);
    const bool writes = sample.weights_out != nullptr && !is_empty && span.first < sample.batch_size;
    float leaf = writes ? tree.leaves[sample.indices_out[span.first]] : 0.0f;
    uint64_t smallest = ~uint64_t{0};
    for (int64_t i = threadIdx.x; i < n_draw_blocks; i += n_threads)
        smallest = smaller(smallest, tree.smallest_masses[i]);
    smallest = smallest_of_block(least_of_warp(smallest), shared);
    const double log2_smallest = is_empty ? 0.0 : log2_of<double, uint64_t>(static_cast<double>(smallest));
    for (int64_t i = span.first; sample.weights_out != nullptr && i < sample.batch_size; i += span.step) {
        if (is_empty) {
            sample.weights_out[i] = 0.0f;
            continue;
        }
        const double mass = static_cast<double>(leaf_mass(leaf, factor));
        sample.weights_out[i] =
            static_cast<float>(importance_weight_of<double, uint64_t>(log2_smallest, mass, sample.beta));
        if (i + span.step < sample.batch_size) leaf = tree.leaves[sample.indices_out[i + span.step]];
    }
    if (!ends_draw || threadIdx.x != 0) return;
    if (is_empty)
        ++state.n_empty_draws;
    else
        state.batches = batches + 1;
}

// A warp makes a draw. Weights need the smallest mass of the batch, which no block knows: each stores its own.
__global__ void __launch_bounds__(n_threads, draw_blocks_each)
    draw_kernel(const __grid_constant__ DeviceTree tree, DrawRequest request, uint64_t width,
                const __grid_constant__ TreeSample sample, bool last_block_weighs) {
    PER_SHARED(DrawShared, shared);
    request.batch_number = tree.state->batches;
    const double factor = power_of_two(tree.state->scale);
    const uint64_t total = tree.state->total;
    load_top_row(tree, shared.row);
    uint64_t smallest = ~uint64_t{0};
    const GridSpan span = warp_span();
    for (int64_t i = span.first; i < request.batch_size; i += span.step) {
        FoundLeaf leaf = {-1, 0, 0.0f};
        if (total != 0) {
            leaf = find_leaf(tree, shared.row, factor, draw_target(request, static_cast<uint64_t>(i), width, total));
            smallest = smaller(smallest, leaf.mass);
        }
        const float priority = sample.priorities_out != nullptr ? leaf.priority() : 0.0f;
        if (lane_of_thread() != 0) continue;
        sample.indices_out[i] = leaf.index;
        if (sample.priorities_out != nullptr) sample.priorities_out[i] = priority;
    }
    smallest = smallest_of_block(smallest, shared.of_warp);
    if (threadIdx.x == 0) tree.smallest_masses[blockIdx.x] = smallest;
    if (!last_block_weighs) return;
    if (threadIdx.x == 0) shared.is_last = arrive(&tree.state->n_arrived) == gridDim.x - 1;
    __syncthreads();
    if (!shared.is_last) return;
    if (threadIdx.x == 0) tree.state->n_arrived = 0;
    weigh(tree, gridDim.x, sample, {threadIdx.x, n_threads}, true, shared.of_warp);
}

struct SmallestShared {
    uint64_t of_warp[n_warps];
};

__global__ void __launch_bounds__(n_threads, 1)
    weigh_kernel(const __grid_constant__ DeviceTree tree, int64_t n_draw_blocks,
                 const __grid_constant__ TreeSample sample) {
    PER_SHARED(SmallestShared, shared);
    weigh(tree, n_draw_blocks, sample, grid_span(), blockIdx.x == 0, shared.of_warp);
}

// ---- without replacement

struct DistinctDrawShared {
    TopRow row;
    DistinctShared draws;
    double smallest[distinct_warps];
};

__device__ __forceinline__ double probability_of(const DeviceTree& tree, int64_t index, double whole, double n_draws,
                                                 double factor) {
    const double share = static_cast<double>(leaf_mass(tree.leaves[index], factor)) / whole;
    return inclusion_probability<double, uint64_t>(share, n_draws);
}

// The smallest inclusion probability of the batch, returned to all threads.
__device__ __forceinline__ double smallest_probability(const DeviceTree& tree, DistinctDrawShared& shared,
                                                       const TreeSample& sample, double whole, double n_draws,
                                                       double factor) {
    double smallest = 2.0;
    for (int64_t i = threadIdx.x; i < sample.batch_size; i += distinct_threads)
        smallest = smaller(smallest, probability_of(tree, sample.indices_out[i], whole, n_draws, factor));
    smallest = least_of_warp(smallest);
    if (lane_of_thread() == 0) shared.smallest[threadIdx.x / warp_size] = smallest;
    __syncthreads();
    for (const double of_warp : shared.smallest) smallest = smaller(smallest, of_warp);
    return smallest;
}

__device__ __forceinline__ void write_outputs(const DeviceTree& tree, DistinctDrawShared& shared,
                                              const TreeSample& sample, double n_draws) {
    const double whole = static_cast<double>(tree.state->total);
    const double factor = power_of_two(tree.state->scale);
    const double reference = smallest_probability(tree, shared, sample, whole, n_draws, factor);
    const double log2_reference = log2_of<double, uint64_t>(reference);
    for (int64_t i = threadIdx.x; i < sample.batch_size; i += distinct_threads) {
        if (sample.priorities_out != nullptr) sample.priorities_out[i] = tree.leaves[sample.indices_out[i]];
        if (sample.weights_out == nullptr) continue;
        const double probability = probability_of(tree, sample.indices_out[i], whole, n_draws, factor);
        const double weight = importance_weight_of<double, uint64_t>(log2_reference, probability, sample.beta);
        sample.weights_out[i] = static_cast<float>(weight);
    }
}

__device__ __forceinline__ void write_nothing(const TreeSample& sample) {
    for (int64_t i = threadIdx.x; i < sample.batch_size; i += distinct_threads) {
        sample.indices_out[i] = -1;
        if (sample.priorities_out != nullptr) sample.priorities_out[i] = 0.0f;
        if (sample.weights_out != nullptr) sample.weights_out[i] = 0.0f;
    }
}

__global__ void __launch_bounds__(distinct_threads, 1)
    distinct_kernel(DeviceTree tree, TreeSample sample, uint64_t seed) {
    PER_SHARED(DistinctDrawShared, shared);
    TreeState& state = *tree.state;
    TreeSource source = {tree, shared.row, power_of_two(state.scale), static_cast<double>(state.total)};
    const DistinctResult result =
        draw_distinct(source, shared.draws, {sample.batch_size, sample.indices_out, tree.claims},
                      {sample.batch_size, PER_INDEPENDENT, seed, state.batches});
    const bool is_whole = result.n_found >= sample.batch_size;
    if (is_whole)
        write_outputs(tree, shared, sample, result.n_draws);
    else
        write_nothing(sample);
    if (threadIdx.x != 0) return;
    if (is_whole)
        ++state.batches;
    else if (state.total == 0)
        ++state.n_empty_draws;
    else
        ++state.n_short_draws;
}

// ---- look-ups

__device__ __forceinline__ bool unit_of(double prefix_sum, uint64_t total, double factor, uint64_t& unit) {
    return unit_of_prefix_sum(prefix_sum, total, factor, unit);
}

__device__ __forceinline__ bool unit_of(uint64_t mass, uint64_t total, double, uint64_t& unit) {
    unit = mass;
    return mass < total;
}

// A warp looks up an entry, which is a prefix sum or a unit. In an empty tree no entry is good; the call is then
// counted in n_empty_draws, and not in n_bad_entries.
template <class Given>
__global__ void __launch_bounds__(n_threads, 1)
    find_kernel(DeviceTree tree, int64_t count, const Given* given, int64_t* indices_out) {
    PER_SHARED(TopRow, row);
    const unsigned lane = lane_of_thread();
    load_top_row(tree, row);
    const uint64_t total = tree.state->total;
    const double factor = power_of_two(tree.state->scale);
    const GridSpan span = warp_span();
    uint64_t n_bad = 0;
    for (int64_t i = span.first; i < count; i += span.step) {
        uint64_t unit = 0;
        int64_t index = -1;
        if (total != 0 && unit_of(given[i], total, factor, unit))
            index = find_leaf(tree, row, factor, unit).index;
        else
            ++n_bad;
        if (lane == 0) indices_out[i] = index;
    }
    if (lane != 0) return;
    if (total == 0) {
        if (span.first == 0) atomicAdd(&tree.state->n_empty_draws, 1u);
    } else if (n_bad != 0) {
        constexpr bool are_units = std::is_same_v<Given, uint64_t>;
        constexpr TreeArgument argument = are_units ? TreeArgument::units : TreeArgument::prefix_sums;
        atomic_add(&tree.state->n_bad_entries[static_cast<int>(argument)], n_bad);
    }
}

__global__ void __launch_bounds__(n_threads, 1)
    read_kernel(DeviceTree tree, int64_t count, const int64_t* indices, float* priorities_out) {
    uint64_t n_bad = 0;
    const GridSpan span = grid_span();
    for (int64_t i = span.first; i < count; i += span.step) {
        const int64_t index = indices[i];
        const bool is_good = static_cast<uint64_t>(index) < static_cast<uint64_t>(tree.capacity);
        priorities_out[i] = is_good ? tree.leaves[index] : 0.0f;
        n_bad += !is_good;
    }
    add_of_warp(&tree.state->n_bad_entries[static_cast<int>(TreeArgument::indices)], n_bad);
}

}  // namespace

void queue_draw(const DeviceTree& tree, const TreeSample& sample, uint64_t seed, cudaStream_t stream) {
    const int64_t n = sample.batch_size;
    const DrawRequest request = {n, sample.scheme, seed, 0};
    const int64_t n_draw_blocks = blocks_of_draw(tree, n, draw_blocks_each);
    const bool last_block_weighs = sample.weights_out == nullptr || n <= max_weights_of_a_block;
    launch(stream, n_draw_blocks, n_threads, draw_kernel, tree, request, stratum_width(n), sample, last_block_weighs);
    if (!last_block_weighs) launch(stream, blocks_for(n), n_threads, weigh_kernel, tree, n_draw_blocks, sample);
}

void queue_distinct_draw(const DeviceTree& tree, const TreeSample& sample, uint64_t seed, cudaStream_t stream) {
    launch(stream, 1, distinct_threads, distinct_kernel, tree, sample, seed);
}

void queue_find(const DeviceTree& tree, int64_t count, const double* prefix_sums, int64_t* indices_out,
                cudaStream_t stream) {
    launch(stream, blocks_for(count, n_warps), n_threads, find_kernel<double>, tree, count, prefix_sums, indices_out);
}

void queue_find(const DeviceTree& tree, int64_t count, const uint64_t* units, int64_t* indices_out,
                cudaStream_t stream) {
    launch(stream, blocks_for(count, n_warps), n_threads, find_kernel<uint64_t>, tree, count, units, indices_out);
}

void queue_read(const DeviceTree& tree, int64_t count, const int64_t* indices, float* priorities_out,
                cudaStream_t stream) {
    launch(stream, blocks_for(count), n_threads, read_kernel, tree, count, indices, priorities_out);
}

void load_draw_kernels() {
    load_kernels(draw_kernel, weigh_kernel, find_kernel<double>, find_kernel<uint64_t>, read_kernel, distinct_kernel);
}

}  // namespace per::cuda

#include "cuda/tree/tree_kernels.h"

#include <type_traits>

#include "rules/priority.h"
#include "rules/random.h"

namespace per::cuda {
namespace {

struct Drawn {
    int64_t* indices;
    float* priorities;  // may be NULL
    float* weights;     // may be NULL
};

// A warp a draw. Weights need the smallest mass of the batch, which no block knows: each leaves its own behind.
__global__ void __launch_bounds__(n_threads, 1)
    draw_kernel(DeviceTree tree, DrawRequest request, uint64_t width, Drawn out) {
    PER_SHARED(TopRow, row);
    const unsigned lane = lane_of_thread();
    load_top_row(tree, row);
    const uint64_t total = total_of(row);
    const double factor = power_of_two(tree.state->scale);
    request.batch_number = tree.state->batches;
    uint64_t smallest = ~uint64_t{0};
    const GridSpan span = warp_span();
    for (int64_t i = span.first; i < request.batch_size; i += span.step) {
        FoundLeaf leaf = {-1, 0.0f, 0};
        if (total != 0) {
            leaf = find_leaf(tree, row, factor, draw_target(request, static_cast<uint64_t>(i), width, total));
            smallest = leaf.mass < smallest ? leaf.mass : smallest;
        }
        if (lane != 0) continue;
        out.indices[i] = leaf.index;
        if (out.priorities != nullptr) out.priorities[i] = leaf.priority;
    }
    __syncthreads();
    if (lane == 0) row.warp_sums[threadIdx.x / warp_size] = smallest;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int64_t warp = 1; warp < n_warps; ++warp)
        smallest = row.warp_sums[warp] < smallest ? row.warp_sums[warp] : smallest;
    tree.smallest_masses[blockIdx.x] = smallest;
}

struct SmallestShared {
    uint64_t of_warp[n_warps];
};

// Weights of section 3.4, and the count of draws: a draw that has been made is one.
__global__ void __launch_bounds__(n_threads, 1)
    weigh_kernel(DeviceTree tree, int64_t batch_size, int64_t n_draw_blocks, double beta, Drawn out) {
    PER_SHARED(SmallestShared, shared);
    TreeState& state = *tree.state;
    const unsigned lane = lane_of_thread();
    uint64_t smallest = ~uint64_t{0};
    for (int64_t i = threadIdx.x; i < n_draw_blocks; i += n_threads)
        smallest = tree.smallest_masses[i] < smallest ? tree.smallest_masses[i] : smallest;
    smallest = least_of_warp(smallest);
    if (lane == 0) shared.of_warp[threadIdx.x / warp_size] = smallest;
    __syncthreads();
    for (int64_t warp = 0; warp < n_warps; ++warp)
        smallest = shared.of_warp[warp] < smallest ? shared.of_warp[warp] : smallest;

    const bool is_empty = state.total == 0;
    const double factor = power_of_two(state.scale);
    const double log2_smallest = is_empty ? 0.0 : log2_of<double, uint64_t>(static_cast<double>(smallest));
    const GridSpan span = grid_span();
    for (int64_t i = span.first; out.weights != nullptr && i < batch_size; i += span.step) {
        if (is_empty) {
            out.weights[i] = 0.0f;
            continue;
        }
        const double mass = static_cast<double>(leaf_mass(tree.leaves[out.indices[i]], factor));
        out.weights[i] = static_cast<float>(importance_weight_of<double, uint64_t>(log2_smallest, mass, beta));
    }
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    if (is_empty)
        ++state.n_empty_draws;
    else
        ++state.batches;
}

// ---- look-ups

__device__ __forceinline__ bool unit_of(double prefix_sum, uint64_t total, double factor, uint64_t& unit) {
    return unit_of_prefix_sum(prefix_sum, total, factor, unit);
}

__device__ __forceinline__ bool unit_of(uint64_t mass, uint64_t total, double, uint64_t& unit) {
    unit = mass;
    return mass < total;
}

// A warp an entry. Of an empty tree no entry is good, and the call counts as one that found it empty.
template <class Given>
__device__ __forceinline__ void find_leaves(const DeviceTree& tree, TopRow& row, int64_t count, const Given* given,
                                            int64_t* indices_out) {
    const unsigned lane = lane_of_thread();
    load_top_row(tree, row);
    const uint64_t total = total_of(row);
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
    find_kernel(DeviceTree tree, int64_t count, const double* prefix_sums, int64_t* indices_out) {
    PER_SHARED(TopRow, row);
    find_leaves(tree, row, count, prefix_sums, indices_out);
}

__global__ void __launch_bounds__(n_threads, 1)
    find_mass_kernel(DeviceTree tree, int64_t count, const uint64_t* units, int64_t* indices_out) {
    PER_SHARED(TopRow, row);
    find_leaves(tree, row, count, units, indices_out);
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
    n_bad = sum_of_warp(n_bad);
    if (lane_of_thread() == 0 && n_bad != 0)
        atomic_add(&tree.state->n_bad_entries[static_cast<int>(TreeArgument::indices)], n_bad);
}

}  // namespace

void queue_draw(const DeviceTree& tree, const TreeSample& sample, uint64_t seed, cudaStream_t stream) {
    const int64_t n = sample.batch_size;
    const DrawRequest request = {n, sample.scheme, seed, 0};
    const Drawn out = {sample.indices_out, sample.priorities_out, sample.weights_out};
    const int64_t n_draw_blocks = blocks_for(n, n_warps, max_draw_blocks);
    launch(stream, n_draw_blocks, n_threads, draw_kernel, tree, request, stratum_width(n), out);
    const int64_t n_weigh_blocks = sample.weights_out == nullptr ? 1 : blocks_for(n);
    launch(stream, n_weigh_blocks, n_threads, weigh_kernel, tree, n, n_draw_blocks, sample.beta, out);
}

void queue_find(const DeviceTree& tree, int64_t count, const double* prefix_sums, int64_t* indices_out,
                cudaStream_t stream) {
    launch(stream, blocks_for(count, n_warps), n_threads, find_kernel, tree, count, prefix_sums, indices_out);
}

void queue_find_mass(const DeviceTree& tree, int64_t count, const uint64_t* units, int64_t* indices_out,
                     cudaStream_t stream) {
    launch(stream, blocks_for(count, n_warps), n_threads, find_mass_kernel, tree, count, units, indices_out);
}

void queue_read(const DeviceTree& tree, int64_t count, const int64_t* indices, float* priorities_out,
                cudaStream_t stream) {
    launch(stream, blocks_for(count), n_threads, read_kernel, tree, count, indices, priorities_out);
}

void load_draw_kernels() {
    load_kernels(draw_kernel, weigh_kernel, find_kernel, find_mass_kernel, read_kernel);
}

}  // namespace per::cuda

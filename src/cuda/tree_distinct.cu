#include "cuda/tree_distinct.h"

#include "distinct.h"
#include "priority.h"
#include "random.h"

namespace per::cuda {
namespace {

// How many rounds are needed is known on the device only, so one block makes them all. It takes a chunk of draws at a
// time, as many as it has threads.
constexpr int n_threads = 512;
constexpr int64_t n_warps = n_threads / warp_size;

// In a claim: this leaf has been found by an earlier chunk. While a chunk is looked at, thread t claims the leaf of its
// draw with n_threads - t, so that the first draw of a leaf has the largest claim.
constexpr uint32_t is_found = ~0u;

struct DistinctOut {
    int64_t batch_size;
    int64_t* indices;
    float* priorities;  // may be NULL
    float* weights;     // may be NULL
    double beta;
};

struct Shared {
    TopRow row;
    int64_t drawn[n_threads];  // leaves of the chunk
    int64_t warp_counts[n_warps];
    double more_draws[n_threads];  // what each draw of the chunk stands for
    double smallest[n_warps];
    int64_t n_found;
    int64_t n_taken_out;
    int64_t n_repeats;
    int64_t last_index;  // the leaf found beyond the batch, which only ends the count of draws
    double n_draws;
};

// Number of threads before this one in the block, and in all of it, for which `counts` is true.
struct Ranks {
    int64_t rank;
    int64_t n;
};

__device__ __forceinline__ Ranks rank_in_block(Shared& shared, bool counts) {
    const unsigned lane = lane_of_thread();
    const unsigned warp = threadIdx.x / warp_size;
    const unsigned ballot = __ballot_sync(all_lanes, counts);
    __syncthreads();
    if (lane == 0) shared.warp_counts[warp] = __popc(ballot);
    __syncthreads();
    Ranks ranks = {__popc(ballot & ((1u << lane) - 1)), 0};
    for (int64_t i = 0; i < n_warps; ++i) {
        if (i < warp) ranks.rank += shared.warp_counts[i];
        ranks.n += shared.warp_counts[i];
    }
    return ranks;
}

// Each warp finds the leaves of 32 draws, one after the other.
__device__ __forceinline__ void draw_chunk(const DeviceTree& tree, Shared& shared, const DrawRequest& round,
                                           int64_t first) {
    const unsigned lane = lane_of_thread();
    const int64_t first_of_warp = threadIdx.x / warp_size * warp_size;
    const double factor = power_of_two(tree.state->scale);
    const uint64_t total = total_of(shared.row);
    for (int64_t i = first_of_warp; i < first_of_warp + warp_size && first + i < round.batch_size; ++i) {
        const uint64_t target = draw_target(round, static_cast<uint64_t>(first + i), 0, total);
        const FoundLeaf leaf = find_leaf(tree, shared.row, factor, target);
        if (lane == 0) shared.drawn[i] = leaf.index;
    }
    __syncthreads();
}

// Keeps the first draw of each leaf, in order, until n_wanted are found. Draws after that one count for nothing.
__device__ __forceinline__ void keep_first_draws(const DeviceTree& tree, Shared& shared, const DistinctOut& out,
                                                 const DrawRequest& round, int64_t first, double share) {
    const int64_t n_wanted = out.batch_size + 1;
    const bool is_drawn = first + threadIdx.x < round.batch_size;
    const int64_t index = is_drawn ? shared.drawn[threadIdx.x] : 0;
    const uint32_t claim = n_threads - threadIdx.x;
    if (is_drawn) atomicMax(&tree.claims[index], claim);
    __syncthreads();
    const bool is_first = is_drawn && tree.claims[index] == claim;
    const int64_t n_found = shared.n_found;
    const bool takes_out = shared.n_taken_out != 0;
    const Ranks ranks = rank_in_block(shared, is_first);
    const int64_t place = n_found + ranks.rank;  // of the leaf, if it is found
    const bool is_looked_at = is_drawn && place < n_wanted;
    if (is_first && is_looked_at) {
        if (place < out.batch_size)
            out.indices[place] = index;
        else
            shared.last_index = index;
    }
    if (is_first) tree.claims[index] = is_looked_at ? is_found : 0;
    const Ranks repeats = rank_in_block(shared, is_looked_at && !is_first);
    const Ranks looked_at = rank_in_block(shared, is_looked_at);
    if (takes_out && is_looked_at) {
        const uint64_t number = geometric_numbers | (round.first + static_cast<uint64_t>(first) + threadIdx.x);
        shared.more_draws[threadIdx.x] = draws_until_outside(random64(round.seed, round.step, number), share);
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    shared.n_found = n_found + ranks.n < n_wanted ? n_found + ranks.n : n_wanted;
    shared.n_repeats += repeats.n;
    // In order, as beyond 2^53 sums of doubles depend on it.
    if (!takes_out) shared.n_draws += static_cast<double>(looked_at.n);
    for (int64_t i = 0; takes_out && i < looked_at.n; ++i) shared.n_draws += shared.more_draws[i];
}

// Leaves first .. last - 1 of those found weigh nothing until they are put back: their priorities are negated.
__device__ __forceinline__ void toggle_leaves(const DeviceTree& tree, const DistinctOut& out, int64_t first,
                                              int64_t last) {
    const double factor = power_of_two(tree.state->scale);
    for (int64_t i = first + threadIdx.x; i < last; i += n_threads) {
        const int64_t index = out.indices[i];
        const float before = tree.leaves[index];
        tree.leaves[index] = -before;
        add_to_sums(tree, index, leaf_mass(-before, factor) - leaf_mass(before, factor));
    }
    __syncthreads();
}

// All rounds of distinct_draw.h on the CPU.
__device__ __forceinline__ void draw_rounds(const DeviceTree& tree, Shared& shared, const DistinctOut& out,
                                            uint64_t seed) {
    const int64_t n_wanted = out.batch_size + 1;
    DrawRequest round = {0, PER_INDEPENDENT, seed, tree.state->step};
    load_top_row(tree, shared.row);
    const double whole = static_cast<double>(total_of(shared.row));
    while (shared.n_found < n_wanted && total_of(shared.row) != 0) {
        round.batch_size = distinct_round_size(n_wanted - shared.n_found);
        const double share = static_cast<double>(total_of(shared.row)) / whole;
        __syncthreads();
        if (threadIdx.x == 0) shared.n_repeats = 0;
        __syncthreads();
        for (int64_t first = 0; first < round.batch_size && shared.n_found < n_wanted; first += n_threads) {
            draw_chunk(tree, shared, round, first);
            keep_first_draws(tree, shared, out, round, first, share);
            __syncthreads();
        }
        const int64_t n_found = shared.n_found;
        if (repeats_prevail(shared.n_repeats, round.batch_size) && n_found < n_wanted) {
            toggle_leaves(tree, out, shared.n_taken_out, n_found);
            load_top_row(tree, shared.row);
            if (threadIdx.x == 0) shared.n_taken_out = n_found;
            __syncthreads();
        }
        round.first += static_cast<uint64_t>(round.batch_size);
    }
}

// The smallest inclusion probability of the batch, for all threads.
__device__ __forceinline__ double smallest_probability(const DeviceTree& tree, Shared& shared, const DistinctOut& out,
                                                       double whole, double n_draws, double factor) {
    double smallest = 2.0;
    for (int64_t i = threadIdx.x; i < out.batch_size; i += n_threads) {
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
    for (int64_t warp = 0; warp < n_warps; ++warp)
        smallest = shared.smallest[warp] < smallest ? shared.smallest[warp] : smallest;
    return smallest;
}

__device__ __forceinline__ void write_outputs(const DeviceTree& tree, Shared& shared, const DistinctOut& out) {
    const double whole = static_cast<double>(tree.state->total);
    const double factor = power_of_two(tree.state->scale);
    const double infinity = bit_cast<double>(uint64_t{0x7ff0000000000000});
    const double n_draws = shared.n_found == out.batch_size + 1 ? shared.n_draws - 1.0 : infinity;
    const double reference = smallest_probability(tree, shared, out, whole, n_draws, factor);
    const double log2_reference = log2_of<double, uint64_t>(reference);
    for (int64_t i = threadIdx.x; i < out.batch_size; i += n_threads) {
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
    for (int64_t i = threadIdx.x; i < out.batch_size; i += n_threads) {
        out.indices[i] = -1;
        if (out.priorities != nullptr) out.priorities[i] = 0.0f;
        if (out.weights != nullptr) out.weights[i] = 0.0f;
    }
}

__global__ void __launch_bounds__(n_threads, 1) distinct_kernel(DeviceTree tree, DistinctOut out, uint64_t seed) {
    PER_SHARED(Shared, shared);
    if (threadIdx.x == 0) {
        shared.n_found = 0;
        shared.n_taken_out = 0;
        shared.n_draws = 0.0;
    }
    __syncthreads();
    draw_rounds(tree, shared, out, seed);
    __syncthreads();

    toggle_leaves(tree, out, 0, shared.n_taken_out);
    const int64_t n_written = shared.n_found < out.batch_size ? shared.n_found : out.batch_size;
    for (int64_t i = threadIdx.x; i < n_written; i += n_threads) tree.claims[out.indices[i]] = 0;
    if (threadIdx.x == 0 && shared.n_found > out.batch_size) tree.claims[shared.last_index] = 0;
    __syncthreads();

    const bool is_whole = n_written == out.batch_size;
    if (is_whole)
        write_outputs(tree, shared, out);
    else
        write_nothing(out);
    if (threadIdx.x != 0) return;
    TreeState& state = *tree.state;
    if (is_whole)
        ++state.step;
    else if (state.total == 0)
        ++state.n_empty_draws;
    else
        ++state.n_short_draws;
}

}  // namespace

void queue_distinct_draw(const DeviceTree& tree, const TreeSample& sample, uint64_t seed, cudaStream_t stream) {
    const DistinctOut out = {sample.batch_size, sample.indices_out, sample.priorities_out, sample.weights_out,
                             sample.beta};
    launch(stream, 1, n_threads, distinct_kernel, tree, out, seed);
}

void load_distinct_kernels() {
    load_kernels(distinct_kernel);
}

}  // namespace per::cuda

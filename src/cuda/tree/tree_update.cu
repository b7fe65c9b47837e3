#include "cuda/tree/tree_kernels.h"

#include <cfloat>

#include "cuda/tree/tree_steps.h"

namespace per::cuda {
namespace {

// Up to so many entries one block does everything: one launch, and barriers between the steps. Beyond, each step is a
// launch of its own.
constexpr int64_t largest_one_block_update = 4096;

struct Batch {
    int64_t count;
    const int64_t* indices;
    const float* priorities;
};

__device__ __forceinline__ bool is_index(const DeviceTree& tree, int64_t index) {
    return static_cast<uint64_t>(index) < static_cast<uint64_t>(tree.capacity);
}

__device__ __forceinline__ bool is_good(const DeviceTree& tree, int64_t index, float priority) {
    return is_index(tree, index) && priority >= 0.0f && priority <= FLT_MAX;
}

// Bad entries of the two arrays in one number: a call has fewer than 2^32.
constexpr int bits_of_count = 32;
constexpr uint64_t one_bad_index = 1;
constexpr uint64_t one_bad_priority = uint64_t{1} << bits_of_count;

__device__ __forceinline__ void count_bad(TreeState& state, TreeArgument argument, uint64_t n) {
    if (n != 0) atomic_add(&state.n_bad_entries[static_cast<int>(argument)], n);
}

// ---- the steps of an update. Between each two every thread of the grid must have ended the first.

// Claims leaves, the last entry of equal indices winning, and looks at what is to be written.
__device__ __forceinline__ void survey_batch(const DeviceTree& tree, const Batch& batch) {
    TreeState& state = *tree.state;
    const bool is_empty = state.total == 0;
    const double factor = power_of_two(state.scale);
    Survey survey;
    uint64_t n_bad = 0;
    const GridSpan span = grid_span();
    for (int64_t i = span.first; i < batch.count; i += span.step) {
        const int64_t index = batch.indices[i];
        const float priority = batch.priorities[i];
        if (!is_good(tree, index, priority)) {
            n_bad += is_index(tree, index) ? one_bad_priority : one_bad_index;
            continue;
        }
        atomicMax(&tree.claims[index], static_cast<uint32_t>(i + 1));
        const uint32_t bits = __float_as_uint(priority + 0.0f);  // -0 becomes 0
        survey.largest_bits = bits > survey.largest_bits ? bits : survey.largest_bits;
        ++survey.n_valid;
        if (!is_empty) survey.sum = add_wide(survey.sum, {limited_mass_of(priority, factor), 0});
    }
    add_to_state(state, survey);
    n_bad = sum_of_warp(n_bad);
    if (lane_of_thread() != 0 || n_bad == 0) return;
    count_bad(state, TreeArgument::indices, n_bad & (one_bad_priority - 1));
    count_bad(state, TreeArgument::priorities, n_bad >> bits_of_count);
}

// For an empty tree, whose scale can follow the batch: its masses at the scale of its largest priority.
__device__ __forceinline__ void sum_batch_anew(const DeviceTree& tree, const Batch& batch) {
    TreeState& state = *tree.state;
    if (state.total != 0 || state.largest_bits == 0) return;
    const double factor = power_of_two(scale_for_largest(largest_priority(state)));
    WideSum sum = {0, 0};
    const GridSpan span = grid_span();
    for (int64_t i = span.first; i < batch.count; i += span.step)
        if (is_good(tree, batch.indices[i], batch.priorities[i]))
            sum = add_wide(sum, {mass_of(batch.priorities[i], factor), 0});
    sum = sum_of_warp(sum);
    if (lane_of_thread() == 0) atomic_add_wide(&state.sum, sum);
}

// One thread.
__device__ __forceinline__ void decide(TreeState& state) {
    if (state.total == 0) {
        choose_scale(state, static_cast<int64_t>(state.n_valid));
        state.plan = plan_anew;
        return;
    }
    const BatchMass batch =
        batch_mass(largest_priority(state), power_of_two(state.scale), state.sum.high, state.sum.low);
    state.plan = breaks_limits(batch, state.total) ? plan_rebuild : plan_add;
}

// The entry that holds the claim writes its leaf, and gives the claim back.
__device__ __forceinline__ void write_batch(const DeviceTree& tree, const Batch& batch) {
    const bool adds = tree.state->plan != plan_rebuild;
    const double factor = power_of_two(tree.state->scale);
    const GridSpan span = grid_span();
    for (int64_t i = span.first; i < batch.count; i += span.step) {
        const int64_t index = batch.indices[i];
        const float priority = batch.priorities[i] + 0.0f;  // -0 becomes 0
        if (!is_good(tree, index, priority)) continue;
        const uint32_t claim = static_cast<uint32_t>(i + 1);
        if (atomicCAS(&tree.claims[index], claim, 0u) != claim) continue;
        const float before = tree.leaves[index];
        tree.leaves[index] = priority;
        if (!adds) continue;
        const uint64_t difference = mass_of(priority, factor) - mass_of(before, factor);
        if (difference != 0) add_to_sums(tree, index, difference);
    }
}

// ---- kernels

__global__ void __launch_bounds__(n_threads, 1) update_in_one_block(DeviceTree tree, Batch batch) {
    PER_SHARED(TopRow, row);
    survey_batch(tree, batch);
    __syncthreads();
    sum_batch_anew(tree, batch);
    __syncthreads();
    if (threadIdx.x == 0) decide(*tree.state);
    __syncthreads();
    write_batch(tree, batch);
    __syncthreads();
    finish_batch(tree, row);
    __syncthreads();
    if (tree.state->plan == plan_rebuild) rebuild_in_one_block(tree, row);
}

__global__ void __launch_bounds__(n_threads, 1) survey_batch_kernel(DeviceTree tree, Batch batch) {
    survey_batch(tree, batch);
}

__global__ void __launch_bounds__(n_threads, 1) sum_batch_anew_kernel(DeviceTree tree, Batch batch) {
    sum_batch_anew(tree, batch);
}

__global__ void decide_kernel(DeviceTree tree) {
    decide(*tree.state);
}

__global__ void __launch_bounds__(n_threads, 1) write_batch_kernel(DeviceTree tree, Batch batch) {
    write_batch(tree, batch);
}

__global__ void __launch_bounds__(n_threads, 1) finish_batch_kernel(DeviceTree tree) {
    PER_SHARED(TopRow, row);
    finish_batch(tree, row);
}

}  // namespace

void queue_update(const DeviceTree& tree, int64_t count, const int64_t* indices, const float* priorities,
                  cudaStream_t stream) {
    const Batch batch = {count, indices, priorities};
    if (count <= largest_one_block_update) {
        launch(stream, 1, n_threads, update_in_one_block, tree, batch);
        return;
    }
    const int64_t n_blocks = blocks_for(count);
    launch(stream, n_blocks, n_threads, survey_batch_kernel, tree, batch);
    launch(stream, n_blocks, n_threads, sum_batch_anew_kernel, tree, batch);
    launch(stream, 1, 1, decide_kernel, tree);
    launch(stream, n_blocks, n_threads, write_batch_kernel, tree, batch);
    launch(stream, 1, n_threads, finish_batch_kernel, tree);
    queue_rebuild(tree, stream);
}

void load_update_kernels() {
    load_kernels(update_in_one_block, survey_batch_kernel, sum_batch_anew_kernel, decide_kernel, write_batch_kernel,
                 finish_batch_kernel);
    load_rebuild_kernels();
}

}  // namespace per::cuda

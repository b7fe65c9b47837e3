#include "cuda/tree_update.h"

#include <cfloat>

namespace per::cuda {
namespace {

constexpr int n_threads = 256;
constexpr int64_t max_blocks = 1024;
// Up to so many entries one block does everything: one launch, and barriers between the steps. Beyond, each step is a
// launch of its own.
constexpr int64_t largest_one_block_update = 4096;

struct Batch {
    int64_t count;
    const int64_t* indices;
    const float* priorities;
};

__device__ __forceinline__ bool is_good(const DeviceTree& tree, int64_t index, float priority) {
    return static_cast<uint64_t>(index) < static_cast<uint64_t>(tree.capacity) && priority >= 0.0f &&
           priority <= FLT_MAX;
}

// What the decisions about the scale need to know, from all threads of the grid.
struct Survey {
    uint32_t largest_bits = 0;
    uint64_t n_valid = 0;
    WideSum sum = {0, 0};
};

__device__ __forceinline__ void add_to_state(TreeState& state, const Survey& survey) {
    const uint32_t largest_bits = __reduce_max_sync(all_lanes, survey.largest_bits);
    const uint64_t n_valid = sum_of_warp(survey.n_valid);
    const WideSum sum = sum_of_warp(survey.sum);
    if (lane_of_thread() != 0) return;
    if (largest_bits != 0) atomicMax(&state.largest_bits, largest_bits);
    if (n_valid != 0) atomic_add(&state.n_valid, n_valid);
    atomic_add_wide(&state.sum, sum);
}

__device__ __forceinline__ float largest_priority(const TreeState& state) {
    return __uint_as_float(state.largest_bits);
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
            ++n_bad;
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
    if (lane_of_thread() == 0 && n_bad != 0) atomic_add(&state.n_bad_entries, n_bad);
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
__device__ __forceinline__ void choose_scale(TreeState& state, int64_t n_priorities) {
    if (state.largest_bits == 0) return;
    state.scale = rebuilt_scale(largest_priority(state), state.sum.high, state.sum.low, n_priorities);
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

// One block, after the sums have been changed or made anew.
__device__ __forceinline__ void add_up_total(const DeviceTree& tree, TopRow& row, bool is_rebuilt) {
    TreeState& state = *tree.state;
    load_top_row(tree, row);
    if (threadIdx.x != 0) return;
    state.total = total_of(row);
    state.largest_bits = 0;
    state.n_valid = 0;
    state.sum = {0, 0};
    if (is_rebuilt || state.plan == plan_anew) {
        state.low_water = low_water(state.total, tree.capacity);
        state.plan = plan_add;
    } else if (state.total != 0 && state.total < state.low_water) {
        state.plan = plan_rebuild;
    }
}

// One block. An update that only wrote leaves goes on to the rebuild.
__device__ __forceinline__ void finish_batch(const DeviceTree& tree, TopRow& row) {
    TreeState& state = *tree.state;
    if (state.plan != plan_rebuild) {
        add_up_total(tree, row, false);
    } else if (threadIdx.x == 0) {
        state.largest_bits = 0;
        state.sum = {0, 0};
    }
}

// ---- the steps of a rebuild

__device__ __forceinline__ void survey_leaves(const DeviceTree& tree) {
    Survey survey;
    const GridSpan span = grid_span();
    for (int64_t i = span.first; i < tree.capacity; i += span.step) {
        const uint32_t bits = __float_as_uint(tree.leaves[i]);
        survey.largest_bits = bits > survey.largest_bits ? bits : survey.largest_bits;
    }
    add_to_state(*tree.state, survey);
}

__device__ __forceinline__ void sum_leaves(const DeviceTree& tree) {
    TreeState& state = *tree.state;
    if (state.largest_bits == 0) return;
    const double factor = power_of_two(scale_for_largest(largest_priority(state)));
    WideSum sum = {0, 0};
    const GridSpan span = grid_span();
    for (int64_t i = span.first; i < tree.capacity; i += span.step)
        sum = add_wide(sum, {mass_of(tree.leaves[i], factor), 0});
    sum = sum_of_warp(sum);
    if (lane_of_thread() == 0) atomic_add_wide(&state.sum, sum);
}

// Sums of one level from those of the level below: a warp a node.
__device__ __forceinline__ void refresh_level(const DeviceTree& tree, int level) {
    const double factor = power_of_two(tree.state->scale);
    const unsigned lane = lane_of_thread();
    const int64_t n_nodes = tree.n_nodes[level - 1] / fan_out;
    const GridSpan span = warp_span();
    for (int64_t node = span.first; node < n_nodes; node += span.step) {
        const int64_t child = node * fan_out + lane;
        const uint64_t sum =
            sum_of_warp(level == 1 ? mass_of(tree.leaves[child], factor) : tree.sums[level - 1][child]);
        if (lane == 0) tree.sums[level][node] = sum;
    }
}

__device__ __forceinline__ void rebuild_in_one_block(const DeviceTree& tree, TopRow& row) {
    survey_leaves(tree);
    __syncthreads();
    sum_leaves(tree);
    __syncthreads();
    if (threadIdx.x == 0) choose_scale(*tree.state, tree.capacity);
    __syncthreads();
    for (int level = 1; level < tree.n_levels; ++level) {
        refresh_level(tree, level);
        __syncthreads();
    }
    add_up_total(tree, row, true);
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

// From here on only if there is something to rebuild.
__global__ void __launch_bounds__(n_threads, 1) survey_leaves_kernel(DeviceTree tree) {
    if (tree.state->plan == plan_rebuild) survey_leaves(tree);
}

__global__ void __launch_bounds__(n_threads, 1) sum_leaves_kernel(DeviceTree tree) {
    if (tree.state->plan == plan_rebuild) sum_leaves(tree);
}

__global__ void choose_scale_kernel(DeviceTree tree) {
    if (tree.state->plan == plan_rebuild) choose_scale(*tree.state, tree.capacity);
}

__global__ void __launch_bounds__(n_threads, 1) refresh_level_kernel(DeviceTree tree, int level) {
    if (tree.state->plan == plan_rebuild) refresh_level(tree, level);
}

__global__ void __launch_bounds__(n_threads, 1) finish_rebuild_kernel(DeviceTree tree) {
    PER_SHARED(TopRow, row);
    if (tree.state->plan != plan_rebuild) return;
    add_up_total(tree, row, true);
}

int64_t blocks_for(int64_t n) {
    const int64_t n_blocks = (n + n_threads - 1) / n_threads;
    return n_blocks < max_blocks ? n_blocks : max_blocks;
}

void queue_rebuild(const DeviceTree& tree, cudaStream_t stream) {
    const int64_t n_blocks = blocks_for(tree.capacity);
    launch(stream, n_blocks, n_threads, survey_leaves_kernel, tree);
    launch(stream, n_blocks, n_threads, sum_leaves_kernel, tree);
    launch(stream, 1, 1, choose_scale_kernel, tree);
    for (int level = 1; level < tree.n_levels; ++level)
        launch(stream, blocks_for(tree.n_nodes[level - 1]), n_threads, refresh_level_kernel, tree, level);
    launch(stream, 1, n_threads, finish_rebuild_kernel, tree);
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
                 finish_batch_kernel, survey_leaves_kernel, sum_leaves_kernel, choose_scale_kernel,
                 refresh_level_kernel, finish_rebuild_kernel);
}

}  // namespace per::cuda

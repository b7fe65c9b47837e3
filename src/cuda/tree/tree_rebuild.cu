#include "cuda/tree/tree_kernels.h"

#include <cstddef>

#include "cuda/runtime/device.h"
#include "cuda/tree/tree_change.h"

namespace per::cuda {
namespace {

__global__ void __launch_bounds__(n_threads, 1) find_largest_leaf_kernel(DeviceTree tree) {
    if (tree.state->plan != plan_keep) find_largest_leaf(tree);
}

__global__ void __launch_bounds__(n_threads, 1) sum_leaves_kernel(DeviceTree tree) {
    if (tree.state->plan != plan_keep) sum_leaves(tree);
}

__global__ void choose_scale_kernel(DeviceTree tree) {
    if (tree.state->plan != plan_keep) choose_scale(tree);
}

__global__ void __launch_bounds__(n_threads, 1) refresh_level_kernel(DeviceTree tree, int level) {
    if (tree.state->plan != plan_keep) refresh_level(tree, level);
}

__global__ void __launch_bounds__(n_threads, 1) finish_rebuild_kernel(DeviceTree tree) {
    PER_SHARED(TopRow, row);
    if (tree.state->plan != plan_keep) finish_rebuild(tree, row);
}

__global__ void set_scale_kernel(DeviceTree tree, int32_t scale) {
    tree.state->scale = scale;
    tree.state->plan = plan_rebuild;
}

__global__ void fix_scale_kernel(DeviceTree tree, int32_t is_fixed) {
    tree.state->is_scale_fixed = is_fixed;
    tree.state->plan = plan_rebuild;
}

__global__ void set_low_water_kernel(DeviceTree tree, uint64_t rescales_below) {
    tree.state->low_water = rescales_below;
}

void queue_sums(const DeviceTree& tree, cudaStream_t stream) {
    for (int level = 1; level < tree.n_levels; ++level)
        launch(stream, blocks_for(tree.n_nodes[level - 1]), n_threads, refresh_level_kernel, tree, level);
    launch(stream, 1, n_threads, finish_rebuild_kernel, tree);
}

}  // namespace

void queue_rebuild(const DeviceTree& tree, cudaStream_t stream) {
    const int64_t n_blocks = blocks_for(tree.capacity);
    launch(stream, n_blocks, n_threads, find_largest_leaf_kernel, tree);
    launch(stream, n_blocks, n_threads, sum_leaves_kernel, tree);
    launch(stream, 1, 1, choose_scale_kernel, tree);
    queue_sums(tree, stream);
}

void queue_rebuild_at(const DeviceTree& tree, int32_t scale, uint64_t rescales_below, cudaStream_t stream) {
    launch(stream, 1, 1, set_scale_kernel, tree, scale);
    queue_sums(tree, stream);
    launch(stream, 1, 1, set_low_water_kernel, tree, rescales_below);
}

// Whoever loads a checkpoint of it keeps the scale, too: no total is below 0.
void queue_fixed_scale(const DeviceTree& tree, int32_t scale, cudaStream_t stream) {
    launch(stream, 1, 1, fix_scale_kernel, tree, 1);
    queue_rebuild_at(tree, scale, 0, stream);
}

void queue_automatic_scale(const DeviceTree& tree, cudaStream_t stream) {
    launch(stream, 1, 1, fix_scale_kernel, tree, 0);
    queue_rebuild(tree, stream);
}

void queue_reset(const DeviceTree& tree, cudaStream_t stream) {
    // The levels lie side by side, from the top to the leaves.
    const std::byte* const begin = reinterpret_cast<const std::byte*>(tree.sums[tree.n_levels - 1]);
    const std::byte* const end = reinterpret_cast<const std::byte*>(tree.leaves + tree.n_nodes[0]);
    check(cudaMemsetAsync(tree.sums[tree.n_levels - 1], 0, static_cast<std::size_t>(end - begin), stream),
          "clearing the tree");
    check(cudaMemsetAsync(&tree.state->total, 0, sizeof tree.state->total, stream), "clearing the tree");
}

void load_rebuild_kernels() {
    load_kernels(find_largest_leaf_kernel, sum_leaves_kernel, choose_scale_kernel, refresh_level_kernel,
                 finish_rebuild_kernel, set_scale_kernel, fix_scale_kernel, set_low_water_kernel);
}

}  // namespace per::cuda

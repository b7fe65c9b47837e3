#include "cuda/tree/tree_kernels.h"

#include <cstddef>

#include "cuda/runtime/device.h"
#include "cuda/tree/tree_change.h"

namespace per::cuda {
namespace {

// The leaves of a block, of which each warp reads 32 nodes of 32 leaves.
constexpr int64_t leaves_of_block = n_threads * fan_out;

__global__ void __launch_bounds__(n_threads, 1)
    rebuild_kernel(const __grid_constant__ DeviceTree tree, const __grid_constant__ DeviceTree other) {
    rebuild(tree);
    if (other.state != nullptr) rebuild(other);
}

__global__ void fix_scale_kernel(DeviceTree tree, int32_t is_fixed) {
    tree.state->is_scale_fixed = is_fixed;
    tree.state->plan = plan_rebuild;
}

__global__ void __launch_bounds__(n_threads, 1)
    rebuild_at_kernel(const __grid_constant__ DeviceTree tree, int32_t scale, uint64_t rescales_below) {
    meet(tree.state->meeting, [&] {
        tree.state->scale = scale;
        tree.state->plan = plan_rebuild;
    });
    refresh_sums(tree);
    if (grid_span().first == 0) tree.state->low_water = rescales_below;
}

}  // namespace

void queue_rebuild(const DeviceTree& tree, const DeviceTree& other, cudaStream_t stream) {
    launch_together(stream, {blocks_for(tree.capacity, leaves_of_block, tree.max_blocks)}, rebuild_kernel, tree, other);
}

void queue_rebuild(const DeviceTree& tree, cudaStream_t stream) {
    queue_rebuild(tree, DeviceTree{}, stream);
}

void queue_rebuild_at(const DeviceTree& tree, int32_t scale, uint64_t rescales_below, cudaStream_t stream) {
    launch_together(stream, {blocks_for(tree.capacity, leaves_of_block, tree.max_blocks)}, rebuild_at_kernel, tree,
                    scale, rescales_below);
}

// Sets the low water mark to 0, which no total is below. So a loaded checkpoint of the tree keeps the scale, too.
void queue_fixed_scale(const DeviceTree& tree, int32_t scale, cudaStream_t stream) {
    launch(stream, 1, 1, fix_scale_kernel, tree, 1);
    queue_rebuild_at(tree, scale, 0, stream);
}

void queue_automatic_scale(const DeviceTree& tree, cudaStream_t stream) {
    launch(stream, 1, 1, fix_scale_kernel, tree, 0);
    queue_rebuild(tree, stream);
}

void queue_zeros(const DeviceSums& sums, const void* end, const char* doing_what, cudaStream_t stream) {
    const auto n_bytes = static_cast<const std::byte*>(end) - reinterpret_cast<const std::byte*>(sums.top);
    check(cudaMemsetAsync(sums.top, 0, static_cast<std::size_t>(n_bytes), stream), doing_what);
}

void queue_reset(const DeviceTree& tree, cudaStream_t stream) {
    queue_zeros(tree, tree.leaves + tree.n_nodes[0], "clearing the tree", stream);
    check(cudaMemsetAsync(&tree.state->total, 0, sizeof tree.state->total, stream), "clearing the tree");
}

void load_rebuild_kernels() {
    load_kernels(rebuild_kernel, rebuild_at_kernel, fix_scale_kernel);
}

}  // namespace per::cuda

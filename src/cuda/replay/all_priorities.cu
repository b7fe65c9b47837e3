// Changes of all priorities of a replay buffer at once.
#include <cstddef>

#include "cuda/replay/leaf_change.h"
#include "cuda/replay/priorities.h"
#include "cuda/runtime/device.h"
#include "cuda/tree/tree_kernels.h"

namespace per::cuda {
namespace {

__global__ void set_alpha_kernel(const __grid_constant__ DeviceReplay replay, double alpha) {
    const DevicePriorities& priorities = replay.priorities;
    replay.state->alpha = alpha;
    priorities.tree.state->plan = plan_rebuild;
    if (has_ranks(priorities)) priorities.ranks.state->n_changes = ranks_never_taken;
}

__global__ void __launch_bounds__(n_threads, 1) write_leaves_kernel(const __grid_constant__ DeviceReplay replay) {
    const DevicePriorities& priorities = replay.priorities;
    const double alpha = replay.state->alpha;
    const GridSpan span = grid_span();
    for (int64_t slot = span.first; slot < priorities.tree.capacity; slot += span.step)
        priorities.tree.leaves[slot] = leaf_of(replay, slot, alpha);
}

__global__ void __launch_bounds__(n_threads, 1)
    rebase_leaves_kernel(const __grid_constant__ DeviceReplay replay, int64_t reference, int64_t raised) {
    const DeviceTree& tree = replay.priorities.tree;
    const GridSpan span = grid_span();
    for (int64_t slot = span.first; slot < tree.capacity; slot += span.step)
        tree.leaves[slot] = rebased_leaf(tree.leaves[slot], raised);
    if (span.first == 0) replay.state->freshness.reference = reference;
}

__global__ void empty_kernel(const __grid_constant__ DeviceReplay replay) {
    replay.state->n_live = 0;
    if (has_ranks(replay.priorities)) *replay.priorities.ranks.state = {0, ranks_never_taken};
}

__global__ void __launch_bounds__(n_threads, 1)
    refresh_live_maximum_level(const __grid_constant__ DeviceReplay replay, int level) {
    const GridSpan span = grid_span();
    for (int64_t node = span.first; node < replay.priorities.live_maximum.n_nodes[level]; node += span.step)
        refresh_live_maximum(replay.priorities, level, node);
}

__global__ void __launch_bounds__(n_threads, 1)
    refresh_smallest_leaf_level(const __grid_constant__ DeviceReplay replay, int level) {
    const GridSpan span = grid_span();
    for (int64_t node = span.first; node < replay.priorities.smallest_leaf.n_nodes[level]; node += span.step)
        refresh_smallest_leaf(replay.priorities, level, node);
}

__global__ void __launch_bounds__(n_threads, 1)
    refresh_live_level(const __grid_constant__ DeviceReplay replay, int level) {
    const DeviceLive& live = replay.priorities.live;
    refresh_level(live, level, true, [&](int64_t word) { return static_cast<uint64_t>(__popc(live.words[word])); });
}

void queue_maximum(const DeviceReplay& replay, const DeviceMaximum& maximum, void (*refresh)(DeviceReplay, int),
                   cudaStream_t stream) {
    for (int level = 0; level < maximum.n_levels; ++level)
        launch(stream, blocks_for(maximum.n_nodes[level]), n_threads, refresh, replay, level);
}

void queue_reset(const DeviceMaximum& maximum, cudaStream_t stream) {
    for (int level = 0; level < maximum.n_levels; ++level) {
        const std::size_t n_bytes = static_cast<std::size_t>(maximum.n_nodes[level]) * sizeof(uint32_t);
        check(cudaMemsetAsync(maximum.levels[level], 0, n_bytes, stream), "clearing maxima");
    }
}

void queue_reset(const DeviceRanks& ranks, int64_t capacity, cudaStream_t stream) {
    check(cudaMemsetAsync(ranks.buckets, 0, static_cast<std::size_t>(capacity) * sizeof(uint32_t), stream),
          "clearing ranks");
    check(cudaMemsetAsync(ranks.counts, 0, n_rank_buckets * sizeof(uint64_t), stream), "clearing ranks");
    queue_reset(ranks.tree, stream);
}

}  // namespace

void queue_alpha(const DeviceReplay& replay, double alpha, cudaStream_t stream) {
    launch(stream, 1, 1, set_alpha_kernel, replay, alpha);
    launch(stream, blocks_for(replay.capacity), n_threads, write_leaves_kernel, replay);
    queue_rebuild(replay.priorities.tree, stream);
    queue_smallest_leaves(replay, stream);
}

void queue_reference(const DeviceReplay& replay, int64_t reference, int64_t raised, cudaStream_t stream) {
    launch(stream, blocks_for(replay.capacity), n_threads, rebase_leaves_kernel, replay, reference, raised);
    queue_smallest_leaves(replay, stream);
}

void queue_no_priorities(const DeviceReplay& replay, cudaStream_t stream) {
    const DevicePriorities& priorities = replay.priorities;
    queue_zeros(priorities.live, priorities.live.words + priorities.live.n_nodes[0], "clearing the live set", stream);
    queue_reset(priorities.tree, stream);
    queue_reset(priorities.live_maximum, stream);
    queue_reset(priorities.smallest_leaf, stream);
    if (has_ranks(priorities)) queue_reset(priorities.ranks, replay.capacity, stream);
    launch(stream, 1, 1, empty_kernel, replay);
}

void queue_restored_priorities(const DeviceReplay& replay, int32_t scale, uint64_t rescales_below,
                               cudaStream_t stream) {
    const DevicePriorities& priorities = replay.priorities;
    for (int level = 1; level < priorities.live.n_levels; ++level)
        launch(stream, blocks_for(priorities.live.n_nodes[level - 1]), n_threads, refresh_live_level, replay, level);
    launch(stream, blocks_for(replay.capacity), n_threads, write_leaves_kernel, replay);
    queue_rebuild_at(priorities.tree, scale, rescales_below, stream);
    queue_maximum(replay, priorities.live_maximum, refresh_live_maximum_level, stream);
    queue_smallest_leaves(replay, stream);
}

void queue_smallest_leaves(const DeviceReplay& replay, cudaStream_t stream) {
    queue_maximum(replay, replay.priorities.smallest_leaf, refresh_smallest_leaf_level, stream);
}

void load_all_priority_kernels() {
    load_kernels(set_alpha_kernel, write_leaves_kernel, rebase_leaves_kernel, empty_kernel, refresh_live_maximum_level,
                 refresh_smallest_leaf_level, refresh_live_level);
}

}  // namespace per::cuda

#include "cuda/replay/ranks.h"

#include "cuda/replay/priorities.h"
#include "cuda/tree/tree_change.h"
#include "cuda/tree/tree_kernels.h"

namespace per::cuda {
namespace {

constexpr int32_t buckets_per_thread = (n_rank_buckets + n_threads - 1) / n_threads;

// Computes the weight of the transitions in each bucket of priorities from their ranks. One block calls it; each thread
// takes consecutive buckets, from the largest priority down.
__device__ __forceinline__ void weigh_buckets(const DeviceRanks& ranks, double alpha, TopRow& row) {
    const int32_t first = static_cast<int32_t>(threadIdx.x) * buckets_per_thread;
    const int32_t end = first + buckets_per_thread < n_rank_buckets ? first + buckets_per_thread : n_rank_buckets;
    uint64_t count = 0;
    for (int32_t i = first; i < end; ++i) count += ranks.counts[n_rank_buckets - 1 - i];
    int64_t rank = static_cast<int64_t>(sum_before(count, row.nodes));
    for (int32_t i = first; i < end; ++i) {
        const int32_t bucket = n_rank_buckets - 1 - i;
        const int64_t n = static_cast<int64_t>(ranks.counts[bucket]);
        ranks.weights[bucket] = mean_rank_weight(rank, n, alpha);
        rank += n;
    }
}

__device__ __forceinline__ void write_weights(const DeviceRanks& ranks) {
    const GridSpan span = grid_span();
    for (int64_t slot = span.first; slot < ranks.tree.capacity; slot += span.step)
        ranks.tree.leaves[slot] = weight_of(ranks, ranks.buckets[slot]);
}

__global__ void __launch_bounds__(n_threads, 1)
    take_ranks_kernel(const __grid_constant__ DeviceReplay replay, LeastToDraw least) {
    PER_SHARED(TopRow, row);
    const DeviceRanks& ranks = replay.priorities.ranks;
    const ReplayState& state = *replay.state;
    if (state.n_live < least.live || state.rules.n_step < least.n_step) return;
    if (!ranks_are_due(ranks.state->n_changes, ranks.state->n_live)) return;
    if (blockIdx.x == 0) weigh_buckets(ranks, state.alpha, row);
    meet(ranks.tree.state->meeting, [&] {
        ranks.state->n_changes = 0;
        ranks.tree.state->plan = plan_rebuild;
    });
    write_weights(ranks);
    meet(ranks.tree.state->meeting);
    rebuild(ranks.tree);
}

// ---- all ranks

__global__ void __launch_bounds__(n_threads, 1) fill_buckets_kernel(const __grid_constant__ DeviceReplay replay) {
    const DevicePriorities& priorities = replay.priorities;
    RankChanges changes;
    const GridSpan span = grid_span();
    for (int64_t slot = span.first; slot < priorities.tree.capacity; slot += span.step)
        changes.add(move_to_bucket(priorities.ranks, slot, bucket_of(priorities, slot)));
    add_to_ranks(priorities.ranks, changes);
}

__global__ void set_n_changes_kernel(RankState* state, int64_t n_changes) {
    state->n_changes = n_changes;
}

__global__ void __launch_bounds__(n_threads, 1) write_weights_kernel(const __grid_constant__ DeviceReplay replay) {
    write_weights(replay.priorities.ranks);
}

}  // namespace

void queue_ranks(const DeviceReplay& replay, cudaStream_t stream) {
    queue_forget_ranks(replay, stream);
    launch(stream, blocks_for(replay.capacity), n_threads, fill_buckets_kernel, replay);
}

void queue_forget_ranks(const DeviceReplay& replay, cudaStream_t stream) {
    launch(stream, 1, 1, set_n_changes_kernel, replay.priorities.ranks.state, ranks_never_taken);
}

void queue_take_ranks_if_due(const DeviceReplay& replay, const LeastToDraw& least, cudaStream_t stream) {
    launch_together(stream, {blocks_for(replay.capacity, n_threads, replay.priorities.tree.max_blocks)},
                    take_ranks_kernel, replay, least);
}

void queue_restored_ranks(const DeviceReplay& replay, int64_t n_changes, int32_t scale, uint64_t rescales_below,
                          cudaStream_t stream) {
    const DeviceRanks& ranks = replay.priorities.ranks;
    launch(stream, 1, 1, set_n_changes_kernel, ranks.state, n_changes);
    launch(stream, blocks_for(replay.capacity), n_threads, write_weights_kernel, replay);
    queue_rebuild_at(ranks.tree, scale, rescales_below, stream);
}

void load_rank_kernels() {
    load_kernels(take_ranks_kernel, fill_buckets_kernel, set_n_changes_kernel, write_weights_kernel);
}

}  // namespace per::cuda

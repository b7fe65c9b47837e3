#include "cuda/tree/tree_kernels.h"

#include <cfloat>
#include <type_traits>

#include "cuda/tree/tree_change.h"

namespace per::cuda {
namespace {

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

// One number counts the bad entries of both arrays: bad indices in its lower 32 bits, bad priorities in its upper bits.
// A call has fewer than 2^32 entries.
constexpr int bits_of_count = 32;
constexpr uint64_t one_bad_index = 1;
constexpr uint64_t one_bad_priority = uint64_t{1} << bits_of_count;

// ---- the parts of an update, between which the blocks meet

// Claims leaves. If several entries have the same index, the last one wins.
template <class Entries>
__device__ __forceinline__ void claim_leaves(const DeviceTree& tree, const Batch& batch, Entries& entries) {
    uint64_t n_bad = 0;
    for_each_of<Entries::at_most_one>(grid_span(), batch.count, [&](int64_t i) {
        const int64_t index = read_once(batch.indices[i]);
        const float priority = read_once(batch.priorities[i]);
        const bool counts = is_good(tree, index, priority);
        entries.set(i, {counts ? index : -1, priority + 0.0f});  // -0 becomes 0
        if (counts)
            atomicMax(&tree.claims[index], static_cast<uint32_t>(i + 1));
        else
            n_bad += is_index(tree, index) ? one_bad_priority : one_bad_index;
    });
    n_bad = sum_of_warp(n_bad);
    if (lane_of_thread() != 0 || n_bad == 0) return;
    const auto count = [&](TreeArgument argument, uint64_t n) {
        add_if_any(&tree.state->n_bad_entries[static_cast<int>(argument)], n);
    };
    count(TreeArgument::indices, n_bad & (one_bad_priority - 1));
    count(TreeArgument::priorities, n_bad >> bits_of_count);
}

// The entry that holds the claim writes its leaf and ends the claim.
template <class Entries, class Top>
__device__ __forceinline__ void write_leaves(const DeviceTree& tree, const Batch& batch, const Entries& entries,
                                             Top& top) {
    const double factor = power_of_two(tree.state->scale);
    MassChanges<Entries::at_most_one> changes;
    for_each_of<Entries::at_most_one>(grid_span(), batch.count, [&](int64_t i) {
        const UpdateEntry entry = entries[i];
        if (entry.index < 0) return;
        const uint32_t claim = static_cast<uint32_t>(i + 1);
        if (atomicCAS(&tree.claims[entry.index], claim, 0u) == claim)
            changes.add(write_leaf(tree, factor, entry.index, entry.priority, top));
    });
    note_changes(tree, changes);
    write_top(tree, top);
}

// in_a_block: one block, which may be a large one, has a thread for each entry.
template <bool in_a_block>
__global__ void __launch_bounds__(in_a_block ? large_block : n_threads, 1)
    update_kernel(const __grid_constant__ DeviceTree tree, Batch batch, UpdateEntry* others, bool rebuilds) {
    using Top = std::conditional_t<in_a_block, NoTopChanges, TopChanges>;
    PER_SHARED(Top, top);
    clear(top);
    EntriesOfThread<in_a_block> entries(grid_span().first, others);
    claim_leaves(tree, batch, entries);
    meet(tree.state->meeting);
    write_leaves(tree, batch, entries, top);
    meet(tree.state->meeting, [&] { finish_change<in_a_block>(tree); });
    rebuild(tree, rebuilds);
}

}  // namespace

void queue_update(const DeviceTree& tree, int64_t count, const int64_t* indices, const float* priorities,
                  UpdateEntry* entries, cudaStream_t stream) {
    const Grid grid = grid_of_large_block(tree, count);
    const bool rebuilds = rebuilds_itself(tree, grid);
    launch_together(stream, grid, count <= large_block ? update_kernel<true> : update_kernel<false>, tree,
                    Batch{count, indices, priorities}, entries, rebuilds);
    if (!rebuilds) queue_rebuild(tree, stream);
}

void load_update_kernels() {
    load_kernels(update_kernel<true>, update_kernel<false>);
    load_rebuild_kernels();
}

}  // namespace per::cuda

// Finds the rows of a replay buffer that own units of its mass.
#include "cuda/draw/live_draw.h"

namespace per::cuda {
namespace {

struct UnitsShared {
    TopRow tree_row;
    TopRow live_row;
};

// The first unit of mass of a leaf: the sum of the masses before it. A warp adds it up.
__device__ __forceinline__ uint64_t first_unit(const DeviceTree& tree, const TopRow& row, double factor, int64_t leaf) {
    const unsigned lane = lane_of_thread();
    int64_t node = leaf / fan_out;
    uint64_t before = lane < leaf % fan_out ? leaf_mass(tree.leaves[node * fan_out + lane], factor) : 0;
    for (int level = 1; level < top_level(tree); ++level) {
        const int64_t parent = node / fan_out;
        before += lane < node % fan_out ? tree.sums[level][parent * fan_out + lane] : 0;
        node = parent;
    }
    return sum_of_warp(before) + sum_before_entry(row, node);
}

// A warp finds the row of a unit.
__global__ void __launch_bounds__(n_threads, 1)
    find_units_kernel(const __grid_constant__ DeviceReplay replay, const __grid_constant__ DrawMemory memory,
                      const __grid_constant__ UnitsPlan plan) {
    PER_SHARED(UnitsShared, shared);
    const DeviceTree& tree = replay.priorities.tree;
    load_top_row(tree, shared.tree_row);
    load_top_row(replay.priorities.live, shared.live_row);
    const double factor = power_of_two(tree.state->scale);
    const int64_t n_units = static_cast<int64_t>(tree.state->total);
    const int64_t n_live = replay.state->n_live;
    const Ring& ring = replay.state->rules.ring;
    const GridSpan span = warp_span();
    for (int64_t i = span.first; i < plan.n; i += span.step) {
        // One thread reads the unit for the whole warp, whose threads must agree on it even if the array changes
        // meanwhile.
        const int64_t unit = __shfl_sync(all_lanes, lane_of_thread() == 0 ? plan.units[i] : 0, 0);
        const bool is_there = unit >= -n_live && unit < n_units;
        int64_t slot = 0;
        if (is_there && unit < 0)
            slot = select(replay.priorities.live, shared.live_row, static_cast<uint64_t>(-1 - unit));
        else if (is_there)
            slot = find_leaf(tree, shared.tree_row, factor, static_cast<uint64_t>(unit)).index;
        const uint64_t first = first_unit(tree, shared.tree_row, factor, slot);
        if (lane_of_thread() != 0) continue;
        const int64_t env = ring.env_of_slot(slot);
        memory.found[i] = is_there ? ring.id(env, ring.row_of_slot(env, slot, replay.lanes[env].head)) : -1;
        if (plan.masses_out != nullptr) plan.masses_out[i] = is_there ? leaf_mass(tree.leaves[slot], factor) : 0;
        if (plan.first_units_out != nullptr) plan.first_units_out[i] = is_there ? first : 0;
    }
}

}  // namespace

void queue_find_units(const DeviceReplay& replay, const DrawMemory& memory, const UnitsPlan& plan,
                      cudaStream_t stream) {
    launch(stream, blocks_for(plan.n, n_warps, max_draw_blocks), n_threads, find_units_kernel, replay, memory, plan);
}

void load_unit_kernels() {
    load_kernels(find_units_kernel);
}

}  // namespace per::cuda

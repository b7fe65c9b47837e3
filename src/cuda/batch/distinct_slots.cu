#include "cuda/batch/draw.h"
#include "cuda/tree/distinct_rounds.h"
#include "rules/mixture.h"

namespace per::cuda {
namespace {

struct Shared {
    TopRow tree_row;
    TopRow live_row;
    DistinctShared draws;
};

// A mixture with a uniform part, or all of it; see cpu/mixture_draw.h. Rows leave tree and live set for the time of the
// draw.
struct MixtureSource {
    const DeviceTree& tree;
    const DeviceLive& live;
    TopRow& tree_row;
    TopRow& live_row;
    double factor;
    double uniform_fraction;
    double n_live;
    double mass;

    __device__ __forceinline__ void load() {
        load_top_row(tree, tree_row);
        load_top_row(live, live_row);
    }
    __device__ __forceinline__ bool has_any() const { return total_of(live_row) != 0; }
    __device__ __forceinline__ double uniform_left() const {
        return uniform_fraction * (static_cast<double>(total_of(live_row)) / n_live);
    }
    __device__ __forceinline__ double share_left() const {
        const double rest = static_cast<double>(total_of(tree_row));
        return uniform_left() + (rest > 0.0 ? (1.0 - uniform_fraction) * (rest / mass) : 0.0);
    }
    __device__ __forceinline__ int64_t find(const DrawRequest& round, int64_t i) const {
        const uint64_t uniform = uniform_units(uniform_left() / share_left());
        const uint64_t target = draw_target(round, static_cast<uint64_t>(i), 0, mixture_units);
        if (target < uniform) return select(live, live_row, rescaled_target(target, uniform, total_of(live_row)));
        const uint64_t unit = rescaled_target(target - uniform, mixture_units - uniform, total_of(tree_row));
        return find_leaf(tree, tree_row, factor, unit).index;
    }
    __device__ __forceinline__ void take_out(int64_t index) const {
        toggle_leaf(tree, index, factor);
        erase(live, index);
    }
    __device__ __forceinline__ void put_back(int64_t index) const {
        toggle_leaf(tree, index, factor);
        insert(live, index);
    }
};

__device__ __forceinline__ DistinctResult draw_slots(const DeviceReplay& replay, const DrawMemory& memory,
                                                     const DrawPlan& plan, Shared& shared) {
    const uint64_t mass = plan.tree.state->total;
    const bool by_priority = plan.prioritization != PER_UNIFORM && mass != 0;
    const double factor = power_of_two(plan.tree.state->scale);
    const DistinctFound out = {plan.rows.n, memory.found, plan.tree.claims};
    const DrawRequest request = {plan.rows.n, PER_INDEPENDENT, replay.seed, replay.state->batches};
    if (by_priority && plan.uniform_fraction == 0.0) {
        TreeSource source = {plan.tree, shared.tree_row, factor, static_cast<double>(mass)};
        return draw_distinct(source, shared.draws, out, request);
    }
    MixtureSource source = {plan.tree,
                            replay.priorities.live,
                            shared.tree_row,
                            shared.live_row,
                            factor,
                            by_priority ? plan.uniform_fraction : 1.0,
                            static_cast<double>(replay.state->n_live),
                            static_cast<double>(mass)};
    return draw_distinct(source, shared.draws, out, request);
}

__global__ void __launch_bounds__(distinct_threads, 1)
    distinct_slots_kernel(const __grid_constant__ DeviceReplay replay, const __grid_constant__ DrawMemory memory,
                          const __grid_constant__ DrawPlan plan) {
    PER_SHARED(Shared, shared);
    DistinctResult result = {replay.state->n_live, 0.0};
    if (replay.state->n_live >= plan.rows.n) result = draw_slots(replay, memory, plan, shared);
    if (threadIdx.x != 0) return;
    memory.facts->n_draws = result.n_draws;
    memory.facts->n_found = result.n_found < plan.rows.n ? result.n_found : plan.rows.n;
}

}  // namespace

void queue_distinct_slots(const DeviceReplay& replay, const DrawMemory& memory, const DrawPlan& plan,
                          cudaStream_t stream) {
    launch(stream, 1, distinct_threads, distinct_slots_kernel, replay, memory, plan);
}

void load_distinct_slot_kernels() {
    load_kernels(distinct_slots_kernel);
}

}  // namespace per::cuda

#include "cuda/batch/draw.h"

#include "cuda/batch/smallest_mass.h"
#include "rules/draw_shares.h"
#include "rules/random.h"

namespace per::cuda {
namespace {

constexpr int64_t max_copy_blocks = 4096;
// Up to so many rows the block that ends last weighs them all: beyond, another launch takes less time.
constexpr int64_t most_weights_of_a_block = 1024;

struct FinishShared {
    BlockFigures of_warp[n_warps];
    uint32_t smallest_bucket;
};

struct Shared {
    TopRow tree_row;
    TopRow live_row;
    FinishShared finish;
    bool is_last;
};

// The windows of live rows are complete for the n_step that the buffer has now. A graph may have been captured when
// that was more.
__device__ __forceinline__ bool has_windows(const DeviceReplay& replay, const DrawPlan& plan) {
    return plan.rows.rules.n_step <= replay.state->rules.n_step;
}

__device__ __forceinline__ bool can_draw(const DeviceReplay& replay, const DrawMemory& memory, const DrawPlan& plan) {
    if (!has_windows(replay, plan)) return false;
    return plan.is_distinct() ? memory.facts->n_found == plan.rows.n : replay.state->n_live != 0;
}

__device__ __forceinline__ DrawShares shares_of_draw(const DeviceReplay& replay, const DrawMemory& memory,
                                                     const DrawPlan& plan) {
    const uint64_t mass = plan.tree.state->total;
    const bool by_priority = plan.prioritization != PER_UNIFORM && mass != 0;
    return {plan.rows.n,
            plan.is_distinct(),
            by_priority ? plan.uniform_fraction : 1.0,
            static_cast<double>(replay.state->n_live),
            static_cast<double>(mass),
            plan.is_distinct() ? memory.facts->n_draws : 0.0};
}

// ---- drawing

// The way to a slot: a unit of the tree's mass, or the rank of a live row.
struct Target {
    uint64_t unit;
    bool is_rank;
};

__device__ __forceinline__ Target target_of(const DrawShares& law, const DrawRequest& request, int64_t i,
                                            uint64_t width, uint64_t n_live, uint64_t mass) {
    const bool is_mixture = !law.is_uniform() && law.uniform_fraction != 0.0;
    const uint64_t whole = is_mixture ? mixture_units : law.is_uniform() ? n_live : mass;
    const uint64_t target = draw_target(request, static_cast<uint64_t>(i), width, whole);
    if (!is_mixture) return {target, law.is_uniform()};
    const uint64_t uniform = uniform_units(law.uniform_fraction);
    if (target < uniform) return {rescaled_target(target, uniform, n_live), true};
    return {rescaled_target(target - uniform, mixture_units - uniform, mass), false};
}

// A warp, all lanes alike.
__device__ __forceinline__ int64_t draw_slot(const DeviceReplay& replay, const DrawPlan& plan, const Shared& shared,
                                             const Target& target, double factor) {
    if (target.is_rank) return select(replay.priorities.live, shared.live_row, target.unit);
    return find_leaf(plan.tree, shared.tree_row, factor, target.unit).index;
}

__device__ __forceinline__ BlockFigures no_figures() {
    return {bit_cast<double>(uint64_t{0x7ff0000000000000}), 0, 0};
}

__device__ __forceinline__ void add(BlockFigures& figures, const BlockFigures& other) {
    if (other.smallest_share < figures.smallest_share) figures.smallest_share = other.smallest_share;
    if (other.largest_age > figures.largest_age) figures.largest_age = other.largest_age;
    figures.sum_of_ages += other.sum_of_ages;
}

// The figures of all warps of the block, each warp having its own. All threads call it, and all have the result.
__device__ __forceinline__ BlockFigures add_up_block(FinishShared& shared, const BlockFigures& of_warp) {
    if (lane_of_thread() == 0) shared.of_warp[threadIdx.x / warp_size] = of_warp;
    __syncthreads();
    BlockFigures figures = shared.of_warp[0];
    for (int64_t warp = 1; warp < n_warps; ++warp) add(figures, shared.of_warp[warp]);
    __syncthreads();
    return figures;
}

// Of the rows of this block.
template <class Row>
__device__ __forceinline__ BlockFigures draw_rows(const DeviceReplay& replay, const DrawMemory& memory,
                                                  const DrawPlan& plan, const FrameCopies& copies, Shared& shared) {
    const DrawShares law = shares_of_draw(replay, memory, plan);
    if (!law.is_distinct && !law.is_uniform()) load_top_row(plan.tree, shared.tree_row);
    if (!law.is_distinct && law.uniform_fraction != 0.0) load_top_row(replay.priorities.live, shared.live_row);
    const DrawRequest request = {plan.rows.n, plan.scheme, replay.seed, replay.state->batches};
    // As doubles the law's own may be rounded.
    const uint64_t n_live = static_cast<uint64_t>(replay.state->n_live);
    const uint64_t mass = plan.tree.state->total;
    const double factor = power_of_two(plan.tree.state->scale);
    const double total = law.total();
    BlockFigures figures = no_figures();
    const GridSpan span = warp_span();
    for (int64_t i = span.first; i < plan.rows.n; i += span.step) {
        const int64_t slot = law.is_distinct ? memory.found[i]
                                             : draw_slot(replay, plan, shared,
                                                         target_of(law, request, i, plan.width, n_live, mass), factor);
        const double share = law.share_of(static_cast<double>(leaf_mass(plan.tree.leaves[slot], factor)));
        Row row;
        const int64_t age = write_row(replay, plan.rows, i, slot, row);
        add(figures, {share, age, age});
        if (plan.copies_rows) copy_small_row(copies, plan.rows.rules, row, i);
        if (lane_of_thread() != 0) continue;
        memory.slots[i] = slot;
        memory.shares[i] = share;
        memory.rows_of<Row>()[i] = row;
        if (plan.rows.batch.probabilities != nullptr)
            plan.rows.batch.probabilities[i] = static_cast<float>(share / total);
    }
    return add_up_block(shared.finish, figures);
}

template <class Row>
__device__ __forceinline__ void write_no_rows(const DrawMemory& memory, const DrawPlan& plan,
                                              const FrameCopies& copies) {
    const GridSpan span = warp_span();
    for (int64_t i = span.first; i < plan.rows.n; i += span.step) {
        Row row;
        write_no_row(plan.rows, i, row);
        if (plan.copies_rows) copy_small_row(copies, plan.rows.rules, row, i);
        if (lane_of_thread() != 0) continue;
        memory.rows_of<Row>()[i] = row;
        if (plan.rows.batch.probabilities != nullptr) plan.rows.batch.probabilities[i] = 0.0f;
    }
}

// ---- weighing

// Of all rows of the batch: the figures of so many blocks.
__device__ __forceinline__ BlockFigures add_up_blocks(const DrawMemory& memory, int64_t n_blocks,
                                                      FinishShared& shared) {
    BlockFigures figures = no_figures();
    for (int64_t block = threadIdx.x; block < n_blocks; block += n_threads) add(figures, memory.blocks[block]);
    for (int bits = warp_size / 2; bits != 0; bits /= 2)
        add(figures, {__shfl_xor_sync(all_lanes, figures.smallest_share, bits),
                      __shfl_xor_sync(all_lanes, figures.sum_of_ages, bits),
                      __shfl_xor_sync(all_lanes, figures.largest_age, bits)});
    return add_up_block(shared, figures);
}

// The batch counts, and is the last one.
__device__ __forceinline__ void count_draw(const DeviceReplay& replay, const DrawMemory& memory, const DrawPlan& plan,
                                           const BlockFigures& figures, double reference, double beta) {
    ReplayState& state = *replay.state;
    state.last = {plan.rows.n, figures.largest_age, figures.sum_of_ages, beta, reference, memory.slots, memory.shares};
    if (plan.is_ahead()) *plan.outcome_out = {state.n_live, plan.rows.n};
    ++state.batches;
    if (plan.beta != plan.beta) ++state.beta.step;
    if (plan.beta != plan.beta && plan.is_ahead()) ++state.n_ahead;
}

// By one thread.
__device__ __forceinline__ void count_no_draw(const DeviceReplay& replay, const DrawMemory& memory,
                                              const DrawPlan& plan) {
    ReplayErrors& errors = replay.state->errors;
    if (plan.is_ahead())
        *plan.outcome_out = {replay.state->n_live, memory.facts->n_found};
    else if (replay.state->n_live == 0)
        ++errors.n_empty_draws;
    else
        ++(has_windows(replay, plan) ? errors.n_short_draws : errors.n_outdated_draws);
}

// Weights, by the threads of `span`; one block ends the draw.
__device__ __forceinline__ void finish_draw(const DeviceReplay& replay, const DrawMemory& memory, const DrawPlan& plan,
                                            int64_t n_draw_blocks, const GridSpan& span, bool ends_draw,
                                            FinishShared& shared) {
    const bool is_drawn = can_draw(replay, memory, plan);
    const double beta = memory.facts->beta;
    float* const weights = plan.rows.batch.weights;
    if (!is_drawn) {
        for (int64_t i = span.first; weights != nullptr && i < plan.rows.n; i += span.step) weights[i] = 0.0f;
        if (ends_draw && threadIdx.x == 0) count_no_draw(replay, memory, plan);
        return;
    }
    const DrawShares law = shares_of_draw(replay, memory, plan);
    const BlockFigures figures = add_up_blocks(memory, n_draw_blocks, shared);
    const double reference =
        plan.normalize_weights == PER_BATCH_MAX ? figures.smallest_share : law.reference(plan.normalize_weights, [&] {
            return smallest_mass(replay, plan.prioritization, shared.smallest_bucket);
        });
    const double log2_reference = log2_of<double, uint64_t>(reference);
    for (int64_t i = span.first; weights != nullptr && i < plan.rows.n; i += span.step)
        weights[i] = static_cast<float>(importance_weight_of<double, uint64_t>(log2_reference, memory.shares[i], beta));
    if (ends_draw && threadIdx.x == 0) count_draw(replay, memory, plan, figures, reference, beta);
}

// ---- kernels

template <class Row>
__global__ void __launch_bounds__(n_threads, 2)
    draw_kernel(const __grid_constant__ DeviceReplay replay, const __grid_constant__ DrawMemory memory,
                const __grid_constant__ DrawPlan plan, const __grid_constant__ FrameCopies copies) {
    PER_SHARED(Shared, shared);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        const ReplayState& state = *replay.state;
        const int64_t step = plan.is_ahead() ? state.beta.step : state.beta_step();
        memory.facts->beta = plan.beta != plan.beta ? state.beta.beta(step) : plan.beta;
    }
    if (can_draw(replay, memory, plan)) {
        const BlockFigures figures = draw_rows<Row>(replay, memory, plan, copies, shared);
        if (threadIdx.x == 0) memory.blocks[blockIdx.x] = figures;
    } else {
        write_no_rows<Row>(memory, plan, copies);
    }
    if (!plan.last_block_weighs) return;
    __syncthreads();
    if (threadIdx.x == 0) shared.is_last = arrive(&memory.facts->n_arrived) == gridDim.x - 1;
    __syncthreads();
    if (!shared.is_last) return;
    if (threadIdx.x == 0) memory.facts->n_arrived = 0;
    finish_draw(replay, memory, plan, gridDim.x, {threadIdx.x, n_threads}, true, shared.finish);
}

__global__ void __launch_bounds__(n_threads, 1)
    weigh_kernel(const __grid_constant__ DeviceReplay replay, const __grid_constant__ DrawMemory memory,
                 const __grid_constant__ DrawPlan plan, int64_t n_draw_blocks) {
    PER_SHARED(FinishShared, shared);
    finish_draw(replay, memory, plan, n_draw_blocks, grid_span(), blockIdx.x == 0, shared);
}

template <class Row>
__global__ void __launch_bounds__(n_threads, 1)
    copy_kernel(const __grid_constant__ RowPlan plan, const __grid_constant__ DrawMemory memory,
                const __grid_constant__ FrameCopies copies) {
    copy_rows(copies, plan.rules, memory.rows_of<Row>(), plan.n);
}

}  // namespace

template <class Row>
void queue_sample(const DeviceReplay& replay, const DrawMemory& memory, DrawPlan plan, const FrameCopies& copies,
                  cudaStream_t stream) {
    const int64_t n = plan.rows.n;
    plan.width = stratum_width(n);
    plan.last_block_weighs = n <= most_weights_of_a_block;
    if (plan.is_distinct()) queue_distinct_slots(replay, memory, plan, stream);
    const int64_t n_draw_blocks = blocks_for(n, n_warps, max_draw_blocks);
    launch(stream, n_draw_blocks, n_threads, draw_kernel<Row>, replay, memory, plan, copies);
    if (plan.last_block_weighs) return;
    launch(stream, blocks_for(n), n_threads, weigh_kernel, replay, memory, plan, n_draw_blocks);
}

template <class Row>
void queue_copies(const RowPlan& plan, const DrawMemory& memory, const FrameCopies& copies, cudaStream_t stream) {
    launch(stream, blocks_for(plan.n * copies.by_chunks.value(), n_warps, max_copy_blocks), n_threads, copy_kernel<Row>,
           plan, memory, copies);
}

template void queue_sample<GatherRow>(const DeviceReplay&, const DrawMemory&, DrawPlan, const FrameCopies&,
                                      cudaStream_t);
template void queue_sample<SequenceRow>(const DeviceReplay&, const DrawMemory&, DrawPlan, const FrameCopies&,
                                        cudaStream_t);
template void queue_copies<GatherRow>(const RowPlan&, const DrawMemory&, const FrameCopies&, cudaStream_t);
template void queue_copies<SequenceRow>(const RowPlan&, const DrawMemory&, const FrameCopies&, cudaStream_t);

void load_sample_kernels() {
    load_kernels(draw_kernel<GatherRow>, draw_kernel<SequenceRow>, weigh_kernel, copy_kernel<GatherRow>,
                 copy_kernel<SequenceRow>);
    load_distinct_slot_kernels();
}

}  // namespace per::cuda

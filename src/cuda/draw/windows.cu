// Writes rows by id as if they had been drawn.
#include <cstdint>

#include "cuda/draw/draw_law.h"
#include "cuda/draw/live_draw.h"

namespace per::cuda {
namespace {

__device__ __forceinline__ DrawLaw law_of_windows(const DeviceReplay& replay, const DrawMemory& memory,
                                                  const WindowsPlan& plan) {
    DrawLaw law = law_of_draw(replay, memory, plan.draw);
    if (plan.n_of_epoch != 0) law.n_live = static_cast<double>(plan.n_of_epoch);
    return law;
}

// The share of the row in a slot; no_share() for slot -1 or a share of 0.
__device__ __forceinline__ double share_of_slot(const DrawPlan& plan, const DrawLaw& law, double factor, int64_t slot) {
    if (slot < 0) return no_share();
    const double share = law.share_of(static_cast<double>(leaf_mass(plan.tree.leaves[slot], factor)));
    return share > 0.0 ? share : no_share();
}

template <class Row>
__global__ void __launch_bounds__(n_threads, 1)
    windows_kernel(const __grid_constant__ DeviceReplay replay, const __grid_constant__ DrawMemory memory,
                   const __grid_constant__ WindowsPlan plan) {
    PER_SHARED(FinishShared, shared);
    const RowPlan& rows = plan.draw.rows;
    const DrawLaw law = law_of_windows(replay, memory, plan);
    const double factor = power_of_two(plan.draw.tree.state->scale);
    const double total = law.total();
    const bool has_all = has_windows(replay, plan.draw);
    double smallest = no_share();
    const GridSpan span = warp_span();
    for (int64_t i = span.first; i < rows.n; i += span.step) {
        const RowOfId found = row_of_id(replay, rows.rules, plan.ids[i]);
        __syncwarp();  // the slot or the id that is written may overwrite the id that is read
        const bool is_written = has_all && found.is_there && is_live(replay.priorities.live, found.slot);
        const int64_t slot = is_written ? found.slot : -1;
        Row row;
        if (is_written)
            write_row(replay, rows, i, slot, row, [](const Row&) {});
        else
            write_no_row(rows, i, row);
        const double share = share_of_slot(plan.draw, law, factor, slot);
        smallest = smaller(smallest, share);
        if (lane_of_thread() != 0) continue;
        memory.found[i] = slot;
        memory.rows_of<Row>()[i] = row;
        write_times_sampled(replay, rows.batch, i, slot);
        if (has_all && !is_written && !plan.skips_dead) atomic_add(&replay.state->errors.n_bad_ids, uint64_t{1});
        if (rows.batch.probabilities != nullptr)
            rows.batch.probabilities[i] = share == no_share() ? 0.0f : static_cast<float>(share / total);
    }
    smallest = smallest_of_block(smallest, shared.of_warp);
    if (threadIdx.x != 0) return;
    memory.smallest_shares[blockIdx.x] = smallest;
    if (blockIdx.x == 0 && !has_all) ++replay.state->errors.n_outdated_draws;
}

__global__ void __launch_bounds__(n_threads, 1)
    weigh_windows_kernel(const __grid_constant__ DeviceReplay replay, const __grid_constant__ DrawMemory memory,
                         const __grid_constant__ WindowsPlan plan, int64_t n_blocks) {
    PER_SHARED(FinishShared, shared);
    const ReplayState& state = *replay.state;
    const double beta = plan.draw.beta != plan.draw.beta ? state.beta.beta(state.beta_step()) : plan.draw.beta;
    const DrawLaw law = law_of_windows(replay, memory, plan);
    const double factor = power_of_two(plan.draw.tree.state->scale);
    const double reference = reference_of(
        replay, plan.draw, law, [&] { return smallest_of_blocks(memory, n_blocks, shared); }, shared);
    const double log2_reference = log2_of<double, uint64_t>(reference);
    const GridSpan span = grid_span();
    for (int64_t i = span.first; i < plan.draw.rows.n; i += span.step) {
        const double share = share_of_slot(plan.draw, law, factor, memory.found[i]);
        const double weight = importance_weight_of<double, uint64_t>(log2_reference, share, beta);
        plan.draw.rows.batch.weights[i] = share == no_share() ? 0.0f : static_cast<float>(weight);
    }
}

}  // namespace

void queue_windows(const DeviceReplay& replay, const DrawMemory& memory, const WindowsPlan& plan, cudaStream_t stream) {
    const int64_t n = plan.draw.rows.n;
    const int64_t n_blocks = blocks_for(n, n_warps, max_draw_blocks);
    launch(stream, n_blocks, n_threads, replay.has_sequences ? windows_kernel<SequenceRow> : windows_kernel<GatherRow>,
           replay, memory, plan);
    if (plan.draw.rows.batch.weights == nullptr) return;
    launch(stream, blocks_for(n), n_threads, weigh_windows_kernel, replay, memory, plan, n_blocks);
}

void load_window_kernels() {
    load_kernels(windows_kernel<GatherRow>, windows_kernel<SequenceRow>, weigh_windows_kernel);
}

}  // namespace per::cuda

// Writes the newest live rows of a replay buffer into the last rows of a batch.
#include <cstdint>

#include "cuda/draw/draw_law.h"
#include "cuda/draw/live_draw.h"

namespace per::cuda {
namespace {

struct NewestShared {
    uint64_t of_warp[warp_size];
    int64_t end;  // one past the largest id left
    int64_t n_found;
};

// Lowers shared.end until the id before it may be live; to 0 if no such id is left. The whole block calls it.
__device__ __forceinline__ void skip_gap(const DeviceReplay& replay, NewestShared& shared) {
    const WindowRules& rules = replay.state->rules;
    const Ring& ring = rules.ring;
    const int64_t end = shared.end;
    __syncthreads();
    if (threadIdx.x == 0) shared.end = 0;
    __syncthreads();
    for (int64_t env = threadIdx.x; env < replay.n_envs; env += n_threads) {
        const Lane lane = replay.lanes[env];
        const int64_t complete = complete_end(lane, rules);
        const int64_t below = end > env ? ring.row_of_id(end - 1 - env) + 1 : 0;
        const int64_t row = smaller(complete, below) - 1;
        if (row >= lane.tail) atomic_max(&shared.end, ring.id(env, row) + 1);
    }
    __syncthreads();
}

// Writes the slots of the n live rows with the largest ids, the largest first. At least n rows must be live. The whole
// block calls it.
__device__ __forceinline__ void find_newest(const DeviceReplay& replay, int64_t n, int64_t* slots_out,
                                            NewestShared& shared) {
    const Ring& ring = replay.state->rules.ring;
    if (threadIdx.x == 0) shared.end = INT64_MAX;
    __syncthreads();
    for (int64_t n_found = 0; n_found < n;) {
        skip_gap(replay, shared);
        const int64_t end = shared.end;
        if (end == 0) return;
        const int64_t id = end - 1 - static_cast<int64_t>(threadIdx.x);
        int64_t slot = -1;
        if (id >= 0) {
            const int64_t env = ring.env_of_id(id);
            const int64_t row = ring.row_of_id(id);
            const Lane lane = replay.lanes[env];
            const int64_t at = ring.slot(env, row);
            if (row >= lane.tail && row < lane.head && is_live(replay.priorities.live, at)) slot = at;
        }
        const int64_t place = n_found + static_cast<int64_t>(sum_before(slot >= 0 ? 1 : 0, shared.of_warp));
        if (slot >= 0 && place < n) slots_out[place] = slot;
        if (threadIdx.x == n_threads - 1) {
            shared.n_found = place + (slot >= 0 ? 1 : 0);
            shared.end = end > n_threads ? end - n_threads : 0;
        }
        __syncthreads();
        n_found = shared.n_found;
    }
}

// One block does it.
template <class Row>
__global__ void __launch_bounds__(n_threads, 1)
    newest_kernel(const __grid_constant__ DeviceReplay replay, const __grid_constant__ DrawMemory memory,
                  const __grid_constant__ DrawPlan plan, const __grid_constant__ FrameCopies copies) {
    PER_SHARED(NewestShared, shared);
    const bool is_drawn = can_draw(replay, memory, plan);
    if (is_drawn) find_newest(replay, plan.n_newest, memory.slots + plan.rows.n, shared);
    __syncthreads();
    const DrawLaw law = law_of_draw(replay, memory, plan);
    const double factor = power_of_two(plan.tree.state->scale);
    const per_batch& batch = plan.rows.batch;
    const GridSpan span = warp_span();
    for (int64_t i = plan.rows.n + span.first; i < plan.n_rows(); i += span.step) {
        const int64_t slot = is_drawn ? memory.slots[i] : 0;
        Row row;
        WrittenRow written = {};
        if (is_drawn)
            written = write_row(replay, plan.rows, i, slot, row, [](const Row&) {});
        else
            write_no_row(plan.rows, i, row);
        if (plan.copies_rows) copy_small_row(copies, plan.rows.rules, row, i);
        if (lane_of_thread() != 0) continue;
        memory.rows_of<Row>()[i] = row;
        if (is_drawn) memory.ages[i] = written.age;
        const double share = law.share_of(static_cast<double>(leaf_mass(plan.tree.leaves[slot], factor)));
        if (batch.weights != nullptr) batch.weights[i] = is_drawn ? 1.0f : 0.0f;
        if (batch.probabilities != nullptr)
            batch.probabilities[i] = is_drawn ? static_cast<float>(share / law.total()) : 0.0f;
    }
}

}  // namespace

void queue_newest(const DeviceReplay& replay, const DrawMemory& memory, const DrawPlan& plan, const FrameCopies& copies,
                  cudaStream_t stream) {
    launch(stream, 1, n_threads, replay.has_sequences ? newest_kernel<SequenceRow> : newest_kernel<GatherRow>, replay,
           memory, plan, copies);
}

void load_newest_kernels() {
    load_kernels(newest_kernel<GatherRow>, newest_kernel<SequenceRow>);
}

}  // namespace per::cuda

#include "cuda/batch/rows_by_id.h"

#include <algorithm>

#include "rows/element.h"

namespace per::cuda {
namespace {

constexpr int64_t max_row_blocks = 4096;

__device__ __forceinline__ void count_bad_id(const DeviceReplay& replay) {
    if (lane_of_thread() == 0) atomic_add(&replay.state->errors.n_bad_ids, uint64_t{1});
}

// ---- reading

// True if the row can be read as it was added.
__device__ __forceinline__ bool can_get(const DeviceReplay& replay, const RowPlan& plan, const RowOfId& row) {
    if (!row.is_there) return false;
    const uint8_t flags = replay.flags[row.slot];
    if (!(flags & row_is_step)) return false;
    return !plan.wishes.next || next_is_there(replay.lanes[row.env], row.k, flags);
}

__global__ void __launch_bounds__(n_threads, 1)
    get_kernel(const __grid_constant__ DeviceReplay replay, const __grid_constant__ DrawMemory memory,
               const __grid_constant__ RowPlan plan, const int64_t* ids) {
    const GridSpan span = warp_span();
    for (int64_t i = span.first; i < plan.n; i += span.step) {
        const RowOfId found = row_of_id(replay, plan.rules, ids[i]);
        GatherRow row;
        if (can_get(replay, plan, found)) {
            const Ring& ring = plan.rules.ring;
            const auto flags_of = [&](int64_t distance) {
                return replay.flags[ring.moved(found.env, found.slot, distance)];
            };
            const Return step = own_step(replay.rewards[found.slot], replay.state->gamma, replay.flags[found.slot]);
            row = gather_row(plan.rules, found.env, found.slot, step, plan.wishes, flags_of);
            if (lane_of_thread() == 0) {
                write_return(i, step, plan.batch);
                const bool live = is_live(replay.priorities.live, found.slot);
                write_id_and_priority(plan.batch, i, ids[i], live ? replay.priorities.given[found.slot] : 0.0f);
                write_times_sampled(replay, plan.batch, i, found.slot);
            }
        } else {
            count_bad_id(replay);
            place_nothing(row);
            if (lane_of_thread() == 0) {
                write_no_step(plan.batch, i);
                write_id_and_priority(plan.batch, i, -1, 0.0f);
                write_times_sampled(replay, plan.batch, i, -1);
            }
        }
        if (lane_of_thread() == 0) memory.rows_of<GatherRow>()[i] = row;
    }
}

__global__ void __launch_bounds__(n_threads, 1)
    single_steps_kernel(const __grid_constant__ DeviceReplay replay, const __grid_constant__ DrawMemory memory,
                        const __grid_constant__ RowPlan plan) {
    const GridSpan span = warp_span();
    for (int64_t i = span.first; i < plan.n; i += span.step) {
        const int64_t slot = memory.found[i];
        GatherRow row;
        write_row(replay, plan, i, slot, row, [](const GatherRow&) {});
        if (lane_of_thread() != 0) continue;
        memory.rows_of<GatherRow>()[i] = row;
        write_times_sampled(replay, plan.batch, i, slot);
        if (plan.batch.priorities != nullptr && !is_live(replay.priorities.live, slot)) plan.batch.priorities[i] = 0.0f;
    }
}

// ---- writing

// Finds the slot of each entry; -1 if it is skipped.
__global__ void __launch_bounds__(n_threads, 1)
    find_slots_kernel(const __grid_constant__ DeviceReplay replay, const __grid_constant__ WindowRules rules,
                      int64_t count, const int64_t* ids, int64_t* slots_out) {
    uint64_t n_bad = 0;
    uint64_t n_stale = 0;
    const GridSpan span = grid_span();
    for (int64_t i = span.first; i < count; i += span.step) {
        const RowOfId row = row_of_id(replay, rules, ids[i]);
        const bool is_there = row.is_there && (replay.flags[row.slot] & row_is_step) != 0;
        slots_out[i] = is_there ? row.slot : -1;
        n_bad += !row.is_issued;
        n_stale += row.is_issued && !is_there;
    }
    n_bad = sum_of_warp(n_bad);
    n_stale = sum_of_warp(n_stale);
    if (lane_of_thread() != 0) return;
    ReplayState& state = *replay.state;
    count_rejected_ids(state, n_bad);
    add_if_any(&state.counters.stale_updates, n_stale);
}

__device__ __forceinline__ CastElement cast_value(const FieldValues& given, int64_t i, int64_t element) {
    const std::byte* const from = given.values + i * given.bytes + element * dtype_size(given.dtype);
    return cast_element(from, given.dtype, given.field.dtype);
}

// A warp checks an entry, which is skipped if a value does not fit.
__global__ void __launch_bounds__(n_threads, 1)
    check_values_kernel(ReplayState* state, int64_t count, int64_t* slots, const __grid_constant__ FieldsSet fields) {
    const GridSpan span = warp_span();
    for (int64_t i = span.first; i < count; i += span.step) {
        if (slots[i] < 0) continue;
        bool fits = true;
        for (int32_t f = 0; f < fields.n; ++f) {
            const FieldValues& given = fields.fields[f];
            for (int64_t at = lane_of_thread(); given.piece_bytes == 0 && at < given.field.elements; at += warp_size)
                fits &= cast_value(given, i, at).fits;
        }
        if (__ballot_sync(all_lanes, !fits) == 0 || lane_of_thread() != 0) continue;
        slots[i] = -1;
        atomic_add(&state->errors.n_bad_values, uint64_t{1});
        atomic_add(&state->counters.rejected_updates, 1);
    }
}

__global__ void __launch_bounds__(n_threads, 1) claim_kernel(uint32_t* claims, int64_t count, const int64_t* slots) {
    const GridSpan span = grid_span();
    for (int64_t i = span.first; i < count; i += span.step)
        if (slots[i] >= 0) atomicMax(&claims[slots[i]], static_cast<uint32_t>(i + 1));
}

// True if entry i holds the claim on its row: it is the last entry with this id that is not skipped. If `ends_claim`,
// the claim ends.
__device__ __forceinline__ bool holds_claim(uint32_t* claim, int64_t i, bool ends_claim) {
    const uint32_t own = static_cast<uint32_t>(i + 1);
    return atomicCAS(claim, own, ends_claim ? 0u : own) == own;
}

// A warp calls it.
__device__ __forceinline__ void write_value(const FieldValues& given, int64_t i, int64_t slot) {
    const DeviceField& field = given.field;
    std::byte* const to = field.frames + slot * field.bytes;
    if (given.piece_bytes == 0) {
        const int32_t size = static_cast<int32_t>(dtype_size(field.dtype));
        for (int64_t at = lane_of_thread(); at < field.elements; at += warp_size)
            write_piece(to + at * size, size, {{cast_value(given, i, at).bits, 0}});
        return;
    }
    for (int64_t at = lane_of_thread() * given.piece_bytes; at < field.bytes;
         at += static_cast<int64_t>(warp_size) * given.piece_bytes)
        write_piece(to + at, given.piece_bytes, read_piece(given.values + i * given.bytes + at, given.piece_bytes));
}

// A warp writes an entry. The last launch of a call ends the claims.
__global__ void __launch_bounds__(n_threads, 1) set_kernel(uint32_t* claims, int64_t count, const int64_t* slots,
                                                           const __grid_constant__ FieldsSet fields, bool ends_claim) {
    const GridSpan span = warp_span();
    for (int64_t i = span.first; i < count; i += span.step) {
        const int64_t slot = slots[i];
        if (slot < 0) continue;
        int holds = 0;
        if (lane_of_thread() == 0) holds = holds_claim(&claims[slot], i, ends_claim);
        if (__shfl_sync(all_lanes, holds, 0) == 0) continue;
        for (int32_t f = 0; f < fields.n; ++f) write_value(fields.fields[f], i, slot);
    }
}

}  // namespace

void queue_single_steps(const DeviceReplay& replay, const DrawMemory& memory, const RowPlan& plan,
                        cudaStream_t stream) {
    launch(stream, blocks_for(plan.n, n_warps, max_row_blocks), n_threads, single_steps_kernel, replay, memory, plan);
}

void queue_get(const DeviceReplay& replay, const DrawMemory& memory, const RowPlan& plan, const int64_t* ids,
               cudaStream_t stream) {
    launch(stream, blocks_for(plan.n, n_warps, max_row_blocks), n_threads, get_kernel, replay, memory, plan, ids);
}

void queue_set(const DeviceReplay& replay, const DrawMemory& memory, const WindowRules& rules, int64_t count,
               const int64_t* ids, const std::vector<FieldsSet>& launches, cudaStream_t stream) {
    int64_t* const slots = memory.found;
    uint32_t* const claims = replay.priorities.tree.claims;
    const int64_t n_thread_blocks = blocks_for(count, n_threads, max_row_blocks);
    const int64_t n_warp_blocks = blocks_for(count, n_warps, max_row_blocks);
    launch(stream, n_thread_blocks, n_threads, find_slots_kernel, replay, rules, count, ids, slots);
    for (const FieldsSet& fields : launches)
        if (fields.has_casts)
            launch(stream, n_warp_blocks, n_threads, check_values_kernel, replay.state, count, slots, fields);
    launch(stream, n_thread_blocks, n_threads, claim_kernel, claims, count, slots);
    for (const FieldsSet& fields : launches)
        launch(stream, n_warp_blocks, n_threads, set_kernel, claims, count, slots, fields, &fields == &launches.back());
}

void load_rows_by_id_kernels() {
    load_kernels(get_kernel, single_steps_kernel, find_slots_kernel, check_values_kernel, claim_kernel, set_kernel);
}

}  // namespace per::cuda

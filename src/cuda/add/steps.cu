#include "cuda/add/steps.h"

#include "cuda/add/step_batch.h"
#include "cuda/add/step_frames.h"
#include "cuda/add/waiting_rows.h"

namespace per::cuda {
namespace {

// ---------------------------------------------------------------------------------------------------- taking steps

// What the CPU would refuse the whole call for; `lane` is as the step leaves it.
__device__ __forceinline__ StepRefusal refusal_of(const StepTask& task, const Lane& lane, const StepInput& step,
                                                  const StepOutcome& outcome, bool next_unavailable) {
    const DeviceReplay& replay = task.replay;
    const bool ends = step.terminated || step.truncated;
    if (ends && replay.autoreset == PER_AUTORESET_SAME_STEP && !task.steps.next_mask.are_given())
        return StepRefusal::next_mask;
    if (ends && !step.next_known && !next_unavailable) return StepRefusal::final_observation;
    if (!ends && !step.next_known && task.rules.store_next_observation) return StepRefusal::next_observation;
    if (outcome.is_cut && replay.on_gap == PER_GAP_ERROR) return StepRefusal::gap;
    const bool fits = used_end(lane, task.rules) - lane.first <= task.rules.ring.rows;
    return replay.overwrite || fits ? StepRefusal::none : StepRefusal::full;
}

__device__ __forceinline__ void count(uint64_t* at, int n) {
    if (lane_of_thread() == 0) atomic_add(at, static_cast<uint64_t>(n));
}

__device__ __forceinline__ void refuse(StepTask& task, StepRefusal refusal) {
    count(&task.replay.state->errors.n_refused(refusal), 1);
    ++task.counters.rejected_updates;
}

// Steps of a batch that are taken together: bits first .. first + count - 1.
struct StepRun {
    int first;
    int count;

    __device__ __forceinline__ uint32_t bits() const { return (all_lanes >> (warp_size - count)) << first; }
};

// The priority that a row takes which becomes live at a step without one.
__device__ __forceinline__ float otherwise_at(const StepTask& task, int64_t step) {
    return task.steps.rows_wait() ? waiting_since(step) : task.otherwise;
}

// Counts what is given with steps, of which the thread's own has `own_bits`, or 0 if no row of its own takes it.
__device__ __forceinline__ void take_priorities(StepTask& task, const StepBatch& batch, const StepRun& run,
                                                uint32_t own_bits, const StepScratch& scratch) {
    if (const int n_bad = __popc(run.bits() & ~batch.rated); n_bad != 0) {
        task.counters.rejected_updates += n_bad;
        count(&task.replay.state->errors.n_bad_priorities, n_bad);
    }
    if (own_bits > task.largest_bits && task.steps.rows_wait())
        atomicMax(&scratch.largest_of_step[batch.first + lane_of_thread()], own_bits);
    task.largest_bits = larger(task.largest_bits, __reduce_max_sync(all_lanes, own_bits));
}

// Writes all of the steps but their frames. The thread that read a step writes its row.
__device__ __forceinline__ void write_steps(StepTask& task, const StepBatch& batch, const StepRun& run,
                                            const StepOutcome& outcome, const StepScratch& scratch) {
    const DeviceReplay& replay = task.replay;
    const int64_t first_step = batch.first + run.first;
    if (outcome.is_cut) apply(task, outcome.cut, otherwise_at(task, first_step));
    const int own = static_cast<int>(lane_of_thread()) - run.first;
    uint32_t own_bits = 0;
    if (own >= 0 && own < run.count) {
        const int64_t row = outcome.row + own;
        const int64_t slot = task.slot(row);
        const uint8_t flags = own == 0 ? outcome.flags : flags_of_step(task.lane, task.rules, row);
        const bool is_rated = has_bit(batch.rated, run.first + own);
        replay.flags[slot] = flags;
        replay.rewards[slot] = batch.reward;
        replay.priorities.given[slot] = is_rated ? batch.priority : not_given;
        if (is_rated && starts_sequence(task.rules, flags)) own_bits = bits_in_order(batch.priority);
    }
    if (lane_of_thread() == 0 && outcome.next_row >= 0) replay.flags[task.slot(outcome.next_row)] = 0;
    __syncwarp();
    if (task.steps.priorities.are_given()) take_priorities(task, batch, run, own_bits, scratch);
    advance_tail(task);
    make_live(task, outcome.completed, [&](int64_t row) {
        // The last step completes the last row, each step before it one row less, and the first all that are left.
        const int64_t steps_before = run.count - (outcome.completed.end - row);
        return otherwise_at(task, first_step + (steps_before > 0 ? steps_before : 0));
    });
    task.counters.added += run.count;
    if (outcome.flags & row_ends_episode) ++task.counters.episodes;
}

// Takes step `first` of the batch, and those that run on from it; returns how many. What is to be written down of the
// thread's own step goes to `taken`, if it took a row.
__device__ __forceinline__ int take_steps(StepTask& task, const StepBatch& batch, int first, const StepScratch& scratch,
                                          int64_t& taken) {
    const StepInput step = {has_bit(batch.next_known, first), has_bit(batch.terminated, first),
                            has_bit(batch.truncated, first), is_as_announced(task, batch, first),
                            __shfl_sync(all_lanes, batch.reward, first) != 0.0f};
    const StepRun run = {first, run_length(task, batch, first, step.matches)};
    const bool was_announced = task.lane.state == LaneState::announced && next_takes_row(task.rules);
    Lane lane = task.lane;
    StepOutcome outcome;
    if (run.count > 1) {
        outcome = advance_run(lane, task.rules, run.count, step.next_known);
    } else {
        outcome = advance(lane, task.rules, step);
        StepRefusal refusal = has_bit(batch.fits, first) ? StepRefusal::none : StepRefusal::value;
        if (refusal == StepRefusal::none && !has_bit(batch.without_nan, first)) refusal = StepRefusal::nan;
        if (refusal == StepRefusal::none && !outcome.dropped)
            refusal = refusal_of(task, lane, step, outcome, has_bit(batch.next_unavailable, first));
        if (refusal != StepRefusal::none) {
            refuse(task, refusal);
            return 1;
        }
    }
    task.lane = lane;
    if (outcome.is_suspect) ++task.counters.suspected_resets;
    if (outcome.dropped) {
        ++task.counters.dropped;
        return 1;
    }
    write_steps(task, batch, run, outcome, scratch);
    if (step.next_known) task.announcing = batch.first + first + run.count - 1;
    const int own = static_cast<int>(lane_of_thread()) - first;
    if (own < 0 || own >= run.count) return run.count;
    const bool is_there = own == 0 ? was_announced && !outcome.is_cut : step.next_known && next_takes_row(task.rules);
    taken = (outcome.row + own) << entry_flag_bits | (is_there ? observation_is_there : 0) |
            (step.next_known ? has_next_frame : 0);
    return run.count;
}

__device__ __forceinline__ void take_batch(StepTask& task, const StepBatch& batch, const StepScratch& scratch,
                                           int64_t* ids_out) {
    int64_t taken = -1;
    for (uint32_t left = batch.given; left != 0;) {
        const int first = __ffs(static_cast<int>(left)) - 1;
        const StepRun run = {first, take_steps(task, batch, first, scratch, taken)};
        left &= ~run.bits();
    }
    const int64_t step = batch.first + static_cast<int64_t>(lane_of_thread());
    if (step >= task.steps.length) return;
    const int64_t entry = task.entry(step);
    scratch.entries[entry] = taken;
    if (ids_out != nullptr) ids_out[entry] = taken < 0 ? -1 : task.rules.ring.id(task.env, taken >> entry_flag_bits);
}

__device__ __forceinline__ void take_lane(StepTask& task, const StepScratch& scratch, int64_t* ids_out) {
    ReplayState& state = *task.replay.state;
    for (int32_t first = 0; first < task.steps.length; first += static_cast<int32_t>(warp_size))
        take_batch(task, read_batch(task, first), scratch, ids_out);
    if (lane_of_thread() == 0 && task.largest_bits > state.largest_bits)
        atomicMax(&state.pending.largest_bits, task.largest_bits);
    finish(task);
}

// Two blocks a multiprocessor: warps mostly wait for memory.
__global__ void __launch_bounds__(n_threads, 2)
    take_steps_kernel(const __grid_constant__ DeviceReplay replay, const __grid_constant__ GivenSteps steps,
                      const __grid_constant__ StepScratch scratch, int64_t* ids_out, bool ends_step) {
    PER_SHARED(EndShared, shared);
    const WindowRules rules = replay.state->rules;
    const GridSpan span = warp_span();
    for (int64_t j = span.first; j < steps.n_lanes; j += span.step) {
        StepTask task(replay, rules, steps, j);
        take_lane(task, scratch, ids_out);
    }
    __syncthreads();
    if (threadIdx.x == 0) shared.is_last = arrive(&scratch.facts->n_arrived) == gridDim.x - 1;
    __syncthreads();
    if (!shared.is_last) return;
    if (threadIdx.x == 0) scratch.facts->n_arrived = 0;
    end_launch(replay, steps, scratch, ends_step, shared);
}

__global__ void __launch_bounds__(n_threads, 1)
    copy_frames_kernel(const __grid_constant__ DeviceReplay replay, const __grid_constant__ GivenSteps steps,
                       const __grid_constant__ StepScratch scratch) {
    give_to_waiting(replay, steps, scratch);
    const GridSpan span = grid_span();
    const int64_t n = steps.length * steps.n_lanes * steps.n_units;
    for (int64_t i = span.first; i < n; i += span.step) {
        const int64_t entry = i / steps.n_units;
        const int64_t taken = scratch.entries[entry];
        if (taken >= 0) copy_frames(replay, steps, entry, taken, i - entry * steps.n_units);
    }
}

// ---------------------------------------------------------------------------------------------- other changes of lanes

__global__ void __launch_bounds__(n_threads, 1)
    cut_kernel(const __grid_constant__ DeviceReplay replay, LaneList lanes) {
    const WindowRules rules = replay.state->rules;
    const GridSpan span = warp_span();
    for (int64_t j = span.first; j < lanes.count; j += span.step) {
        LaneTask task(replay, rules, lanes.env_ids != nullptr ? lanes.env_ids[j] : j);
        if (!task.lane.in_episode()) continue;
        apply(task, cut_episode(task.lane, rules), task.otherwise);
        finish(task);
    }
}

__global__ void __launch_bounds__(n_threads, 1)
    change_windows_kernel(const __grid_constant__ DeviceReplay replay, int64_t n_step) {
    const WindowRules rules = replay.state->rules;
    WindowRules changed = rules;
    changed.n_step = n_step;
    const GridSpan span = warp_span();
    for (int64_t env = span.first; env < replay.n_envs; env += span.step) {
        LaneTask task(replay, rules, env);
        const int64_t before = complete_end(task.lane, rules);
        const int64_t after = complete_end(task.lane, changed);
        make_live(task, {before, after}, [&](int64_t) { return task.otherwise; });
        make_dead(task, {after, before});
        finish(task);
    }
}

__global__ void take_in_kernel(const __grid_constant__ DeviceReplay replay) {
    take_in(*replay.state);
}

__global__ void take_in_n_step_kernel(const __grid_constant__ DeviceReplay replay, int64_t n_step) {
    take_in(*replay.state);
    replay.state->rules.n_step = n_step;
}

// ------------------------------------------------------------------------------------------------------- parameters

template <class Element, int64_t most>
struct Parameters {
    int64_t count;
    Element elements[most];
};
using IdParameters = Parameters<int64_t, n_ids_at_once>;
using FieldParameters = Parameters<GivenField, n_fields_by_value>;

__global__ void __launch_bounds__(n_threads, 1)
    store_ids_kernel(const __grid_constant__ IdParameters parameters, int64_t* to) {
    for (int64_t i = threadIdx.x; i < parameters.count; i += blockDim.x) to[i] = parameters.elements[i];
}

__global__ void __launch_bounds__(n_threads, 1)
    store_fields_kernel(const __grid_constant__ FieldParameters parameters, GivenField* to) {
    for (int64_t i = threadIdx.x; i < parameters.count; i += blockDim.x) to[i] = parameters.elements[i];
}

template <class Element, int64_t most>
void queue_parameters(int64_t count, const Element* elements, Element* to, cudaStream_t stream,
                      void (*kernel)(Parameters<Element, most>, Element*)) {
    for (int64_t first = 0; first < count; first += most) {
        Parameters<Element, most> parameters = {};
        parameters.count = count - first < most ? count - first : most;
        for (int64_t i = 0; i < parameters.count; ++i) parameters.elements[i] = elements[first + i];
        launch(stream, 1, warp_size, kernel, parameters, to + first);
    }
}

}  // namespace

void queue_steps(const DeviceReplay& replay, const GivenSteps& steps, const StepScratch& scratch, int64_t* ids_out,
                 bool ends_step, cudaStream_t stream) {
    launch(stream, blocks_for(steps.n_lanes * warp_size), n_threads, take_steps_kernel, replay, steps, scratch, ids_out,
           ends_step);
    const int64_t n_units = steps.length * steps.n_lanes * steps.n_units;
    launch(stream, n_units > 0 ? blocks_for(n_units) : 1, n_threads, copy_frames_kernel, replay, steps, scratch);
}

void queue_cut(const DeviceReplay& replay, const LaneList& lanes, cudaStream_t stream) {
    launch(stream, blocks_for(lanes.count * warp_size), n_threads, cut_kernel, replay, lanes);
    launch(stream, 1, 1, take_in_kernel, replay);
}

void queue_n_step(const DeviceReplay& replay, int64_t n_step, cudaStream_t stream) {
    launch(stream, blocks_for(replay.n_envs * warp_size), n_threads, change_windows_kernel, replay, n_step);
    launch(stream, 1, 1, take_in_n_step_kernel, replay, n_step);
}

void queue_ids(int64_t count, const int64_t* ids, int64_t* to, cudaStream_t stream) {
    queue_parameters(count, ids, to, stream, store_ids_kernel);
}

void queue_fields(int64_t count, const GivenField* fields, GivenField* to, cudaStream_t stream) {
    queue_parameters(count, fields, to, stream, store_fields_kernel);
}

void load_step_kernels() {
    load_kernels(take_steps_kernel, copy_frames_kernel, cut_kernel, change_windows_kernel, take_in_kernel,
                 take_in_n_step_kernel, store_ids_kernel, store_fields_kernel);
}

}  // namespace per::cuda

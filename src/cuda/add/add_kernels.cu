#include "cuda/add/add_kernels.h"

#include "cuda/add/change_lanes.h"
#include "cuda/add/read_steps.h"

namespace per::cuda {
namespace {

// What is written down of an entry: the row that it took, and below that these bits.
constexpr int64_t observation_is_there = 1;  // the step before announced it
constexpr int64_t has_next_frame = 2;
constexpr int entry_flag_bits = 2;

// ------------------------------------------------------------------------------------------------ the steps of a lane

// Why the CPU would refuse the whole call, if it would. `lane` is as the step leaves it.
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

// Steps of a group that are taken together: bits first .. first + count - 1.
struct StepRun {
    int first;
    int count;

    __device__ __forceinline__ uint32_t bits() const { return (all_lanes >> (warp_size - count)) << first; }
};

// The priority of a row that becomes live at a step and was given none.
__device__ __forceinline__ float otherwise_at(const StepTask& task, int64_t step) {
    return task.steps.rows_wait() ? waiting_since(step) : task.otherwise;
}

// Counts the priorities given with steps. `own_bits` are those of the thread's own step, or 0 if no row takes it.
__device__ __forceinline__ void count_priorities(StepTask& task, const StepGroup& group, const StepRun& run,
                                                 uint32_t own_bits, const StepScratch& scratch) {
    if (const int n_bad = __popc(run.bits() & ~group.rated); n_bad != 0) {
        task.counters.rejected_updates += n_bad;
        count(&task.replay.state->errors.n_bad_priorities, n_bad);
    }
    if (own_bits > task.largest_bits && task.steps.rows_wait())
        atomicMax(&scratch.largest_of_step[group.first + lane_of_thread()], own_bits);
    task.largest_bits = larger(task.largest_bits, __reduce_max_sync(all_lanes, own_bits));
}

// Writes all of the steps but their frames. The thread that read a step writes its row.
__device__ __forceinline__ void write_steps(StepTask& task, const StepGroup& group, const StepRun& run,
                                            const StepOutcome& outcome, const StepScratch& scratch) {
    const DeviceReplay& replay = task.replay;
    const int64_t first_step = group.first + run.first;
    if (outcome.is_cut) cut_lane(task, outcome.cut, otherwise_at(task, first_step));
    const int own = static_cast<int>(lane_of_thread()) - run.first;
    uint32_t own_bits = 0;
    if (own >= 0 && own < run.count) {
        const int64_t row = outcome.row + own;
        const int64_t slot = task.slot(row);
        const uint8_t flags = own == 0 ? outcome.flags : flags_of_step(task.lane, task.rules, row);
        const bool is_rated = has_bit(group.rated, run.first + own);
        replay.flags[slot] = flags;
        replay.rewards[slot] = group.reward;
        replay.priorities.given[slot] = is_rated ? group.priority : not_given;
        if (is_rated && starts_sequence(task.rules, flags)) own_bits = bits_in_order(group.priority);
    }
    if (lane_of_thread() == 0 && outcome.next_row >= 0) replay.flags[task.slot(outcome.next_row)] = 0;
    __syncwarp();
    if (task.steps.priorities.are_given()) count_priorities(task, group, run, own_bits, scratch);
    advance_tail(task);
    make_live(task, outcome.completed, [&](int64_t row) {
        // The last step completes the last row, each step before it one row less, and the first all that are left.
        const int64_t steps_before = run.count - (outcome.completed.end - row);
        return otherwise_at(task, first_step + (steps_before > 0 ? steps_before : 0));
    });
    task.counters.added += run.count;
    if (outcome.flags & row_ends_episode) ++task.counters.episodes;
}

// Adds step `first` of the group and those that run on from it; returns how many. `taken` becomes what is written down
// of the thread's own step, if that took a row.
__device__ __forceinline__ int add_run(StepTask& task, const StepGroup& group, int first, const StepScratch& scratch,
                                       int64_t& taken) {
    const StepInput step = {has_bit(group.next_known, first), has_bit(group.terminated, first),
                            has_bit(group.truncated, first), is_as_announced(task, group, first),
                            __shfl_sync(all_lanes, group.reward, first) != 0.0f};
    const StepRun run = {first, run_length(task, group, first, step.matches)};
    const bool was_announced = task.lane.state == LaneState::announced && next_takes_row(task.rules);
    Lane lane = task.lane;
    StepOutcome outcome;
    if (run.count > 1) {
        outcome = advance_run(lane, task.rules, run.count, step.next_known);
    } else {
        outcome = advance(lane, task.rules, step);
        StepRefusal refusal = has_bit(group.fits, first) ? StepRefusal::none : StepRefusal::value;
        if (refusal == StepRefusal::none && !has_bit(group.without_nan, first)) refusal = StepRefusal::nan;
        if (refusal == StepRefusal::none && !outcome.dropped)
            refusal = refusal_of(task, lane, step, outcome, has_bit(group.next_unavailable, first));
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
    write_steps(task, group, run, outcome, scratch);
    if (step.next_known) task.announcing = group.first + first + run.count - 1;
    const int own = static_cast<int>(lane_of_thread()) - first;
    if (own < 0 || own >= run.count) return run.count;
    const bool is_there = own == 0 ? was_announced && !outcome.is_cut : step.next_known && next_takes_row(task.rules);
    taken = (outcome.row + own) << entry_flag_bits | (is_there ? observation_is_there : 0) |
            (step.next_known ? has_next_frame : 0);
    return run.count;
}

__device__ __forceinline__ void add_group(StepTask& task, const StepGroup& group, const StepScratch& scratch,
                                          int64_t* ids_out) {
    int64_t taken = -1;
    for (uint32_t left = group.given; left != 0;) {
        const int first = __ffs(static_cast<int>(left)) - 1;
        const StepRun run = {first, add_run(task, group, first, scratch, taken)};
        left &= ~run.bits();
    }
    const int64_t step = group.first + static_cast<int64_t>(lane_of_thread());
    if (step >= task.steps.length) return;
    const int64_t entry = task.entry(step);
    scratch.entries[entry] = taken;
    if (ids_out != nullptr) ids_out[entry] = taken < 0 ? -1 : task.rules.ring.id(task.env, taken >> entry_flag_bits);
}

__device__ __forceinline__ void add_lane(StepTask& task, const StepScratch& scratch, int64_t* ids_out) {
    ReplayState& state = *task.replay.state;
    for (int32_t first = 0; first < task.steps.length; first += static_cast<int32_t>(warp_size))
        add_group(task, read_steps(task, first), scratch, ids_out);
    if (lane_of_thread() == 0 && task.largest_bits > state.largest_bits)
        atomicMax(&state.pending.largest_bits, task.largest_bits);
    finish(task);
}

// ---------------------------------------------------------------------------------------------------- rows that wait
// Rows may wait for their priority (replay_state.h). Which steps are added, and when rows become live, does not depend
// on priorities: lanes go through all steps of a launch without waiting for each other, and write down by step what
// they were given. The block that ends last finds the largest before each step, and the next kernel writes it to rows.

struct EndShared {
    uint32_t largest_of_warp[n_threads / warp_size];
    bool is_last;
};

// Returns the largest value of the threads before this one, 0 for the first; `of_all` becomes that of all threads. The
// whole block calls it.
__device__ __forceinline__ uint32_t largest_before(uint32_t value, EndShared& shared, uint32_t& of_all) {
    const unsigned lane = lane_of_thread();
    uint32_t up_to = value;
    for (unsigned distance = 1; distance < warp_size; distance *= 2)
        up_to = larger(up_to, __shfl_up_sync(all_lanes, up_to, distance));
    const uint32_t below = __shfl_up_sync(all_lanes, up_to, 1);
    if (lane == warp_size - 1) shared.largest_of_warp[threadIdx.x / warp_size] = up_to;
    __syncthreads();
    uint32_t before = lane > 0 ? below : 0;
    of_all = 0;
    for (unsigned warp = 0; warp < n_threads / warp_size; ++warp) {
        if (warp < threadIdx.x / warp_size) before = larger(before, shared.largest_of_warp[warp]);
        of_all = larger(of_all, shared.largest_of_warp[warp]);
    }
    __syncthreads();
    return before;
}

// Finds the largest priority before each step, and zeroes what was written down by step. The whole block calls it.
__device__ __forceinline__ void find_largest_before(const StepScratch& scratch, int64_t n_steps, uint32_t largest,
                                                    EndShared& shared) {
    for (int64_t first = 0; first < n_steps; first += n_threads) {
        const int64_t step = first + threadIdx.x;
        const bool is_step = step < n_steps;
        uint32_t of_all;
        const uint32_t before = largest_before(is_step ? scratch.largest_of_step[step] : 0, shared, of_all);
        if (is_step) {
            scratch.largest_of_step[step] = 0;
            scratch.largest_before[step] = larger(largest, before);
        }
        largest = larger(largest, of_all);
    }
}

// The last block of a launch calls it, when all lanes are changed.
__device__ __forceinline__ void end_launch(const DeviceReplay& replay, const GivenSteps& steps,
                                           const StepScratch& scratch, bool ends_step, EndShared& shared) {
    ReplayState& state = *replay.state;
    if (steps.rows_wait()) find_largest_before(scratch, steps.length, state.largest_bits, shared);
    __syncthreads();
    if (threadIdx.x != 0) return;
    scratch.facts->has_waiting = state.pending.has_waiting != 0;
    if (ends_step) apply_pending(state);
}

// In the kernel after that of end_launch().
__device__ __forceinline__ void write_waiting_priorities(const DeviceReplay& replay, const GivenSteps& steps,
                                                         const StepScratch& scratch) {
    if (!scratch.facts->has_waiting) return;
    const Ring ring = replay.state->rules.ring;
    const GridSpan span = warp_span();
    for (int64_t j = span.first; j < steps.n_lanes; j += span.step) {
        const int64_t env = steps.env(j);
        const RowRange born = replay.changes[env].born;
        for (int64_t row = born.first + lane_of_thread(); row < born.end; row += warp_size) {
            float& given = replay.priorities.given[ring.slot(env, row)];
            if (is_waiting(given)) given = __uint_as_float(scratch.largest_before[step_of_waiting(given)]);
        }
    }
}

// ----------------------------------------------------------------------------------------------------------- frames

template <class Word>
__device__ __forceinline__ void copy_words(const std::byte* from, std::byte* to, int64_t n_bytes) {
    for (int64_t i = 0; i < n_bytes / static_cast<int64_t>(sizeof(Word)); ++i)
        reinterpret_cast<Word*>(to)[i] = reinterpret_cast<const Word*>(from)[i];
}

template <class Word>
__device__ __forceinline__ void cast_words(const GivenFrames& frames, const std::byte* from, int32_t dtype,
                                           std::byte* to, int64_t n) {
    for (int64_t i = 0; i < n; ++i)
        reinterpret_cast<Word*>(to)[i] =
            static_cast<Word>(cast_element(from + i * dtype_size(frames.dtype), frames.dtype, dtype).bits);
}

// Copies unit `unit` of the frame of an entry.
__device__ __forceinline__ void copy_unit(const GivenFrames& frames, int64_t entry, int64_t unit,
                                          const DeviceField& field, std::byte* frame) {
    const int64_t offset = unit * unit_bytes;
    const int64_t left = field.bytes - offset;
    const int64_t n_bytes = left < unit_bytes ? left : unit_bytes;
    const std::byte* const from = frames.data + entry * frames.stride;
    std::byte* const to = frame + offset;
    const int64_t size = dtype_size(field.dtype);
    const std::byte* const elements = from + offset / size * dtype_size(frames.dtype);
    switch (frames.word_bytes != 0 ? frames.word_bytes : -size) {
        case 16:
            return copy_words<WordOf16>(from + offset, to, n_bytes);
        case 8:
            return copy_words<uint64_t>(from + offset, to, n_bytes);
        case 4:
            return copy_words<uint32_t>(from + offset, to, n_bytes);
        case 2:
            return copy_words<uint16_t>(from + offset, to, n_bytes);
        case 1:
            return copy_words<uint8_t>(from + offset, to, n_bytes);
        case -8:
            return cast_words<uint64_t>(frames, elements, field.dtype, to, n_bytes / size);
        case -4:
            return cast_words<uint32_t>(frames, elements, field.dtype, to, n_bytes / size);
        case -2:
            return cast_words<uint16_t>(frames, elements, field.dtype, to, n_bytes / size);
        default:
            return cast_words<uint8_t>(frames, elements, field.dtype, to, n_bytes / size);
    }
}

// Copies a unit of an entry that took a row; `unit` counts through all its frames.
__device__ __forceinline__ void copy_frames(const DeviceReplay& replay, const GivenSteps& steps, int64_t entry,
                                            int64_t taken, int64_t unit) {
    int64_t i = 0;
    while (i + 1 < replay.n_fields && unit >= steps.field(i + 1).frames.first_unit) ++i;
    const GivenField& given = steps.field(i);
    const DeviceField& field = replay.fields[i];
    const WindowRules& rules = replay.state->rules;
    const bool is_next = given.next.data != nullptr && unit >= given.next.first_unit;
    if (is_next && !(taken & has_next_frame)) return;
    if (!is_next && field.is_observation() && taken & observation_is_there) return;

    const bool is_apart = is_next && rules.store_next_observation;
    const int64_t row = (taken >> entry_flag_bits) + (is_next && !is_apart ? 1 : 0);
    const int64_t env = steps.env(entry % steps.n_lanes);
    // A row that is gone by the end of the launch shares its slot with one that is not.
    if (row < used_end(replay.lanes[env], rules) - rules.ring.rows) return;
    const GivenFrames& frames = is_next ? given.next : given.frames;
    std::byte* const array = is_apart ? field.next_frames : field.frames;
    copy_unit(frames, entry, unit - frames.first_unit, field, array + rules.ring.slot(env, row) * field.bytes);
}

// ---------------------------------------------------------------------------------------------------- adding steps

// Two blocks a multiprocessor: warps mostly wait for memory.
__global__ void __launch_bounds__(n_threads, 2)
    add_steps_kernel(const __grid_constant__ DeviceReplay replay, const __grid_constant__ GivenSteps steps,
                     const __grid_constant__ StepScratch scratch, int64_t* ids_out, bool ends_step) {
    PER_SHARED(EndShared, shared);
    const WindowRules rules = replay.state->rules;
    const GridSpan span = warp_span();
    for (int64_t j = span.first; j < steps.n_lanes; j += span.step) {
        StepTask task(replay, rules, steps, j);
        add_lane(task, scratch, ids_out);
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
    write_waiting_priorities(replay, steps, scratch);
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
    cut_lanes_kernel(const __grid_constant__ DeviceReplay replay, LaneList lanes) {
    const WindowRules rules = replay.state->rules;
    const GridSpan span = warp_span();
    for (int64_t j = span.first; j < lanes.count; j += span.step) {
        LaneTask task(replay, rules, lanes.env_ids != nullptr ? lanes.env_ids[j] : j);
        if (!task.lane.in_episode()) continue;
        cut_lane(task, cut_episode(task.lane, rules), task.otherwise);
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

__global__ void apply_pending_kernel(const __grid_constant__ DeviceReplay replay) {
    apply_pending(*replay.state);
}

__global__ void set_n_step_kernel(const __grid_constant__ DeviceReplay replay, int64_t n_step) {
    apply_pending(*replay.state);
    replay.state->rules.n_step = n_step;
}

// ------------------------------------------------------------------------------------------------------- parameters

template <class Element, int64_t most>
struct Parameters {
    int64_t count;
    Element elements[most];
};
using IdParameters = Parameters<int64_t, max_ids_by_value>;
using FieldParameters = Parameters<GivenField, max_fields_by_value>;

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

void queue_add(const DeviceReplay& replay, const GivenSteps& steps, const StepScratch& scratch, int64_t* ids_out,
               bool ends_step, cudaStream_t stream) {
    launch(stream, blocks_for(steps.n_lanes * warp_size), n_threads, add_steps_kernel, replay, steps, scratch, ids_out,
           ends_step);
    const int64_t n_units = steps.length * steps.n_lanes * steps.n_units;
    launch(stream, n_units > 0 ? blocks_for(n_units) : 1, n_threads, copy_frames_kernel, replay, steps, scratch);
}

void queue_cut(const DeviceReplay& replay, const LaneList& lanes, cudaStream_t stream) {
    launch(stream, blocks_for(lanes.count * warp_size), n_threads, cut_lanes_kernel, replay, lanes);
    launch(stream, 1, 1, apply_pending_kernel, replay);
}

void queue_n_step(const DeviceReplay& replay, int64_t n_step, cudaStream_t stream) {
    launch(stream, blocks_for(replay.n_envs * warp_size), n_threads, change_windows_kernel, replay, n_step);
    launch(stream, 1, 1, set_n_step_kernel, replay, n_step);
}

void queue_ids(int64_t count, const int64_t* ids, int64_t* to, cudaStream_t stream) {
    queue_parameters(count, ids, to, stream, store_ids_kernel);
}

void queue_fields(int64_t count, const GivenField* fields, GivenField* to, cudaStream_t stream) {
    queue_parameters(count, fields, to, stream, store_fields_kernel);
}

void load_add_kernels() {
    load_kernels(add_steps_kernel, copy_frames_kernel, cut_lanes_kernel, change_windows_kernel, apply_pending_kernel,
                 set_n_step_kernel, store_ids_kernel, store_fields_kernel);
}

}  // namespace per::cuda

#include "cuda/steps.h"

namespace per::cuda {
namespace {

constexpr int n_threads = 256;
constexpr int64_t max_blocks = 1024;

// ---------------------------------------------------------------------------------------------------- taking steps

// Below the row in what is written down of an entry.
constexpr int64_t observation_is_there = 1;  // the step before announced it
constexpr int64_t has_next_frame = 2;
constexpr int entry_flag_bits = 2;

enum class Refusal { none, bad, full };

struct StepValues {
    bool fit;
    float reward;
    float priority;
};

// A lane, and the steps that it takes.
struct StepTask : LaneTask {
    const GivenSteps& steps;
    int64_t announcing = -1;  // the entry that announced last; -1: it was in an earlier launch
    uint32_t largest_bits = 0;

    __device__ __forceinline__ StepTask(const DeviceReplay& of_replay, const WindowRules& of_rules, int64_t of_env,
                                        const GivenSteps& of_steps)
        : LaneTask(of_replay, of_rules, of_env), steps(of_steps) {}
};

__device__ __forceinline__ StepValues read_values(const StepTask& task, int64_t entry, bool next_known) {
    const GivenSteps& steps = task.steps;
    StepValues values = {true, 0.0f, not_given};
    values.fit = read_float(steps.reward, entry, values.reward);
    if (steps.priorities.are_given()) {
        float given = 0.0f;
        values.fit &= read_float(steps.priorities, entry, given);
        values.priority =
            steps.are_td_errors ? td_error_priority(&given, 1, 1, PER_CRITICS_MEAN, task.replay.epsilon) : given;
    }
    for (int64_t i = 0; i < task.replay.n_fields && values.fit; ++i) {
        const GivenField& given = steps.field(i);
        const DeviceField& field = task.replay.fields[i];
        if (given.frames.word_bytes == 0) values.fit = frame_fits(given.frames, entry, field);
        if (!next_known || given.next.data == nullptr || given.next.word_bytes != 0) continue;
        values.fit &= frame_fits(given.next, entry, field);
    }
    return values;
}

__device__ __forceinline__ ComparedFrame given_frame(const GivenFrames& frames, int64_t entry) {
    return {frames.data + entry * frames.stride, frames.dtype, frames.word_bytes};
}

__device__ __forceinline__ ComparedFrame stored_frame(const std::byte* frames, int64_t slot, const DeviceField& field) {
    const int64_t power = field.bytes & -field.bytes;
    return {frames + slot * field.bytes, field.dtype, static_cast<int32_t>(power < unit_bytes ? power : unit_bytes)};
}

__device__ __forceinline__ bool matches_announced(const StepTask& task, int64_t entry) {
    const int64_t slot = task.slot(compared_row(task.lane));
    for (int64_t i = 0; i < task.replay.n_fields; ++i) {
        const DeviceField& field = task.replay.fields[i];
        if (!field.is_observation()) continue;
        const GivenField& given = task.steps.field(i);
        const std::byte* const stored = task.rules.store_next_observation ? field.next_frames : field.frames;
        const ComparedFrame announced =
            task.announcing >= 0 ? given_frame(given.next, task.announcing) : stored_frame(stored, slot, field);
        if (!same_frame(announced, given_frame(given.frames, entry), field)) return false;
    }
    return true;
}

// What the CPU would refuse the whole call for; `lane` is as the step leaves it.
__device__ __forceinline__ Refusal refusal_of(const StepTask& task, const Lane& lane, const StepInput& step,
                                              const StepOutcome& outcome, bool next_unavailable) {
    const DeviceReplay& replay = task.replay;
    const bool ends = step.terminated || step.truncated;
    if (ends && replay.autoreset == PER_AUTORESET_SAME_STEP && !task.steps.next_mask.are_given()) return Refusal::bad;
    if (ends && !step.next_known && !next_unavailable) return Refusal::bad;
    if (!ends && !step.next_known && task.rules.store_next_observation) return Refusal::bad;
    if (outcome.is_cut && replay.on_gap == PER_GAP_ERROR) return Refusal::bad;
    const bool fits = used_end(lane, task.rules) - lane.first <= task.rules.ring.rows;
    return replay.overwrite || fits ? Refusal::none : Refusal::full;
}

__device__ __forceinline__ void count(uint64_t* at) {
    if (lane_of_thread() == 0) atomic_add(at, 1);
}

__device__ __forceinline__ void refuse(StepTask& task, Refusal refusal) {
    ReplayErrors& errors = task.replay.state->errors;
    count(refusal == Refusal::full ? &errors.n_full_steps : &errors.n_bad_steps);
    ++task.counters.rejected_updates;
}

__device__ __forceinline__ bool takes_priority(StepTask& task, float priority, uint8_t flags) {
    if (!task.steps.priorities.are_given()) return false;
    if (!is_priority(priority)) {
        ++task.counters.rejected_updates;
        count(&task.replay.state->errors.n_bad_priorities);
        return false;
    }
    if (starts_sequence(task.rules, flags)) task.largest_bits = larger(task.largest_bits, bits_in_order(priority));
    return true;
}

// Writes all of a step but its frames.
__device__ __forceinline__ void write_step(StepTask& task, const StepOutcome& outcome, const StepValues& values) {
    if (outcome.is_cut) apply(task, outcome.cut);
    const int64_t slot = task.slot(outcome.row);
    if (lane_of_thread() == 0) {
        task.replay.flags[slot] = outcome.flags;
        if (outcome.next_row >= 0) task.replay.flags[task.slot(outcome.next_row)] = 0;
    }
    __syncwarp();
    advance_tail(task);
    const bool is_rated = takes_priority(task, values.priority, outcome.flags);
    if (lane_of_thread() == 0) {
        task.replay.rewards[slot] = values.reward;
        task.replay.priorities.given[slot] = is_rated ? values.priority : not_given;
    }
    __syncwarp();
    make_live(task, outcome.completed);
    ++task.counters.added;
    if (outcome.flags & row_ends_episode) ++task.counters.episodes;
}

// Returns what to write down of the entry.
__device__ __forceinline__ int64_t take_step(StepTask& task, int64_t entry) {
    const GivenSteps& steps = task.steps;
    if (steps.mask.are_given() && !flag_of(steps.mask, entry)) return -1;
    const bool next_unavailable = steps.next_mask.are_given() && !flag_of(steps.next_mask, entry);
    StepInput step = {steps.has_next && !next_unavailable, flag_of(steps.terminated, entry),
                      flag_of(steps.truncated, entry), false};
    const StepValues values = read_values(task, entry, step.next_known);
    step.matches = compares_observation(task.lane, task.rules) && matches_announced(task, entry);

    const bool was_announced = task.lane.state == LaneState::announced && next_takes_row(task.rules);
    Lane lane = task.lane;
    const StepOutcome outcome = advance(lane, task.rules, step);
    Refusal refusal = values.fit ? Refusal::none : Refusal::bad;
    if (refusal == Refusal::none && !outcome.dropped) refusal = refusal_of(task, lane, step, outcome, next_unavailable);
    if (refusal != Refusal::none) {
        refuse(task, refusal);
        return -1;
    }
    task.lane = lane;
    if (outcome.dropped) {
        ++task.counters.dropped;
        return -1;
    }
    write_step(task, outcome, values);
    if (step.next_known) task.announcing = entry;
    const int64_t is_there = was_announced && !outcome.is_cut ? observation_is_there : 0;
    return outcome.row << entry_flag_bits | is_there | (step.next_known ? has_next_frame : 0);
}

__global__ void __launch_bounds__(n_threads, 1)
    take_steps_kernel(const __grid_constant__ DeviceReplay replay, const __grid_constant__ GivenSteps steps,
                      const __grid_constant__ StepScratch scratch, int64_t* ids_out) {
    const WindowRules rules = replay.state->rules;
    const GridSpan span = warp_span();
    for (int64_t j = span.first; j < steps.n_lanes; j += span.step) {
        StepTask task(replay, rules, steps.env(j), steps);
        for (int64_t k = 0; k < steps.length; ++k) {
            const int64_t entry = k * steps.n_lanes + j;
            const int64_t taken = take_step(task, entry);
            if (lane_of_thread() != 0) continue;
            scratch.entries[entry] = taken;
            if (ids_out != nullptr) ids_out[entry] = taken < 0 ? -1 : rules.ring.id(task.env, taken >> entry_flag_bits);
        }
        uint32_t& largest_bits = replay.state->pending.largest_bits;
        if (lane_of_thread() == 0 && task.largest_bits != 0) atomicMax(&largest_bits, task.largest_bits);
        finish(task);
    }
}

// ---------------------------------------------------------------------------------------------------- copying frames

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

// Unit `unit` of the frame of an entry.
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

// Of an entry that took a row; `unit` counts through all its frames.
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

__global__ void __launch_bounds__(n_threads, 1)
    copy_frames_kernel(const __grid_constant__ DeviceReplay replay, const __grid_constant__ GivenSteps steps,
                       const __grid_constant__ StepScratch scratch, bool ends_step) {
    const GridSpan span = grid_span();
    if (ends_step && span.first == 0) take_in(*replay.state);
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
        apply(task, cut_episode(task.lane, rules));
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
        make_live(task, {before, after});
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

int64_t blocks_for(int64_t n) {
    const int64_t n_blocks = (n + n_threads - 1) / n_threads;
    return n_blocks < max_blocks ? n_blocks : max_blocks;
}

}  // namespace

void queue_steps(const DeviceReplay& replay, const GivenSteps& steps, const StepScratch& scratch, int64_t* ids_out,
                 bool ends_step, cudaStream_t stream) {
    launch(stream, blocks_for(steps.n_lanes * warp_size), n_threads, take_steps_kernel, replay, steps, scratch,
           ids_out);
    const int64_t n_units = steps.length * steps.n_lanes * steps.n_units;
    launch(stream, n_units > 0 ? blocks_for(n_units) : 1, n_threads, copy_frames_kernel, replay, steps, scratch,
           ends_step);
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

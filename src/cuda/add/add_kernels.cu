#include "cuda/add/add_kernels.h"

#include <algorithm>

#include "cuda/add/add_lane.h"
#include "cuda/add/change_lanes.h"
#include "cuda/add/change_steps.h"
#include "cuda/add/store_frames.h"
#include "cuda/replay/changed_lanes.h"

namespace per::cuda {
namespace {

// ---------------------------------------------------------------------------------------------------- rows that wait
// Rows may wait for their priority (replay_state.h): it is the largest that was given in any lane before the step that
// made the row live. Priorities decide neither which steps are added nor when rows become live. So each lane processes
// all steps of a launch without waiting for the other lanes, and records the priorities that were given with each step.
// The last block to finish computes the largest priority before each step, and the next kernel writes it to the rows
// that wait.

struct EndShared {
    LaneSums<TopChanges> sums;
    uint32_t largest_of_warp[n_threads / warp_size];
    bool is_last;
};

// Returns the largest value of the threads before this one, 0 for the first. Sets `of_all` to the largest value of all
// threads. The whole block calls it.
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

// Finds the largest priority before each step, and clears largest_of_step for the next launch. The whole block calls
// it.
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

// The last block of a launch calls it, after all lanes were changed.
__device__ __forceinline__ void end_launch(const DeviceReplay& replay, const GivenSteps& steps,
                                           const StepScratch& scratch, bool ends_step, EndShared& shared) {
    ReplayState& state = *replay.state;
    if (steps.rows_wait()) find_largest_before(scratch, steps.length, state.largest_bits, shared);
    __syncthreads();
    if (threadIdx.x != 0) return;
    scratch.facts->has_waiting = state.pending.has_waiting != 0;
    if (ends_step) apply_pending(state);
}

// Called by the kernel after that of end_launch().
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

// ---------------------------------------------------------------------------------------------------- adding steps

struct AtOnceShared {
    LaneSums<TopChanges> sums;
    TopChanges top;
};

// Warps mostly wait for memory, so it helps if two blocks run on a multiprocessor at the same time. On sm_80 and sm_90
// they do. On sm_100 the compiler would have to spill a register for that, so the launch bounds do not ask for two
// blocks.
__global__ void __launch_bounds__(n_threads, 1)
    add_steps_kernel(const __grid_constant__ DeviceReplay replay, const __grid_constant__ GivenSteps steps,
                     const __grid_constant__ StepScratch scratch, int64_t* ids_out, bool ends_step) {
    PER_SHARED(EndShared, shared);
    // When it returns, all warps of the block have finished their lanes.
    add_lanes(replay, steps, scratch, ids_out, shared.sums);
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
    copy_frames(replay, steps, scratch, grid_span());
}

// A whole add of few steps of few lanes. It must not be one in which rows wait for their priority (rows_wait()).
__global__ void __launch_bounds__(n_threads, 1)
    add_at_once_kernel(const __grid_constant__ DeviceReplay replay, const __grid_constant__ GivenSteps steps,
                       const __grid_constant__ StepScratch scratch, int64_t* ids_out, bool rebuilds) {
    PER_SHARED(AtOnceShared, shared);
    clear(shared.top);
    add_lanes(replay, steps, scratch, ids_out, shared.sums);
    meet(replay.priorities.tree.state->meeting, [&] { apply_pending(*replay.state); });
    // Copies of frames go to threads from the last one down, changes of leaves from the first one up: few threads get
    // both.
    const GridSpan span = grid_span();
    copy_frames(replay, steps, scratch, {span.step - 1 - span.first, span.step});
    if (steps.length > 1) return change_leaves_by_steps(replay, steps, scratch, shared.top);
    const ChangedLanes<LanesOfSteps> lanes = {{steps}, steps.length};
    change_leaves(replay, lanes, shared.top, rebuilds);
    lanes.end(replay);
}

// The same in the plain case, where blocks need to meet only once.
__global__ void __launch_bounds__(n_threads, 1)
    add_plain_kernel(const __grid_constant__ PlainReplay replay, const __grid_constant__ PlainSteps steps,
                     const __grid_constant__ StepScratch scratch, int64_t* ids_out, bool rebuilds) {
    PER_SHARED(LaneSums<NoTopChanges>, sums);
    PER_ASSUME(blockDim.x == n_threads);
    const DeviceTree& tree = replay.priorities.tree;
    add_lanes(replay, steps, scratch, ids_out, sums);
    meet(tree.state->meeting, [&] { finish_change(tree); });
    copy_frames(replay, steps, scratch, grid_span());
    rebuild(tree, rebuilds);
}

__global__ void __launch_bounds__(n_threads, 1)
    change_steps_kernel(const __grid_constant__ DeviceReplay replay, const __grid_constant__ GivenSteps steps,
                        const __grid_constant__ StepScratch scratch) {
    PER_SHARED(TopChanges, top);
    change_leaves_by_steps(replay, steps, scratch, top);
}

// ---------------------------------------------------------------------------------------------- other changes of lanes

__global__ void __launch_bounds__(n_threads, 1)
    cut_lanes_kernel(const __grid_constant__ DeviceReplay replay, LaneList lanes) {
    PER_SHARED(LaneSums<TopChanges>, sums);
    clear(sums);
    __syncthreads();
    const WindowRules rules = replay.state->rules;
    const GridSpan span = warp_span();
    for (int64_t j = span.first; j < lanes.count; j += span.step) {
        LaneTask task(replay, rules, sums, lanes.env_ids != nullptr ? lanes.env_ids[j] : j);
        if (!task.lane.in_episode()) continue;
        cut_lane(task, cut_episode(task.lane, rules), task.otherwise);
        advance_tail(task);
        finish(task);
    }
    finish_lanes(replay, sums);
}

__global__ void __launch_bounds__(n_threads, 1)
    change_windows_kernel(const __grid_constant__ DeviceReplay replay, int64_t n_step) {
    PER_SHARED(LaneSums<TopChanges>, sums);
    clear(sums);
    __syncthreads();
    const WindowRules rules = replay.state->rules;
    WindowRules changed = rules;
    changed.n_step = n_step;
    const GridSpan span = warp_span();
    for (int64_t env = span.first; env < replay.n_envs; env += span.step) {
        LaneTask task(replay, rules, sums, env);
        const int64_t before = complete_end(task.lane, rules);
        const int64_t after = complete_end(task.lane, changed);
        make_live(task, {before, after}, [&](int64_t) { return task.otherwise; });
        make_dead(task, {after, before});
        finish(task);
    }
    finish_lanes(replay, sums);
}

__global__ void set_version_kernel(ReplayState* state, int64_t version) {
    state->version = version;
}

// The first of the rows first .. end - 1 whose version is at least `least`, or `end`: versions grow along a lane.
__device__ __forceinline__ int64_t first_of_version(const LaneTask<DeviceReplay>& task, int64_t first, int64_t end,
                                                    int64_t least) {
    while (first < end) {
        const int64_t middle = first + (end - first) / 2;
        if (task.replay.versions[task.slot(middle)] < least)
            first = middle + 1;
        else
            end = middle;
    }
    return first;
}

// Rows are marked, too: those that wait for their windows, which the tail cannot pass, and all others for the case that
// a larger n_step makes them wait again.
__global__ void __launch_bounds__(n_threads, 1) end_old_rows_kernel(const __grid_constant__ DeviceReplay replay) {
    PER_SHARED(LaneSums<TopChanges>, sums);
    clear(sums);
    __syncthreads();
    const WindowRules rules = replay.state->rules;
    const int64_t least = replay.state->version - replay.max_age;
    const GridSpan span = warp_span();
    for (int64_t env = span.first; env < replay.n_envs; env += span.step) {
        LaneTask task(replay, rules, sums, env);
        const int64_t end = first_of_version(task, task.lane.tail, task.lane.head, least);
        for (int64_t row = task.lane.tail + lane_of_thread(); row < end; row += warp_size)
            if (task.flags(row) & row_is_step) replay.flags[task.slot(row)] |= row_is_used_up;
        const int64_t decided = complete_end(task.lane, rules);
        const int64_t tail = end < decided ? end : decided;
        if (tail <= task.lane.tail) continue;
        make_dead(task, {task.lane.tail, tail});
        task.lane.tail = tail;
        finish(task);
    }
    finish_lanes(replay, sums);
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

template <class Element, int64_t most>
__global__ void __launch_bounds__(n_threads, 1)
    store_kernel(const __grid_constant__ Parameters<Element, most> parameters, Element* to) {
    for (int64_t i = threadIdx.x; i < parameters.count; i += blockDim.x) to[i] = parameters.elements[i];
}

template <int64_t most, class Element>
void queue_parameters(int64_t count, const Element* elements, Element* to, cudaStream_t stream) {
    for (int64_t first = 0; first < count; first += most) {
        Parameters<Element, most> parameters = {};
        parameters.count = std::min(count - first, most);
        std::copy_n(elements + first, parameters.count, parameters.elements);
        launch(stream, 1, warp_size, store_kernel<Element, most>, parameters, to + first);
    }
}

// The number of threads for add_at_once_kernel: a warp for each lane, and a thread for every few units of frames.
int64_t threads_at_once(const GivenSteps& steps) {
    constexpr int64_t max_units_of_thread = 8;
    const int64_t n_units = steps.length * steps.n_lanes * steps.n_units;
    return std::max(steps.n_lanes * int64_t{warp_size}, (n_units + max_units_of_thread - 1) / max_units_of_thread);
}

// The lanes of the plain case, each of which adds to the sum of all changes.
constexpr int64_t max_plain_lanes = 256;

// Whether add_plain_kernel() can add these steps, with half of the instructions of add_at_once_kernel().
bool is_plain(const GivenSteps& steps, int64_t n_fields) {
    return steps.length == 1 && steps.n_lanes <= max_plain_lanes && steps.env_ids == nullptr && !steps.has_mask() &&
           !steps.has_next_mask() && !steps.has_priorities() && !steps.has_casts && n_fields <= max_fields_by_value &&
           steps.rules.stack == 1 && steps.rules.max_age == no_max_age;
}

}  // namespace

bool can_add_at_once(const DeviceReplay& replay, const GivenSteps& steps) {
    const DeviceTree& tree = replay.priorities.tree;
    const int64_t n_blocks = blocks_for(threads_at_once(steps));
    return !steps.rows_wait() && steps.length <= warp_size && n_blocks <= tree.max_blocks &&
           (steps.length == 1 || rebuilds_itself(tree, {n_blocks}));
}

void queue_add_at_once(const DeviceReplay& replay, const GivenSteps& steps, const StepScratch& scratch,
                       int64_t* ids_out, cudaStream_t stream) {
    const Grid grid = grid_of_change(replay.priorities.tree, threads_at_once(steps));
    if (is_plain(replay) && is_plain(steps, replay.n_fields))
        queue_change(replay, grid, stream, add_plain_kernel, steps, scratch, ids_out);
    else
        queue_change(replay, grid, stream, add_at_once_kernel, steps, scratch, ids_out);
}

void queue_add(const DeviceReplay& replay, const GivenSteps& steps, const StepScratch& scratch, int64_t* ids_out,
               bool ends_step, cudaStream_t stream) {
    launch(stream, blocks_for(steps.n_lanes * warp_size), n_threads, add_steps_kernel, replay, steps, scratch, ids_out,
           ends_step);
    const int64_t n_units = steps.length * steps.n_lanes * steps.n_units;
    launch(stream, n_units > 0 ? blocks_for(n_units) : 1, n_threads, copy_frames_kernel, replay, steps, scratch);
}

void queue_change_of_steps(const DeviceReplay& replay, const GivenSteps& steps, const StepScratch& scratch,
                           cudaStream_t stream) {
    const DeviceTree& tree = replay.priorities.tree;
    const int64_t n_blocks = blocks_for(steps.n_lanes * steps.length, n_threads, tree.max_blocks);
    // The kernel may have to rebuild the tree between two steps. For a large tree that takes the whole device.
    launch_together(stream, {rebuilds_itself(tree, {n_blocks}) ? n_blocks : tree.max_blocks}, change_steps_kernel,
                    replay, steps, scratch);
}

void queue_cut(const DeviceReplay& replay, const LaneList& lanes, cudaStream_t stream) {
    launch(stream, blocks_for(lanes.count * warp_size), n_threads, cut_lanes_kernel, replay, lanes);
    launch(stream, 1, 1, apply_pending_kernel, replay);
}

void queue_n_step(const DeviceReplay& replay, int64_t n_step, cudaStream_t stream) {
    launch(stream, blocks_for(replay.n_envs * warp_size), n_threads, change_windows_kernel, replay, n_step);
    launch(stream, 1, 1, set_n_step_kernel, replay, n_step);
}

void queue_version(const DeviceReplay& replay, int64_t version, cudaStream_t stream) {
    launch(stream, 1, 1, set_version_kernel, replay.state, version);
    if (replay.max_age < 0) return;
    launch(stream, blocks_for(replay.n_envs * warp_size), n_threads, end_old_rows_kernel, replay);
    launch(stream, 1, 1, apply_pending_kernel, replay);
}

void queue_ids(int64_t count, const int64_t* ids, int64_t* to, cudaStream_t stream) {
    queue_parameters<max_ids_by_value>(count, ids, to, stream);
}

void queue_fields(int64_t count, const GivenField* fields, GivenField* to, cudaStream_t stream) {
    queue_parameters<max_fields_by_value>(count, fields, to, stream);
}

void load_add_kernels() {
    load_kernels(add_plain_kernel, add_at_once_kernel, add_steps_kernel, copy_frames_kernel, change_steps_kernel,
                 cut_lanes_kernel, change_windows_kernel, set_version_kernel, end_old_rows_kernel, apply_pending_kernel,
                 set_n_step_kernel, store_kernel<int64_t, max_ids_by_value>,
                 store_kernel<GivenField, max_fields_by_value>);
}

}  // namespace per::cuda

#include "cuda/replay/on_policy.h"

#include <cfloat>

#include "cuda/runtime/dialect.h"
#include "rules/advantage.h"

namespace per::cuda {
namespace {

constexpr int n_scan_threads = 1024;

// Calls visit(i, row) for each row of a lane that needs a bootstrap value, in order of time, i counting from `first`;
// returns their number. A warp calls it, and one thread makes each visit.
template <class Visit>
__device__ __forceinline__ int64_t for_each_bootstrap(const DeviceReplay& replay, int64_t env, int64_t first,
                                                      const Visit& visit) {
    const WindowRules& rules = replay.state->rules;
    const Lane lane = replay.lanes[env];
    const RowRange rows = advantage_rows(lane, rules);
    const unsigned thread = lane_of_thread();
    int64_t count = 0;
    for (int64_t begin = rows.first; begin < rows.end; begin += warp_size) {
        const int64_t row = begin + thread;
        const bool needs = row < rows.end && needs_bootstrap(lane, row, replay.flags[rules.ring.slot(env, row)]);
        const unsigned needing = __ballot_sync(all_lanes, needs);
        if (needs) visit(first + count + __popc(needing & ((1u << thread) - 1)), row);
        count += __popc(needing);
    }
    return count;
}

__global__ void __launch_bounds__(n_threads, 1) count_bootstraps_kernel(DeviceReplay replay) {
    const GridSpan span = warp_span();
    for (int64_t env = span.first; env < replay.n_envs; env += span.step) {
        const int64_t count = for_each_bootstrap(replay, env, 0, [](int64_t, int64_t) {});
        if (lane_of_thread() == 0) replay.bootstraps[env] = count;
    }
}

struct WarpSums {
    uint64_t of_warp[warp_size];
};

// Replaces the count of each lane by the sum of the counts of all lanes before it. One block does it.
__global__ void __launch_bounds__(n_scan_threads, 1) add_up_bootstraps_kernel(DeviceReplay replay) {
    PER_SHARED(WarpSums, sums);
    const int64_t n_each = (replay.n_envs + blockDim.x - 1) / blockDim.x;
    const int64_t first = threadIdx.x * n_each;
    const int64_t end = first + n_each < replay.n_envs ? first + n_each : replay.n_envs;
    uint64_t sum = 0;
    for (int64_t env = first; env < end; ++env) sum += static_cast<uint64_t>(replay.bootstraps[env]);
    uint64_t before = sum_before(sum, sums.of_warp);
    for (int64_t env = first; env < end; ++env) {
        const int64_t count = replay.bootstraps[env];
        replay.bootstraps[env] = static_cast<int64_t>(before);
        before += static_cast<uint64_t>(count);
    }
    if (threadIdx.x != blockDim.x - 1) return;
    replay.bootstraps[replay.n_envs] = static_cast<int64_t>(before);
    replay.state->n_bad_bootstraps = 0;
}

__global__ void __launch_bounds__(n_threads, 1)
    list_bootstraps_kernel(DeviceReplay replay, int64_t capacity, int64_t* slots_out) {
    const GridSpan span = warp_span();
    for (int64_t env = span.first; env < replay.n_envs; env += span.step)
        for_each_bootstrap(replay, env, replay.bootstraps[env], [&](int64_t i, int64_t row) {
            if (i < capacity) slots_out[i] = replay.state->rules.ring.slot(env, row);
        });
}

__device__ __forceinline__ bool is_finite(float value) {
    return value >= -FLT_MAX && value <= FLT_MAX;
}

__global__ void __launch_bounds__(n_threads, 1)
    check_bootstraps_kernel(DeviceReplay replay, ReplayAdvantages advantages) {
    uint64_t n_bad = 0;
    const GridSpan span = warp_span();
    for (int64_t env = span.first; env < replay.n_envs; env += span.step)
        for_each_bootstrap(replay, env, replay.bootstraps[env], [&](int64_t i, int64_t row) {
            n_bad += !(i < advantages.count && advantages.ids[i] == replay.state->rules.ring.id(env, row) &&
                       is_finite(advantages.bootstrap_values[i]));
        });
    const bool is_first = blockIdx.x == 0 && threadIdx.x == 0;
    n_bad += is_first && replay.bootstraps[replay.n_envs] < advantages.count;
    add_of_warp(&replay.state->n_bad_bootstraps, n_bad);
}

// A thread goes through a lane, as each advantage is computed from the one after it.
__global__ void advantages_kernel(DeviceReplay replay, ReplayAdvantages advantages) {
    ReplayState& state = *replay.state;
    const GridSpan span = grid_span();
    if (state.n_bad_bootstraps != 0) {
        if (span.first == 0) ++state.errors.n_refused_advantages;
        return;
    }
    const Ring& ring = state.rules.ring;
    const auto numbers = [&](int64_t field) { return reinterpret_cast<float*>(replay.fields[field].frames); };
    const float* const values = numbers(advantages.value_field);
    float* const advantages_out = numbers(advantages.advantage_field);
    float* const returns_out = advantages.return_field >= 0 ? numbers(advantages.return_field) : nullptr;
    for (int64_t env = span.first; env < replay.n_envs; env += span.step) {
        int64_t n_left = replay.bootstraps[env + 1];
        const auto value_of = [&](int64_t row) { return static_cast<double>(values[ring.slot(env, row)]); };
        lane_advantages(
            replay.lanes[env], state.rules, state.gamma, advantages.lambda,
            [&](int64_t row) { return replay.flags[ring.slot(env, row)]; },
            [&](int64_t row) { return static_cast<double>(replay.rewards[ring.slot(env, row)]); }, value_of,
            [&] { return static_cast<double>(advantages.bootstrap_values[--n_left]); },
            [&](int64_t row, double advantage) {
                const int64_t slot = ring.slot(env, row);
                advantages_out[slot] = static_cast<float>(advantage);
                if (returns_out != nullptr) returns_out[slot] = static_cast<float>(advantage + value_of(row));
            });
    }
}

}  // namespace

void queue_count_bootstraps(const DeviceReplay& replay, cudaStream_t stream) {
    launch(stream, blocks_for(replay.n_envs, n_warps), n_threads, count_bootstraps_kernel, replay);
    launch(stream, 1, n_scan_threads, add_up_bootstraps_kernel, replay);
}

void queue_list_bootstraps(const DeviceReplay& replay, int64_t capacity, int64_t* slots_out, cudaStream_t stream) {
    launch(stream, blocks_for(replay.n_envs, n_warps), n_threads, list_bootstraps_kernel, replay, capacity, slots_out);
}

void queue_advantages(const DeviceReplay& replay, const ReplayAdvantages& advantages, cudaStream_t stream) {
    queue_count_bootstraps(replay, stream);
    launch(stream, blocks_for(replay.n_envs, n_warps), n_threads, check_bootstraps_kernel, replay, advantages);
    // Small blocks, so that a few lanes run on different multiprocessors.
    launch(stream, blocks_for(replay.n_envs, warp_size), static_cast<int>(warp_size), advantages_kernel, replay,
           advantages);
}

void load_on_policy_kernels() {
    load_kernels(count_bootstraps_kernel, add_up_bootstraps_kernel, list_bootstraps_kernel, check_bootstraps_kernel,
                 advantages_kernel);
}

}  // namespace per::cuda

// Writes the rows of a batch without their frames: returns, ids and priorities. A warp writes a row.
#pragma once

#include <cstdint>

#include "cuda/batch/copy_frames.h"
#include "cuda/replay/replay_state.h"
#include "rules/sequence.h"

namespace per::cuda {

// The parts of a batch's rows that are to be written.
struct RowPlan {
    WindowRules rules;  // with the n_step of the call
    GatherWishes wishes;
    int64_t n;  // rows of the batch
    per_batch batch;
    int64_t n_step_min = 0;         // see ReplaySample; rules.n_step is the longest
    const uint64_t* key = nullptr;  // see ReplaySample; on the device
    static constexpr bool are_near = false;
};

// A RowPlan of a plain draw (draw/live_draw.h). Without stacks, and with windows of up to 32 steps, the flags of a window
// are enough, and each of them is read by a thread.
struct PlainRows {
    const WindowRules& rules;
    GatherWishes wishes;
    int64_t n;
    const per_batch& batch;
    static constexpr int64_t n_step_min = 0;
    static constexpr const uint64_t* key = nullptr;
    static constexpr bool are_near = true;
};

// The key of a batch's random numbers.
template <class Rows>
__device__ __forceinline__ BatchKey key_of(const DeviceReplay& replay, const Rows& plan) {
    if (plan.key != nullptr) return {plan.key[0], plan.key[1]};
    return {replay.seed, replay.state->batches};
}

// The n_step of the window at place i of a batch.
template <class Rows>
__device__ __forceinline__ int64_t n_step_of(const DeviceReplay& replay, const Rows& plan, int64_t i) {
    if (plan.n_step_min == 0) return plan.rules.n_step;
    const BatchKey key = key_of(replay, plan);
    return NSteps{plan.rules.n_step, plan.n_step_min, key.seed, key.batch_number}.of_place(i);
}

// The RowFlags near a row, by distance from it. The constructor reads those at distances -32 to 31, as far as they are
// needed; each thread reads one in each direction. are_near: no others are asked for.
template <bool are_near>
class FlagsAround {
 public:
    __device__ __forceinline__ FlagsAround(const uint8_t* flags, const Ring& ring, int64_t env, int64_t slot,
                                           int64_t n_after, int64_t n_before)
        : flags_(flags), ring_(ring), env_(env), slot_(slot) {
        const int64_t lane = lane_of_thread();
        after_ = lane < n_after ? flags[ring.later(env, slot, lane)] : 0;
        before_ = lane < n_before ? flags[ring.moved(env, slot, -1 - lane)] : 0;
    }

    // All threads of the warp pass the same distance.
    __device__ __forceinline__ uint8_t operator()(int64_t distance) const {
        constexpr int64_t n = warp_size;
        if (!are_near && (distance >= n || distance < -n)) return flags_[ring_.moved(env_, slot_, distance)];
        const uint32_t flags = distance >= 0 ? after_ : before_;
        return static_cast<uint8_t>(
            __shfl_sync(all_lanes, flags, static_cast<int>(distance >= 0 ? distance : ~distance)));
    }

 private:
    const uint8_t* flags_;
    const Ring& ring_;
    int64_t env_;
    int64_t slot_;
    uint32_t after_;   // at distance lane_of_thread()
    uint32_t before_;  // at distance -1 - lane_of_thread()
};

// Rewards from a row on, read in the same way.
template <bool are_near>
class RewardsAfter {
 public:
    __device__ __forceinline__ RewardsAfter(const float* rewards, const Ring& ring, int64_t env, int64_t slot,
                                            int64_t n)
        : rewards_(rewards), ring_(ring), env_(env), slot_(slot) {
        const int64_t lane = lane_of_thread();
        near_ = lane < n ? rewards[ring.later(env, slot, lane)] : 0.0f;
    }

    __device__ __forceinline__ float operator()(int64_t distance) const {
        if (!are_near && distance >= static_cast<int64_t>(warp_size))
            return rewards_[ring_.moved(env_, slot_, distance)];
        return __shfl_sync(all_lanes, near_, static_cast<int>(distance));
    }

 private:
    const float* rewards_;
    const Ring& ring_;
    int64_t env_;
    int64_t slot_;
    float near_;
};

__device__ __forceinline__ void write_id_and_priority(const per_batch& batch, int64_t i, int64_t id, float priority) {
    if (batch.ids != nullptr) batch.ids[i] = id;
    if (batch.priorities != nullptr) batch.priorities[i] = priority;
}

// Writes the id and priority of a live transition or sequence; returns its age.
template <class Rows>
__device__ __forceinline__ int64_t write_identity(const Rows& plan, int64_t i, int64_t env, int64_t slot, int64_t head,
                                                  float priority) {
    const int64_t k = plan.rules.ring.row_of_slot(env, slot, head);
    if (lane_of_thread() == 0) write_id_and_priority(plan.batch, i, plan.rules.ring.id(env, k), priority);
    return head - 1 - k;
}

// Writes how often the row in a slot was drawn; 0 for slot -1.
__device__ __forceinline__ void write_times_sampled(const DeviceReplay& replay, const per_batch& batch, int64_t i,
                                                    int64_t slot) {
    if (batch.times_sampled != nullptr) batch.times_sampled[i] = slot < 0 ? 0 : replay.times_sampled[slot];
}

// The result of write_row() for a live row. write_row() may have copied the row's frames, by copy(row).
struct WrittenRow {
    int64_t age;
    bool has_frames;  // false: frames were not copied, or from the wrong place
};

// ---- transitions

// The row of a window in which no episode ends or starts, as in most.
__device__ __forceinline__ GatherRow row_within_episode(const WindowRules& rules, int64_t env, int64_t slot,
                                                        int64_t n_step, const GatherWishes& wishes) {
    const int32_t n = static_cast<int32_t>(n_step);
    return gather_row(rules, env, slot, {0.0f, 0.0f, n, 0, n}, wishes, [](int64_t) { return uint8_t{0}; });
}

// The flags determine where the frames lie. While they are read, the frames are copied from their most likely place.
template <class Rows, class Copy>
__device__ __forceinline__ WrittenRow write_row(const DeviceReplay& replay, const Rows& plan, int64_t i, int64_t slot,
                                                GatherRow& row, const Copy& copy) {
    const WindowRules& rules = plan.rules;
    const int64_t env = rules.ring.env_of_slot(slot);
    const int64_t n_step = n_step_of(replay, plan, i);
    PER_ASSUME(n_step > 0);
    const FlagsAround<Rows::are_near> flags_of(replay.flags, rules.ring, env, slot, n_step, plan.wishes.stack - 1);
    const RewardsAfter<Rows::are_near> reward_at(replay.rewards, rules.ring, env, slot, n_step);
    const int64_t head = replay.lanes[env].head;
    const float priority = replay.priorities.given[slot];
    const double gamma = replay.state->gamma;
    const GatherRow guess = row_within_episode(rules, env, slot, n_step, plan.wishes);
    copy(guess);
    const Return window = n_step_return(n_step, gamma, flags_of, reward_at);
    bool has_frames = Rows::are_near && window.bootstrap == n_step;  // then the guess, without a stack, was right
    row = guess;
    if (!has_frames) {
        row = gather_row(rules, env, slot, window, plan.wishes, flags_of);
        has_frames = has_same_frames(row, guess);
    }
    if (lane_of_thread() == 0) write_return(i, window, plan.batch);
    return {write_identity(plan, i, env, slot, head, priority), has_frames};
}

// ---- sequences

// Rewards from step `first` of a sequence on.
struct RewardsFrom {
    const float* rewards;
    const Ring& ring;
    int64_t env;
    int64_t slot;
    int64_t first;

    __device__ __forceinline__ float operator[](int64_t k) const { return rewards[ring.moved(env, slot, first + k)]; }
};

// How many of the next `most` rows come before the first that ends the episode.
__device__ __forceinline__ int64_t rows_that_run_on(const uint8_t* flags, const Ring& ring, int64_t env, int64_t slot,
                                                    int64_t most) {
    for (int64_t first = 0; first < most; first += warp_size) {
        const int64_t k = first + lane_of_thread();
        const bool ends = k < most && (flags[ring.moved(env, slot, k)] & row_ends_episode) != 0;
        const unsigned ballot = __ballot_sync(all_lanes, ends);
        if (ballot != 0) return first + __ffs(static_cast<int>(ballot)) - 1;
    }
    return most;
}

// Writes step t of a sequence at place `at` of the batch, with the return of that step.
__device__ __forceinline__ void write_step(const per_batch& batch, int64_t at, const SequenceSpan& span, int64_t t,
                                           int64_t n_step, double gamma, const RewardsFrom& rewards) {
    const int64_t window = window_of_step(span, t, n_step);
    const uint8_t end_flags = window_end_flags(span, t, window);
    const bool terminated = (end_flags & row_terminated) != 0;
    if (batch.reward != nullptr) {
        double sum;
        sequence_returns({1, span.n_transitions - t, span.last_flags, span.repeats_last}, n_step, gamma, rewards, &sum);
        batch.reward[at] = static_cast<float>(sum);
    }
    if (batch.discount != nullptr || batch.gamma_m != nullptr) {
        double gamma_m = 1.0;
        for (int64_t k = 0; k < window; ++k) gamma_m *= gamma;
        if (batch.discount != nullptr) batch.discount[at] = terminated ? 0.0f : static_cast<float>(gamma_m);
        if (batch.gamma_m != nullptr) batch.gamma_m[at] = static_cast<float>(gamma_m);
    }
    if (batch.n_steps != nullptr) batch.n_steps[at] = static_cast<int32_t>(window);
    if (batch.terminated != nullptr) batch.terminated[at] = terminated;
    if (batch.truncated != nullptr) batch.truncated[at] = (end_flags & row_truncated) != 0;
    if (batch.mask != nullptr) batch.mask[at] = 1;
}

__device__ __forceinline__ void write_no_step(const per_batch& batch, int64_t at) {
    if (batch.reward != nullptr) batch.reward[at] = 0.0f;
    if (batch.discount != nullptr) batch.discount[at] = 0.0f;
    if (batch.n_steps != nullptr) batch.n_steps[at] = 0;
    if (batch.terminated != nullptr) batch.terminated[at] = 0;
    if (batch.truncated != nullptr) batch.truncated[at] = 0;
    if (batch.mask != nullptr) batch.mask[at] = 0;
    if (batch.gamma_m != nullptr) batch.gamma_m[at] = 0.0f;
}

template <class Copy>
__device__ __forceinline__ WrittenRow write_row(const DeviceReplay& replay, const RowPlan& plan, int64_t i,
                                                int64_t slot, SequenceRow& row, const Copy&) {
    const WindowRules& rules = plan.rules;
    const Ring& ring = rules.ring;
    const int64_t env = ring.env_of_slot(slot);
    const Lane lane = replay.lanes[env];
    const int64_t start = ring.row_of_slot(env, slot, lane.head);
    const int64_t steps = rules.sequence.steps;
    const auto flags_of = [&](int64_t k) { return replay.flags[ring.slot(env, k)]; };
    const int64_t until_head = lane.head - start;
    const int64_t n_step = n_step_of(replay, plan, i);
    const int64_t most = steps + n_step - 1 < until_head ? steps + n_step - 1 : until_head;
    const int64_t n_known = rows_that_run_on(replay.flags, ring, env, slot, most);
    const SequenceSpan span = sequence_span(lane, rules, start, n_step, flags_of, n_known);
    row = {env,
           slot,
           frames_before(start, plan.wishes.stack, flags_of),
           span.n_steps,
           span.n_transitions,
           static_cast<int32_t>(n_step),
           span.repeats_last};
    const double gamma = replay.state->gamma;
    for (int64_t t = lane_of_thread(); t < steps; t += warp_size) {
        if (t < span.n_steps)
            write_step(plan.batch, i * steps + t, span, t, n_step, gamma, {replay.rewards, ring, env, slot, t});
        else
            write_no_step(plan.batch, i * steps + t);
    }
    return {write_identity(plan, i, env, slot, lane.head, replay.priorities.given[slot]), false};
}

// ---- missing rows

// Writes id -1, and zeros for all else.
template <class Row>
__device__ __forceinline__ void write_no_row(const RowPlan& plan, int64_t i, Row& row) {
    place_nothing(row);
    const int64_t steps = plan.rules.sequence.steps;
    for (int64_t t = lane_of_thread(); t < steps; t += warp_size) write_no_step(plan.batch, i * steps + t);
    if (lane_of_thread() != 0) return;
    write_id_and_priority(plan.batch, i, -1, 0.0f);
}

}  // namespace per::cuda

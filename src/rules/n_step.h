// The n-step return of a row, formed when a batch is drawn.
#pragma once

#include <stdint.h>

#include "rules/host_device.h"
#include "rules/random.h"
#include "rules/window.h"

namespace per {

// The n_step of each window of a batch. A shorter window is the front of the longest, so rows that are live for the
// longest are live for all.
struct NSteps {
    int64_t longest;
    int64_t shortest = 0;  // 0: all are the longest; otherwise uniform in shortest .. longest
    uint64_t seed = 0;
    uint64_t batch_number = 0;

    PER_HOST_DEVICE int64_t of_place(int64_t i) const {
        if (shortest == 0) return longest;
        const uint64_t random = random64(seed, batch_number, n_step_numbers + static_cast<uint64_t>(i));
        return shortest + static_cast<int64_t>(mulhi(random, static_cast<uint64_t>(longest - shortest + 1)));
    }
};

// The window of m = n_step steps from a row on, or fewer if its episode ends inside:
//
//   reward  = sum over k < m of gamma^k r_k
//   gamma_m = gamma^m
//
// summed, and multiplied, in double from the first step on, so that every device rounds alike.
struct Return {
    float reward;
    float gamma_m;
    int32_t n_steps;     // m
    uint8_t last_flags;  // RowFlags of step m - 1
    // Distance in rows of the bootstrap observation: m, or m - 1 if the episode terminated at an unknown observation,
    // in whose place the last known one is used.
    int32_t bootstrap;

    PER_HOST_DEVICE bool is_terminated() const { return (last_flags & row_terminated) != 0; }
    // The factor of the bootstrap value.
    PER_HOST_DEVICE float discount() const { return is_terminated() ? 0.0f : gamma_m; }
};

// Computes the return of a row that is live with this n_step or a larger one. flags_at(k) and reward_at(k) read the
// k-th row after it, and the row itself for k = 0.
template <class FlagsAt, class RewardAt>
PER_HOST_DEVICE Return n_step_return(int64_t n_step, double gamma, const FlagsAt& flags_at, const RewardAt& reward_at) {
    double reward = 0.0;
    double discount = 1.0;
    uint8_t last_flags = 0;
    int32_t m = 0;
    while (m < n_step) {
        const uint8_t flags = flags_at(m);
        // The observation of this step is the last one known: the window ends before it.
        if (is_never_live(flags)) break;
        reward += discount * static_cast<double>(reward_at(m));
        discount *= gamma;
        last_flags = flags;
        ++m;
        if (flags & row_ends_episode) break;
    }
    const bool repeats_own = last_flags & row_terminated && last_flags & row_final_unknown;
    return {static_cast<float>(reward), static_cast<float>(discount), m, last_flags, repeats_own ? m - 1 : m};
}

// The return of one step, as it was added.
PER_HOST_DEVICE Return own_step(float reward, double gamma, uint8_t flags) {
    const bool repeats_own = flags & row_terminated && flags & row_final_unknown;
    return {reward, static_cast<float>(gamma), 1, flags, repeats_own ? 0 : 1};
}

}  // namespace per

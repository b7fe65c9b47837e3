// Generalised advantage estimation (Schulman et al. 2016, arXiv:1506.02438, equation 16) over the rows of a lane.
#pragma once

#include <stdint.h>

#include "rules/host_device.h"
#include "rules/window.h"

namespace per {

// The rows for which an advantage may be formed: those that would be live as single transitions with n_step 1.
PER_HOST_DEVICE RowRange advantage_rows(const Lane& lane, WindowRules rules) {
    rules.n_step = 1;
    return {lane.tail, returns_end(lane, rules)};
}
PER_HOST_DEVICE bool has_advantage(uint8_t flags) {
    return flags & row_is_step && !is_never_live(flags);
}

// True if no row has the value of the observation after this one: the episode was truncated here, or this is the latest
// step of a running one. Otherwise the episode terminated, or the following row has the value.
PER_HOST_DEVICE bool needs_bootstrap(const Lane& lane, int64_t row, uint8_t flags) {
    return has_advantage(flags) && !(flags & row_terminated) && (flags & row_truncated || row == lane.head - 1);
}

// delta_t + gamma lambda A_(t+1) with delta_t = r_t + gamma V(next) - V_t. Pass 0 for a next value or next advantage
// that does not count.
PER_HOST_DEVICE double advantage_of_step(double reward, double value, double next_value, double next_advantage,
                                         double gamma, double lambda) {
    const double delta = reward + gamma * next_value - value;
    return delta + gamma * lambda * next_advantage;
}

// Calls write(row, advantage) for the rows of a lane, the latest first. Sums are in double and rounded once, so every
// device rounds alike. flags_of, reward_of and value_of take a row; bootstrap() gives the values of the rows that need
// one, in the same order.
template <class FlagsOf, class RewardOf, class ValueOf, class Bootstrap, class Write>
PER_HOST_DEVICE void lane_advantages(const Lane& lane, const WindowRules& rules, double gamma, double lambda,
                                     const FlagsOf& flags_of, const RewardOf& reward_of, const ValueOf& value_of,
                                     const Bootstrap& bootstrap, const Write& write) {
    const RowRange rows = advantage_rows(lane, rules);
    double next_advantage = 0.0;
    for (int64_t row = rows.end - 1; row >= rows.first; --row) {
        const uint8_t flags = flags_of(row);
        if (!has_advantage(flags)) {
            next_advantage = 0.0;
            continue;
        }
        double next_value = 0.0;
        if (flags & row_ends_episode) next_advantage = 0.0;
        if (needs_bootstrap(lane, row, flags))
            next_value = bootstrap();
        else if (!(flags & row_terminated))
            next_value = value_of(row + 1);
        next_advantage = advantage_of_step(reward_of(row), value_of(row), next_value, next_advantage, gamma, lambda);
        write(row, next_advantage);
    }
}

}  // namespace per

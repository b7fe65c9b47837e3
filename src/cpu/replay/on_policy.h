// Epochs over all live transitions of a replay buffer in host memory, and advantages.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "cpu/replay/replay_state.h"

namespace per::cpu {

// Returns the ids of all live transitions, environment by environment, in order of time.
std::vector<int64_t> live_ids(const ReplayState& state);

// Returns the number of transitions that need a bootstrap value. slots_out gets the first `capacity` of them,
// environment by environment, in order of time.
int64_t find_bootstraps(const ReplayState& state, int64_t capacity, std::vector<int64_t>& slots_out);

// Throws Error with INVALID_ARGUMENT, before the first write, for ids other than those of find_bootstraps(), and for
// values that are not finite.
void write_advantages(ReplayState& state, const ReplayAdvantages& advantages);

}  // namespace per::cpu

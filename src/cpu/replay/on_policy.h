// Epochs over all live transitions of a replay buffer in host memory, and advantages.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "cpu/replay/replay_state.h"

namespace per::cpu {

// Environment by environment, in order of time.
std::vector<int64_t> live_ids(const ReplayState& state);

// Counts what needs a bootstrap value. slots_out: of the first `capacity`, environment by environment, in order of
// time.
int64_t find_bootstraps(const ReplayState& state, int64_t capacity, std::vector<int64_t>& slots_out);

// Throws Error with INVALID_ARGUMENT, before the first write, for other ids than find_bootstraps() gives and for values
// that are not finite.
void write_advantages(ReplayState& state, const ReplayAdvantages& advantages);

}  // namespace per::cpu

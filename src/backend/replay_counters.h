// What a replay buffer counts on every device.
#pragma once

#include <stdint.h>

namespace per {

// Counted since creation; see per_replay_statistics.
struct ReplayCounters {
    int64_t added = 0;
    int64_t dropped = 0;
    int64_t episodes = 0;
    int64_t cuts = 0;
    int64_t suspected_resets = 0;
    int64_t updates = 0;
    int64_t stale_updates = 0;
    int64_t rejected_updates = 0;
};

}  // namespace per

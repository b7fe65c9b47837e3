// Finding the rows of a replay buffer that own units of its mass: what a draw finds, without its random numbers.
#pragma once

#include <cstdint>

#include "cuda/draw/live_draw.h"

namespace per::cuda {

// As per_replay_get_units() has them; masses_out and first_units_out may be NULL.
struct UnitsPlan {
    int64_t n;
    const int64_t* units;
    uint64_t* masses_out;
    uint64_t* first_units_out;
};

// memory.found then has the ids of the rows, -1 for units that there are not. Those have mass 0.
void queue_find_units(const DeviceReplay& replay, const DrawMemory& memory, const UnitsPlan& plan, cudaStream_t stream);

void load_unit_kernels();

}  // namespace per::cuda

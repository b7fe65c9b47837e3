// What leaves weigh at a scale that a tree does not have: by this the scale of several buffers is chosen as one.
#pragma once

#include <cstdint>

#include "per.h"
#include "rules/mass.h"

namespace per {

// Fills what of a summary is measured. Leaves are p^alpha, 0 where nothing is live; `capacity` is that of the buffer.
void measure_leaves(const float* leaves, int64_t capacity, int32_t measured_scale, per_shard_summary& summary_out);

// Throws Error with INVALID_ARGUMENT for a scale at which a leaf or the sum of all masses breaks its limit.
void check_scale(int32_t scale, const float* leaves, int64_t capacity);

}  // namespace per

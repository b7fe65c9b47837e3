// The mass of all leaves at a hypothetical scale. Several buffers use it to agree on a scale.
#pragma once

#include <cstdint>

#include "per.h"
#include "rules/mass.h"

namespace per {

// Fills the measured members of a summary. Leaves are p^alpha, or 0 if not live; `capacity` is the buffer's.
void measure_leaves(const float* leaves, int64_t capacity, int32_t measured_scale, per_shard_summary& summary_out);

// Throws Error with INVALID_ARGUMENT for a scale at which a leaf or the sum of all masses breaks its limit.
void check_scale(int32_t scale, const float* leaves, int64_t capacity);

}  // namespace per

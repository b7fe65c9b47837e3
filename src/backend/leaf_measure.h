// The mass of all leaves at a hypothetical scale. Several buffers use it to agree on a scale.
#pragma once

#include <cstdint>

#include "per.h"
#include "rules/freshness.h"
#include "rules/mass.h"

namespace per {

// The leaves of a buffer: p^alpha, or 0 if not live. If `raised` is not 0, they are measured as if a rebase had raised
// the reference by that much.
struct MeasuredLeaves {
    const float* leaves;
    int64_t capacity;
    int64_t raised;

    float operator[](int64_t i) const { return raised == 0 ? leaves[i] : rebased_leaf(leaves[i], raised); }
    float largest() const;
};

// Fills the measured members of a summary but the reference.
void measure_leaves(const MeasuredLeaves& leaves, int32_t measured_scale, per_shard_summary& summary_out);

// Throws Error with INVALID_ARGUMENT for a scale at which a leaf or the sum of all masses breaks its limit.
void check_scale(int32_t scale, const MeasuredLeaves& leaves);

}  // namespace per

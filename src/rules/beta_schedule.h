// The schedule of the exponent of importance-sampling weights: it grows linearly to its final value (Schaul et al.
// 2016, section 3.4).
#pragma once

#include <stdint.h>

#include "rules/host_device.h"

namespace per {

struct BetaSchedule {
    double first;
    double final;
    int64_t n_steps;   // batches until beta is `final`; with 0 it stays `first`
    int64_t step = 0;  // batches that advanced it

    // Beta after this number of batches.
    PER_HOST_DEVICE double beta(int64_t batches) const {
        if (n_steps == 0) return first;
        if (batches >= n_steps) return final;
        return first + (final - first) * (static_cast<double>(batches) / static_cast<double>(n_steps));
    }
};

}  // namespace per

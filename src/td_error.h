// TD errors to priorities (section 3.3, proportional variant).
#pragma once

#include <stdint.h>

#include "host_device.h"

namespace per {

// p = mean over critics of |td_error|, + epsilon; in double, then rounded once. Not finite where an error is not, or
// where p is beyond float32. The error of critic c is td_errors[c * stride].
PER_HOST_DEVICE float td_error_priority(const float* td_errors, int64_t n_critics, int64_t stride, double epsilon) {
    double sum = 0.0;
    for (int64_t c = 0; c < n_critics; ++c) sum += __builtin_fabs(static_cast<double>(td_errors[c * stride]));
    return static_cast<float>(sum / static_cast<double>(n_critics) + epsilon);
}

// Finite and not negative.
PER_HOST_DEVICE bool is_priority(float p) {
    return p >= 0.0f && p <= 0x1.fffffep127f;
}

}  // namespace per

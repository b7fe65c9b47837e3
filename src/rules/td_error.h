// TD errors to priorities (section 3.3, proportional variant).
#pragma once

#include <stdint.h>

#include "per.h"
#include "rules/host_device.h"

namespace per {

// The magnitude |d| of several critics' errors: their mean or their largest, as `critics`, a per_critics, says. It is
// not finite if one of the errors is not. The error of critic c is td_errors[c * stride].
PER_HOST_DEVICE double td_error_magnitude(const float* td_errors, int64_t n_critics, int64_t stride, int32_t critics) {
    double sum = __builtin_fabs(static_cast<double>(td_errors[0]));
    if (n_critics == 1) return sum;  // what follows would give the same, after a division
    double largest = sum;
    for (int64_t c = 1; c < n_critics; ++c) {
        const double magnitude = __builtin_fabs(static_cast<double>(td_errors[c * stride]));
        sum += magnitude;
        if (magnitude > largest) largest = magnitude;
    }
    // Comparisons miss a NaN, but the sum keeps it.
    if (critics == PER_CRITICS_MEAN || sum != sum) return sum / static_cast<double>(n_critics);
    return largest;
}

// p = |d| + epsilon, computed in double and rounded once. It is not finite if an error is not, or if p is beyond
// float32.
PER_HOST_DEVICE float td_error_priority(const float* td_errors, int64_t n_critics, int64_t stride, int32_t critics,
                                        double epsilon) {
    return static_cast<float>(td_error_magnitude(td_errors, n_critics, stride, critics) + epsilon);
}

// The steps first <= t < end of a sequence.
struct StepRange {
    int64_t first;
    int64_t end;
};

// The priority of a sequence (Kapturowski et al. 2019, section 2.3), rounded once as above:
//
//   p = eta max_t |d_t| + (1 - eta) mean_t |d_t| + epsilon,  |d_t| being the magnitude at step t
//
// The error of critic c at step t is td_errors[c * stride + t].
PER_HOST_DEVICE float sequence_priority(const float* td_errors, int64_t n_critics, int64_t stride, int32_t critics,
                                        const StepRange& steps, double eta, double epsilon) {
    double largest = 0.0;
    double sum = 0.0;
    for (int64_t t = steps.first; t < steps.end; ++t) {
        const double magnitude = td_error_magnitude(td_errors + t, n_critics, stride, critics);
        if (magnitude > largest) largest = magnitude;
        sum += magnitude;
    }
    const double mean = sum / static_cast<double>(steps.end - steps.first);
    return static_cast<float>(eta * largest + (1.0 - eta) * mean + epsilon);
}

// True if p can be a priority: finite and not negative.
PER_HOST_DEVICE bool is_priority(float p) {
    // Both comparisons are always made, so that a loop over priorities has no branches.
    return (p >= 0.0f) & (p <= 0x1.fffffep127f);
}

}  // namespace per

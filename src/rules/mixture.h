// Drawing from a mixture of the uniform distribution over the live transitions and the prioritized one:
//
//   P(i) = (1 - u) q_i / T + u / N
//
// A draw has one target in 0 .. mixture_units - 1. Targets below u * mixture_units draw uniformly, the others by
// priority, so that strata of the mixture are strata of both parts.
#pragma once

#include <stdint.h>

#include "rules/host_device.h"

namespace per {

inline constexpr uint64_t mixture_units = uint64_t{1} << 62;

// u * mixture_units, rounded down.
PER_HOST_DEVICE uint64_t uniform_units(double uniform_fraction) {
    return static_cast<uint64_t>(uniform_fraction * static_cast<double>(mixture_units));
}

// floor(target * total / units) for target < units: the same place among 0 .. total - 1.
PER_HOST_DEVICE uint64_t rescaled_target(uint64_t target, uint64_t units, uint64_t total) {
    return static_cast<uint64_t>(static_cast<unsigned __int128>(target) * total / units);
}

// Share of a transition of mass q: T times its P.
PER_HOST_DEVICE double mixture_share(double mass, double total_mass, double n_live, double uniform_fraction) {
    return (1.0 - uniform_fraction) * mass + uniform_fraction * (total_mass / n_live);
}

}  // namespace per

// Drawing without replacement, the part that every backend shares: independent draws in rounds, repeats discarded.
#pragma once

#include <stdint.h>

#include "rules/host_device.h"

namespace per {

// Independent draws in one round that is to find n more: enough, as a rule, and an even number.
PER_HOST_DEVICE int64_t distinct_round_size(int64_t n_to_find) {
    return (n_to_find + n_to_find / 4 + 17) / 2 * 2;
}

// Whether so many repeats in a round mean that a few leaves hold most of the mass, and those found are to be taken out.
PER_HOST_DEVICE bool repeats_prevail(int64_t n_repeats, int64_t round_size) {
    return 2 * n_repeats > round_size;
}

}  // namespace per

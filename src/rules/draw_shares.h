// How likely a draw makes each transition, from which its importance-sampling weight follows (section 3.4). Host and
// device run these same functions.
#pragma once

#include <stdint.h>

#include "per.h"
#include "rules/host_device.h"
#include "rules/mixture.h"
#include "rules/priority.h"

namespace per {

// Of one batch: transition i is drawn with probability share_i / total(), or without replacement its inclusion
// probability is share_i.
struct DrawShares {
    int64_t batch_size;
    bool is_distinct;         // without replacement
    double uniform_fraction;  // 1 also where all priorities are 0
    double n_live;
    double mass;     // of the tree
    double n_draws;  // without replacement: how many independent draws it stands for

    PER_HOST_DEVICE bool is_uniform() const { return uniform_fraction == 1.0; }

    // Of a transition of that mass.
    PER_HOST_DEVICE double share_of(double mass_of_row) const {
        if (is_uniform()) return 1.0;
        const double share = mixture_share(mass_of_row, mass, n_live, uniform_fraction);
        return is_distinct ? inclusion_probability<double, uint64_t>(share / mass, n_draws) : share;
    }

    // What shares are divided by to be probabilities.
    PER_HOST_DEVICE double total() const {
        if (is_uniform()) return n_live;
        return is_distinct ? static_cast<double>(batch_size) : mass;
    }

    // The share whose weight is 1, but for PER_BATCH_MAX, where it is the smallest of the batch. smallest_mass() gives
    // the smallest mass of the live transitions of positive priority.
    template <class SmallestMass>
    PER_HOST_DEVICE double reference(int32_t normalize_weights, const SmallestMass& smallest_mass) const {
        if (is_uniform()) return 1.0;
        if (normalize_weights == PER_NONE) return total() / n_live;
        return share_of(static_cast<double>(smallest_mass()));
    }
};

}  // namespace per

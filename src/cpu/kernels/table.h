// The table of one instruction set. A file that includes this header first defines PER_KERNELS, the name of the table,
// and PER_KERNELS_NAME, the value of PER_ISA that selects it.
#pragma once

#include "cpu/kernels/draw.h"
#include "cpu/kernels/power.h"
#include "cpu/kernels/update.h"

namespace per::cpu {

extern const Kernels PER_KERNELS;
const Kernels PER_KERNELS = {
    PER_KERNELS_NAME,
    {random_numbers, stratify, spread, sum_prefixes, invert_strata, invert, descend},
    {valid, sum_masses, largest_of, apply, refresh},
    {raise, decay, decay_run, weigh, include, weigh_shares, smallest_share, from_td_errors, are_priorities},
};

}  // namespace per::cpu

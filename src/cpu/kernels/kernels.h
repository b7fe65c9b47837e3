// The inner loops of the CPU backend, compiled once for each instruction set and chosen when the first handle is made.
// Every variant computes the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rules/freshness.h"
#include "rules/mass.h"
#include "rules/tree_shape.h"

namespace per::cpu {

// The arrays of a sum tree. Line i of a level holds what entry i of the level above sums up.
struct TreeArrays {
    TreeShape shape;
    float* leaves;
    uint64_t* sums[max_levels];  // by level; [0] is not used
    double factor;               // 2^scale
};

// Rows that belong to leaves: `bytes` from first + index * stride on.
struct RowsOfLeaves {
    const std::byte* first = nullptr;
    int64_t stride = 0;
    int64_t bytes = 0;
};

// Batches of draws. `count` is a batch or a part of one.
struct DrawKernels {
    // Numbers of the draws first .. first + count - 1, as random64() gives them; `first` is even.
    void (*random_numbers)(uint64_t seed, uint64_t batch_number, uint64_t first, int64_t count, uint64_t* numbers_out);

    // Turns random numbers into targets in place, like stratified_target().
    void (*stratify)(int64_t batch_size, uint64_t total, uint64_t* targets);
    // The same, like independent_target().
    void (*spread)(int64_t count, uint64_t total, uint64_t* targets);

    // Prefix sums of n numbers: prefix_out[0] = 0, .. prefix_out[n] = the total, which is returned.
    uint64_t (*sum_prefixes)(const uint64_t* numbers, int64_t n, uint64_t* prefix_out);

    // For ascending targets, each drawn from its own stratum. The prefix sums describe n parts. For each target,
    // parts_out becomes the part that holds it, and `targets` the unit within that part. counts has room for
    // batch_size + 1 numbers, targets and parts_out for batch_size + draw_padding.
    void (*invert_strata)(const uint64_t* prefix, int64_t n, int64_t batch_size, uint64_t* targets, uint64_t* parts_out,
                          uint32_t* counts);

    // The same for targets in any order, with a guide table of guide_size(n) numbers. targets and parts_out have room
    // for count + draw_padding numbers.
    void (*invert)(const uint64_t* prefix, int64_t n, int64_t count, uint64_t* targets, uint64_t* parts_out,
                   uint32_t* guide);

    // Finds leaves. Draw i starts at lines[i] of `level` (0: leaves), and searches down for the unit units[i] within
    // that line. Overwrites both arrays, which have room for count + draw_padding numbers. masses_out and
    // priorities_out may be NULL. Prefetches the rows of found leaves, unless rows.bytes is 0.
    void (*descend)(const TreeArrays& tree, int level, int64_t count, uint64_t* lines, uint64_t* units,
                    int64_t* indices_out, uint64_t* masses_out, float* priorities_out, const RowsOfLeaves& rows);
};

struct UpdateKernels {
    // True if every index is below the capacity and every priority finite and not negative.
    bool (*valid)(int64_t count, const int64_t* indices, const float* priorities, int64_t capacity);
    // Sum of the masses of `count` priorities. Each mass must be below leaf_mass_limit.
    WideSum (*sum_masses)(int64_t count, const float* priorities, double factor);
    float (*largest)(int64_t count, const float* priorities);

    // Writes leaves in order and adds the differences of their masses to levels 1 .. last_level. in_stages: lines are
    // first fetched into the second-level cache (FetchPolicy).
    void (*apply)(const TreeArrays& tree, int last_level, int64_t count, const int64_t* indices,
                  const float* priorities, bool in_stages);
    // Recomputes nodes first .. last of a level from the level below.
    void (*refresh)(const TreeArrays& tree, int level, int64_t first, int64_t last);
};

// The births of rows (freshness.h), 0 .. max_birth. By default they are `numbers`. If `numbers` are the slots of a lane's
// rows instead, of which the latest is in slot `latest`, a birth is the slot plus `offset`, or plus offset_behind if the
// slot is behind `latest`.
struct GivenBirths {
    const int64_t* numbers;  // 0 .. max_birth
    int64_t latest = max_birth;
    int64_t offset = 0;
    int64_t offset_behind = 0;
};

// Powers and weights, as priority.h, freshness.h and draw.h of the rules define them.
struct PowerKernels {
    // priority_to_alpha() of each.
    void (*raise)(int64_t count, const float* priorities, double alpha, float* powers_out);
    // decayed_leaf() of each.
    void (*decay)(int64_t count, const float* priorities, double alpha, const Freshness& freshness,
                  const GivenBirths& births, float* leaves_out);
    // The same for births first_birth, first_birth + 1, .. and priorities whose log2_of_power() is `exponent`. Leaves
    // that are 0 stay 0.
    void (*decay_run)(int64_t count, double exponent, const Freshness& freshness, int64_t first_birth, float* leaves);
    // importance_weight(smallest mass, mass, beta) of each.
    void (*weigh)(int64_t count, const uint64_t* masses, double beta, float* weights_out);

    // inclusion_probability() of each mass's share of the total.
    void (*include)(int64_t count, const uint64_t* masses, uint64_t total, double draws, double* probabilities_out);
    // importance_weight(reference, share, beta) of each.
    void (*weigh_shares)(int64_t count, const double* shares, double reference, double beta, float* weights_out);
    double (*smallest)(int64_t count, const double* shares);  // count >= 1

    // td_error_priority() of one critic's errors.
    void (*from_td_errors)(int64_t count, const float* td_errors, double epsilon, float* priorities_out);
    // True if is_priority() holds for all.
    bool (*are_priorities)(int64_t count, const float* priorities);
};

struct Kernels {
    const char* name;  // the value of PER_ISA for this variant
    DrawKernels draw;
    UpdateKernels update;
    PowerKernels power;
};

// Numbers in the guide table of n parts.
inline int64_t guide_size(int64_t n) {
    return 4 * n + 2;
}

// Number of elements that descend(), invert_strata() and invert() may read and write beyond the ends of those arrays
// for which their comments say so.
inline constexpr int64_t draw_padding = 16;

// The kernels that PER_ISA names or, if it is not set, the widest that this machine supports. Throws Error for an
// unknown name, and for one that the machine does not support.
const Kernels& chosen_kernels();

// For tests. Returns NULL if this build or machine does not have them.
const Kernels* kernels_named(const char* name);

}  // namespace per::cpu

// The sum tree in host memory: the structure under the tree and the replay of the CPU backend.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/kernels/kernels.h"
#include "cpu/memory/memory.h"
#include "cpu/memory/prefetch.h"
#include "cpu/memory/scratch.h"
#include "rules/draw.h"
#include "rules/mass.h"
#include "rules/tree_shape.h"

namespace per::cpu {

// Writes the targets of a batch of draws, as draw_target() gives them. targets_out has room for batch_size +
// draw_padding numbers.
void write_targets(const DrawKernels& kernels, const DrawRequest& request, uint64_t total, uint64_t* targets_out);

// Holds float32 priorities and the exact sums of their masses (mass.h). It has no locks and no checks: indices must be
// in range, priorities finite and not negative, and the floating-point environment the default one. Only the
// constructor and the draws allocate. Draws may run concurrently.
class SumTree {
 public:
    // All priorities start at 0. The kernels are those of chosen_kernels(), which obeys PER_ISA; tests pass others.
    explicit SumTree(int64_t capacity, const MemorySource& source = {}) : SumTree(capacity, chosen_kernels(), source) {}
    SumTree(int64_t capacity, const Kernels& kernels, const MemorySource& source = {});

    int64_t capacity() const { return capacity_; }
    uint64_t total_mass() const { return total_; }
    int32_t scale() const { return scale_; }
    float priority(int64_t index) const { return arrays_.leaves[index]; }
    uint64_t mass(int64_t index) const { return mass_of(arrays_.leaves[index], arrays_.factor); }
    const Kernels& kernels() const { return kernels_; }
    MemoryUse memory_use() const { return memory_.use(); }  // without the scratch of draws

    // Prefetches for set() the line that takes longest: the leaf's.
    void prefetch_to_set(int64_t index) const { prefetch_to_write(arrays_.leaves + index); }

    // Sets priorities[i] at indices[i]; of equal indices the last one wins.
    void set(int64_t count, const int64_t* indices, const float* priorities);
    // Sets priorities[i] at first + i: several times faster than set().
    void set_run(int64_t first, int64_t count, const float* priorities);

    // Set priorities like set() and set_run(), in any number of pieces. Only change() and change_run() may be called
    // between begin_change() and end_change(), which chooses the scale that the leaves then need (mass.h). n is a hint:
    // about n leaves will be written.
    void begin_change(int64_t n);
    void change(int64_t count, const int64_t* indices, const float* priorities);
    void change_run(int64_t first, int64_t count, const float* priorities);
    void end_change();
    // Call it before begin_change(), after all leaves were multiplied by 2^-raised (freshness.h). The scale rises by as
    // much, so that all masses stay; if it would become too large for that, the change chooses another scale.
    void raise_scale(int64_t raised);

    // True if the scale surely stays when up to n leaves are set, each once and to `largest` at most, and other leaves,
    // of `lost` units together, become 0. All of this may be one change or many.
    bool keeps_scale(int64_t n, float largest, uint64_t lost) const;
    uint64_t mass_of_run(int64_t first, int64_t n) const { return first_unit(first + n) - first_unit(first); }

    // Like set(), but the scale stays: for leaves that are taken out for a while and put back. No leaf may become
    // larger than when the scale was chosen. Touches only these leaves and the sums above them.
    void set_at_scale(int64_t count, const int64_t* indices, const float* priorities);

    // Fixes the scale. The leaves and their sum must not be too large for it. It stays until they become too large, or
    // until rebuild().
    void fix_scale(int32_t scale);
    bool is_scale_fixed() const { return is_scale_fixed_; }

    // Makes all priorities 0. Takes time in proportion to those that were not.
    void reset();

    // The priorities in order. A caller that writes to them must call rebuild() next, or add_run() while it restores a
    // tree.
    float* leaves() { return arrays_.leaves; }
    const float* leaves() const { return arrays_.leaves; }
    void rebuild();

    // Restores the scale of a saved tree, and the total below which the scale changes. All priorities must be 0. The
    // caller restores them next, by set_at_scale(), or by writing to leaves() and calling add_run(). They must fit the
    // scale.
    void restore_scale(int32_t scale, uint64_t rescales_below);
    void add_run(int64_t first, int64_t count);
    uint64_t rescales_below() const { return low_water_; }

    // The first unit of mass of a leaf, which is the sum of the masses before it. For the index one past the last leaf
    // this is the total.
    uint64_t first_unit(int64_t index) const;

    // Draws leaves in proportion to their masses; total_mass() must not be 0. For draws without replacement see
    // DistinctDraw. masses_out and priorities_out may be NULL. Throws Error with OUT_OF_MEMORY, unless `scratch` is
    // given: it must have draw_scratch_bytes(). Prefetches the rows of the leaves, unless rows.bytes is 0.
    void draw(const DrawRequest& request, int64_t* indices_out, uint64_t* masses_out, float* priorities_out = nullptr,
              std::byte* scratch = nullptr, const RowsOfLeaves& rows = {}) const;
    std::size_t draw_scratch_bytes(int64_t batch_size) const;

    // Finds the leaves that hold the units of mass unit_of(0) .. unit_of(count - 1), each 0 .. total_mass() - 1.
    // masses_out may be NULL.
    template <class UnitOf>
    void find(int64_t count, const UnitOf& unit_of, int64_t* indices_out, uint64_t* masses_out) const {
        constexpr int64_t run = 256;
        uint64_t lines[run + draw_padding];
        uint64_t rests[run + draw_padding];
        for (int64_t first = 0; first < count; first += run) {
            const int64_t n = std::min(run, count - first);
            std::fill_n(lines, n, 0);
            for (int64_t i = 0; i < n; ++i) rests[i] = unit_of(first + i);
            kernels_.draw.descend(arrays_, top_level(), n, lines, rests, indices_out + first,
                                  masses_out == nullptr ? nullptr : masses_out + first, nullptr, {});
        }
    }

    // For tests: the sums of a level from 1 on, shape().n_nodes[level] of them.
    const uint64_t* sums(int level) const { return arrays_.sums[level]; }
    const TreeShape& shape() const { return arrays_.shape; }

 private:
    int top_level() const { return arrays_.shape.n_levels - 1; }
    int frontier_level(int64_t batch_size) const;
    void prefetch_small_levels(int level, int64_t batch_size) const;
    void set_scale(int32_t scale);
    void change_leaves(int64_t count, const int64_t* indices, const float* priorities, bool in_stages);
    void look_ahead(int64_t count, const float* priorities);
    void end_change_of_leaves();
    template <class VisitLeaves, class VisitSum>
    void for_each_used(int level, int64_t line, const VisitLeaves& visit_leaves, const VisitSum& visit_sum) const;
    void rescale_used();
    void refresh_from(int level);
    void refresh_above(int64_t first, int64_t count, int end_level);
    void add_up_total();
    ScalePlan plan_for(uint64_t total_before, WideSum total, bool has_too_large) const;
    void finish_rescale();

    int64_t capacity_;
    const Kernels& kernels_;
    Memory memory_;
    TreeArrays arrays_;

    int32_t scale_ = 0;
    bool is_scale_fixed_ = false;
    uint64_t total_ = 0;      // of all masses
    uint64_t low_water_ = 0;  // a total below it asks for a rescale
    // The change in progress:
    bool sums_follow_ = true;    // false: only leaves are written, and all sums are recomputed at the end
    bool is_scale_due_ = false;  // the change must choose a scale
    int refresh_level_ = 1;      // levels from here on are recomputed at the end
    double written_ = 0.0;       // upper bound on the mass written
    int32_t scale_before_ = 0;

    mutable ScratchPool scratch_;
};

}  // namespace per::cpu

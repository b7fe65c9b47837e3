// The sum tree in host memory: the structure under the tree and the replay of the CPU backend.
#pragma once

#include <cstdint>

#include "cpu/memory.h"
#include "mass.h"
#include "per.h"
#include "tree_shape.h"

namespace per::cpu {

// A batch of draws: everything that decides which leaves it finds, besides the tree.
struct DrawRequest {
    int64_t batch_size;  // 1 .. 2^24
    int32_t scheme;      // a per_scheme
    uint64_t seed;
    uint64_t step;  // batches drawn before this one
};

// Holds float32 priorities and the exact sums of their masses (mass.h). No locks, and no checks: indices are in range,
// priorities finite and not negative, the floating-point environment is the default one. Only the constructor and the
// draws allocate; the draws may run at the same time as each other.
class SumTree {
 public:
    // All priorities are 0.
    explicit SumTree(int64_t capacity);

    int64_t capacity() const { return capacity_; }
    uint64_t total_mass() const { return total_; }
    int32_t scale() const { return scale_; }
    float priority(int64_t index) const { return leaves_[index]; }
    uint64_t mass(int64_t index) const { return mass_of(leaves_[index], factor_); }

    // Sets priorities[i] at indices[i]; of equal indices the last one wins.
    void set(int64_t count, const int64_t* indices, const float* priorities);

    // Sets priorities[i] at first + i: several times faster than set().
    void set_run(int64_t first, int64_t count, const float* priorities);

    // All priorities 0.
    void reset();

    // The priorities in order, to be changed as a whole. rebuild() must follow before anything else is called.
    float* leaves() { return leaves_; }
    const float* leaves() const { return leaves_; }
    void rebuild();

    // Sums of a level from 1 on, n_nodes of shape().
    const uint64_t* sums(int level) const { return sums_[level]; }
    const TreeShape& shape() const { return shape_; }

    // Draws leaves in proportion to their masses, total_mass() > 0. Not for PER_WITHOUT_REPLACEMENT.
    void draw(const DrawRequest& request, int64_t* indices_out, uint64_t* masses_out) const;

    // The leaves that hold units of mass, each 0 .. total_mass() - 1. masses_out may be NULL.
    void find(int64_t count, const uint64_t* units, int64_t* indices_out, uint64_t* masses_out) const;

 private:
    void set_scale(int32_t scale);
    void rebuild_sums();
    bool fits(int64_t count, const float* priorities) const;
    void choose_scale_while_empty(const float* priorities, int64_t count);
    void finish_change(bool was_empty);
    void find_one(uint64_t unit, int64_t& index_out, uint64_t& mass_out) const;

    int64_t capacity_;
    TreeShape shape_;
    Memory memory_;
    float* leaves_;
    uint64_t* sums_[max_levels];  // by level; [0] is not used

    int32_t scale_ = 0;
    double factor_ = 1.0;     // 2^scale
    uint64_t total_ = 0;      // of all masses
    uint64_t low_water_ = 0;  // a total below it asks for a rescale
};

}  // namespace per::cpu

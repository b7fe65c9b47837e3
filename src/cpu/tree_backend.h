// per_tree in host memory.
#pragma once

#include <atomic>

#include "backend/backend.h"
#include "cpu/draw/distinct_draw.h"
#include "cpu/memory/scratch.h"
#include "cpu/tree/sum_tree.h"

namespace per::cpu {

class CpuTreeBackend final : public TreeBackend {
 public:
    CpuTreeBackend(int64_t capacity, uint64_t seed) : tree_(capacity), seed_(seed) {}

    bool reads_concurrently() const override { return true; }
    void update(int64_t count, const int64_t* indices, const float* priorities, void* stream) override;
    void sample(const TreeSample& sample, void* stream) override;
    void find(int64_t count, const double* prefix_sums, int64_t* indices_out, void* stream) override;
    void find_mass(int64_t count, const uint64_t* units, int64_t* indices_out, void* stream) override;
    void priorities(int64_t count, const int64_t* indices, float* priorities_out, void* stream) override;
    TreeMass mass() override { return {tree_.total_mass(), tree_.scale()}; }
    void reset(void*) override { tree_.reset(); }
    void synchronize(void*) override {}

 private:
    void require_mass() const;
    void sample_distinct(const TreeSample& sample);
    void check_index(int64_t i, int64_t index) const;
    void check_indices(int64_t count, const int64_t* indices) const;

    SumTree tree_;
    ScratchPool scratch_;
    DistinctDraw distinct_;
    uint64_t seed_;
    std::atomic<uint64_t> batches_{0};  // drawn; each concurrent call takes its own number
};

}  // namespace per::cpu

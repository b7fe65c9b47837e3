// Hindsight relabelling of batches in host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "backend/relabelling.h"
#include "cpu/replay/gather.h"

namespace per::cpu {

// Memory is kept from batch to batch.
class GoalWriter {
 public:
    explicit GoalWriter(const ReplayState& state) : state_(state), plan_(state) {}

    // Call it after batch number relabelling.batch_number has been written from these slots. It puts other goals into
    // the batch, and fills the arguments of the caller's reward function. A slot of -1 is skipped.
    void choose_goals(const ReplaySample& sample, const ReplayHindsight& hindsight, const std::vector<int64_t>& slots,
                      Relabelling& relabelling);

 private:
    void relabel_row(int64_t i, int64_t slot, const ReplaySample& sample, const ReplayHindsight& hindsight,
                     Relabelling& relabelling);
    void gather_inner_observations(const per_batch& batch, int64_t goal_field, Relabelling& relabelling);

    const ReplayState& state_;
    GatherPlan plan_;
    std::vector<GatherRow> inner_rows_;  // see gather_inner_observations()
    std::vector<void*> inner_arrays_;
    std::vector<std::byte> goal_;  // frames of compressed fields
    std::vector<std::byte> achieved_;
};

// Writes the returns that follow from the new rewards.
void write_returns(const ReplayState& state, const Relabelling& relabelling, const per_batch& batch);

}  // namespace per::cpu

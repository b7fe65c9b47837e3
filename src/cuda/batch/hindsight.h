// Hindsight relabelling of batches in device memory. The reward function runs on the host: its arguments are copied
// there, and its results are copied back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "backend/backend.h"
#include "backend/relabelling.h"
#include "cuda/replay/replay_memory.h"
#include "cuda/runtime/device.h"
#include "cuda/runtime/stream_order.h"
#include "rows/fields.h"
#include "rules/n_step.h"

namespace per::cuda {

// A transition, or sequence, of a batch and its new goal; n_transitions is 0 if it keeps its own.
struct GoalChoice {
    int64_t env;
    int64_t slot;       // where it starts
    int64_t goal_slot;  // the goal is the one achieved after the step in this slot
    int64_t n_steps;    // see SequenceSpan
    int64_t n_transitions;
    int64_t last_flags;
    int64_t n_step;  // of its returns
};

// A transition, or sequence, with a new goal, and the offsets of its part in the arrays that are copied to the host.
struct GoalSpan {
    GoalChoice choice;
    int64_t place;  // in the batch
    int64_t first_step;
    int64_t first_inner;  // of next observations of steps that are not the last
};

struct PlacedReturn {
    int64_t i;
    Return answer;
};

// Both functions wait for the stream, and allocate if a batch needs more memory than those before.
class HindsightQueue {
 public:
    HindsightQueue(const ReplayMemory& memory, const Fields& fields, const per_replay_options& options);

    // Puts new goals into the batch that was just drawn, and fills in the arguments of the reward function. `slots` are
    // those of the batch; relabelling.batch_number must be its number. Does nothing if nothing was drawn; slots of -1
    // are skipped.
    void choose_goals(const ReplaySample& sample, const ReplayHindsight& hindsight, const int64_t* slots,
                      Relabelling& relabelling, const StreamOrder::Call& call);
    void write_returns(const Relabelling& relabelling, const per_batch& batch, const StreamOrder::Call& call);

 private:
    std::byte* scratch(std::size_t n_bytes, const StreamOrder::Call& call);
    void read_choices(const ReplaySample& sample, const ReplayHindsight& hindsight, const int64_t* slots,
                      uint64_t batch_number, const StreamOrder::Call& call);
    void list_spans(int64_t goal_field, const per_batch& batch, Relabelling& relabelling);
    void copy_spans(const ReplaySample& sample, const ReplayHindsight& hindsight, Relabelling& relabelling,
                    const StreamOrder::Call& call);
    void write_inner_observations(const Relabelling& relabelling, const per_batch& batch,
                                  const StreamOrder::Call& call);

    const ReplayMemory& replay_;
    const Fields& fields_;
    const int64_t returns_of_place_;  // of a batch
    std::optional<DeviceMemory> scratch_;
    std::size_t scratch_bytes_ = 0;

    // Kept from call to call; the device reads and writes them during a call.
    std::vector<GoalChoice> choices_;
    std::vector<GoalSpan> spans_;
    std::vector<PlacedReturn> returns_;
    std::vector<int64_t> inner_places_;  // places of the batch that get an inner observation
    std::vector<int64_t> inner_;         // the index of that observation
    std::vector<std::byte> inner_frames_;
    std::vector<std::byte*> inner_memory_;  // of the device, by field
};

}  // namespace per::cuda

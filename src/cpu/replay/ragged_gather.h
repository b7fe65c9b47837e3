// Writing the rows of any length of a batch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/batch.h"
#include "backend/frame_gather.h"
#include "cpu/replay/gather.h"
#include "cpu/replay/sequence_gather.h"
#include "cpu/rows/ragged_rows.h"
#include "per.h"
#include "rules/n_step.h"
#include "threads/worker_threads.h"

namespace per::cpu {

// Works in two passes. The first finds the rows of a batch, and throws if they do not fit. The second writes them, and
// cannot fail. Memory is kept from batch to batch.
class RaggedGather final : private FramePlaces {
 public:
    explicit RaggedGather(const ReplayState& state);

    // Finds the rows of the transitions or sequences in `slots`; where a slot is below 0, the rows of that place of the
    // batch are empty. live_slots has stand-ins for those below 0, and may be empty if all are. Throws Error with FULL
    // if a per_ragged has too little room, and has then changed only `total` of each.
    void find(const per_batch& batch, const NSteps& n_steps, const std::vector<int64_t>& slots,
              const std::vector<int64_t>& live_slots, WorkerThreads& threads);
    // The same for transitions, also of a buffer of sequences.
    void find_transitions(const per_batch& batch, const NSteps& n_steps, const std::vector<int64_t>& slots,
                          WorkerThreads& threads);
    // The same for single steps, one frame each.
    void find_steps(const per_batch& batch, const std::vector<int64_t>& slots);
    // For rows whose places depend on how many others were found: writes the rows that were found last to where each
    // per_ragged points now. There must be room.
    void take_room();
    // Writes the rows that were found last.
    void write(WorkerThreads& threads) const;

 private:
    // An array of the batch.
    struct Array {
        int64_t field = 0;
        bool is_next = false;
        per_ragged* out = nullptr;  // takes the total
        per_ragged given = {};      // a copy, since other threads may write to the caller's
        int64_t value_bytes = 0;
        std::vector<const std::byte*> places;         // of the pointers to the rows
        std::vector<const FrameHeap::Block*> blocks;  // the rows
        std::vector<int64_t> ends;                    // [rows + 1] of each row among all values
        int64_t longest = 0;                          // values of a row

        void look_up();
        void write(std::size_t first, std::size_t end) const;
    };

    const std::byte** places(int64_t field, bool is_next) const override;
    bool begin(const per_batch& batch, const BatchShape& shape);
    void* begin_array(int64_t field, bool is_next, void* out, int64_t n_rows);
    void look_up();

    const ReplayState& state_;
    GatherPlan plan_;
    SequenceGather sequences_;
    mutable std::vector<Array> arrays_;  // places() gives out memory of theirs
    std::size_t n_arrays_ = 0;           // those of this batch
    std::vector<void*> fields_;
    std::vector<void*> next_fields_;
    per_batch batch_ = {};  // with these arrays alone
};

}  // namespace per::cpu

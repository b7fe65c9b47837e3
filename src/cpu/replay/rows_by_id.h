// Calls that read, write or prioritise rows of a replay buffer in host memory by id.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "cpu/replay/gather.h"
#include "cpu/replay/given_steps.h"
#include "cpu/replay/ragged_gather.h"
#include "cpu/replay/replay_state.h"

namespace per::cpu {

// All checks come before the first write. Memory is kept from call to call.
class RowsById {
 public:
    RowsById(ReplayState& state, const per_replay_options& options);

    // The two halves of update(): arrays of the caller are read by the first alone, which returns true if all
    // priorities are valid.
    bool read_update(const ReplayUpdate& update);
    void write_update(bool all_valid);
    void update(const ReplayUpdate& update) { write_update(read_update(update)); }
    void priorities(int64_t count, const int64_t* ids, float* priorities_out);
    // Reads rows as they were added.
    void get(int64_t count, const int64_t* ids, const per_batch& batch, RaggedGather& ragged, WorkerThreads& threads);
    void set(int64_t count, const int64_t* ids, const per_array* fields);
    // Returns the slots of the transitions that `sample` names by ids; -1 for those that are not live, if it skips
    // them. Valid until the next call.
    const std::vector<int64_t>& find_live(const ReplaySample& sample);
    const std::vector<int64_t>& slots() const { return slots_; }  // of the last call

 private:
    // The rows that a lane still stores. Row k lies in slot k + offset; if that is below first_slot, the lane's first
    // slot, the ring has wrapped around, and it is one lane of slots further on.
    struct StoredRows {
        RowRange rows;
        int64_t offset;
        int64_t first_slot;
    };

    RowOfId find_row(int64_t id) const;
    RowOfId row_of(int64_t i, int64_t id) const;
    // The errors of entry i of ids.
    [[noreturn]] void refuse_unissued(int64_t i, int64_t id) const;
    [[noreturn]] void refuse_missing(int64_t i, int64_t id) const;
    [[noreturn]] void refuse_dead(int64_t i, int64_t id) const;
    std::string why_missing(const RowOfId& row) const;
    std::string why_dead(const RowOfId& row) const;
    template <class Fetch>
    void find_slots(int64_t count, const int64_t* ids, const Fetch& fetch);
    template <class StoredOf>
    void find_slots_by(int64_t count, const int64_t* ids, const StoredOf& stored_of);
    StoredRows stored_rows(int64_t env) const;
    int64_t slot_of_step(int64_t i, int64_t id, bool wants_next) const;
    // True if an update reaches this row, which exists: it is live, or will be.
    bool accepts_priority(int64_t slot) const { return state_.priorities.live().contains(slot) || will_be_live(slot); }
    bool will_be_live(int64_t slot) const;
    const int64_t* own_ids(const ReplayUpdate& update);
    void read_priorities(const ReplayUpdate& update);
    void read_sequence_priorities(const ReplayUpdate& update);
    void check_priorities(const ReplayUpdate& update) const;
    void prepare_values(const per_array* fields);

    ReplayState& state_;
    const double epsilon_;
    const double sequence_eta_;
    const int32_t critics_;  // a per_critics
    const bool skips_invalid_;

    // State of the call:
    std::vector<int64_t> slots_;
    std::vector<StoredRows> stored_rows_;  // by lane
    bool has_births_ = false;
    std::vector<int64_t> births_;  // by entry, if has_births_
    std::vector<float> priorities_;
    std::vector<uint8_t> is_of_others_;  // by entry of an update of a mixture; otherwise empty
    std::vector<int64_t> own_ids_;
    std::vector<uint8_t> is_there_;
    std::vector<GivenValues> values_;
    GatherPlan plan_;
};

}  // namespace per::cpu

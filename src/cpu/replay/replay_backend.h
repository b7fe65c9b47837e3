// The replay buffer in host memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "backend/relabelling.h"
#include "cpu/replay/gather.h"
#include "cpu/replay/given_steps.h"
#include "cpu/replay/last_batch.h"
#include "cpu/replay/replay_state.h"
#include "cpu/replay/sequence_gather.h"
#include "cpu/replay/step_writer.h"
#include "rows/fields.h"
#include "rules/beta_schedule.h"
#include "rules/n_step.h"
#include "threads/worker_threads.h"

namespace per::cpu {

class CpuReplayBackend : public ReplayBackend {
 public:
    // `options` as resolved; `fields` must outlive the backend.
    CpuReplayBackend(const per_replay_options& options, const Fields& fields);

    void add(const ReplaySteps& steps, int64_t* ids_out, void* stream) override;
    void cut(int64_t count, const int64_t* env_ids, void* stream) override;
    void sample(const ReplaySample& sample, void* stream) override;
    void sample_hindsight(const ReplaySample& sample, const ReplayHindsight& hindsight, Relabelling& relabelling,
                          void* stream) override;
    void relabel(const Relabelling& relabelling, const per_batch& batch, void* stream) override;
    void take_back_draw(const Relabelling& relabelling) override;
    void update(const ReplayUpdate& update, void* stream) override;
    void priorities(int64_t count, const int64_t* ids, float* priorities_out, void* stream) override;
    void get(int64_t count, const int64_t* ids, const per_batch& batch, void* stream) override;
    void set(int64_t count, const int64_t* ids, const per_array* fields, void* stream) override;
    void clear(void* stream) override;

    void begin_ahead(const ReplaySample&) override {}
    void hand_out() override { --ahead_; }
    void end_ahead() override { beta_.step -= ahead_.exchange(0); }

    std::vector<int64_t> live_ids(void* stream) override;
    uint64_t reserve_batches(int64_t count, void* stream) override;
    void get_as_drawn(int64_t count, const int64_t* ids, float probability, const per_batch& batch,
                      void* stream) override;
    int64_t bootstraps(int64_t capacity, const per_batch& batch, void* stream) override;
    void advantages(const ReplayAdvantages& advantages, void* stream) override;

    void set_alpha(double alpha, void* stream) override;
    void set_beta(double beta, void* stream) override;
    void set_gamma(double gamma, void* stream) override;
    void set_n_step(int64_t n_step, void* stream) override;

    int64_t live() override { return state_.priorities.live().count(); }
    void statistics(per_replay_statistics& statistics_out) override;
    void synchronize(void*) override {}

    void save(CheckpointWriter& writer) override;
    void restore(CheckpointReader& reader) override;

    // For tests.
    ReplayState& state() { return state_; }

 private:
    // What an id names.
    struct Row {
        int64_t env;
        int64_t k;
        int64_t slot;
        bool is_there;  // not overwritten, not cleared; -1 is never there
    };
    Row row_of(int64_t i, int64_t id) const;

    int64_t slot_of_step(int64_t i, int64_t id, bool wants_next) const;

    template <class Visit>
    void for_each_bootstrap(Visit visit) const;
    void check_bootstraps(const ReplayAdvantages& advantages) const;

    int64_t beta_step() const { return beta_.step - ahead_; }

    bool draw_batch(const ReplaySample& sample);

    // Which row of the lane is there in the slot.
    int64_t row_in(int64_t env, int64_t slot) const {
        return state_.ring().row_of_slot(env, slot, state_.lane(env).head);
    }
    bool accepts(int64_t slot) const;
    void check_priorities(const ReplayUpdate& update) const;
    void read_priorities(const ReplayUpdate& update);
    void read_sequence_priorities(const ReplayUpdate& update);
    void find_slots(int64_t count, const int64_t* ids);

    Return return_of(int64_t env, int64_t slot, int64_t n_step) const;
    GatherRow gather_row(int64_t env, int64_t slot, const Return& window) const;
    void prepare_live(int64_t n_step, const per_batch& batch);
    void write_live(int64_t n_step, const std::vector<int64_t>& slots, const per_batch& batch);
    void write_rows(int64_t n_step, const std::vector<int64_t>& slots, const per_batch& batch);
    BatchAges write_some_rows(int64_t n_step, const int64_t* slots, int64_t first, int64_t end,
                              const per_batch& batch) const;
    void prefetch_rows(int64_t n_step, const int64_t* slots, int64_t n) const;
    void write_block(int64_t n_step, const int64_t* slots, int64_t n, int64_t first, const per_batch& batch,
                     BatchAges& ages) const;
    void write_id(int64_t i, int64_t slot, const per_batch& batch, BatchAges& ages) const;

    const std::byte* next_frame(int64_t field, int64_t env, int64_t slot) const;
    SequenceSpan span_of(int64_t env, int64_t row, int64_t n_step) const;
    void write_goal(int64_t i, int64_t field, const std::byte* goal, const SequenceSpan& span, int64_t frames_before,
                    const ReplaySample& sample) const;
    void relabel_row(int64_t i, int64_t slot, const ReplaySample& sample, const ReplayHindsight& hindsight,
                     Relabelling& relabelling);
    void write_inner_observation(int64_t i, int64_t k, const Relabelling& relabelling, const per_batch& batch) const;
    void gather_inner_observations(const per_batch& batch, int64_t goal_field, Relabelling& relabelling);

    ReplayState state_;
    StepWriter writer_;
    Gather gather_;
    const bool has_sequences_;
    SequenceGather sequence_gather_;
    WorkerThreads threads_;
    double gamma_;
    double epsilon_;
    double sequence_eta_;
    int32_t critics_;  // a per_critics
    bool skips_invalid_;
    uint64_t seed_;
    int64_t batches_ = 0;  // drawn; with the seed the whole random state
    BetaSchedule beta_;
    std::atomic<int64_t> ahead_ = 0;  // of beta_.step, batches that were not handed out yet

    LastBatch last_batch_;

    // Kept from call to call.
    BatchAges ages_;                     // of the rows that write_live() wrote
    std::vector<GatherRow> inner_rows_;  // see relabel_row()
    std::vector<void*> inner_arrays_;    // see gather_inner_observations()
    std::vector<BatchAges> part_ages_;
    std::vector<GivenValues> given_;
    std::vector<int64_t> slots_;
    std::vector<float> given_priorities_;
    std::vector<uint8_t> is_there_;
};

// What is done for every row of a batch.

inline Return CpuReplayBackend::return_of(int64_t env, int64_t slot, int64_t n_step) const {
    const Ring& ring = state_.ring();
    const auto flags_at = [&](int64_t k) { return state_.rows.flags()[k == 0 ? slot : ring.moved(env, slot, k)]; };
    const auto reward_at = [&](int64_t k) { return state_.rows.rewards()[k == 0 ? slot : ring.moved(env, slot, k)]; };
    // With a number that the compiler knows there is no loop.
    return n_step == 1 ? n_step_return(1, gamma_, flags_at, reward_at)
                       : n_step_return(n_step, gamma_, flags_at, reward_at);
}

inline GatherRow CpuReplayBackend::gather_row(int64_t env, int64_t slot, const Return& window) const {
    const Ring& ring = state_.ring();
    const auto flags_of = [&](int64_t distance) { return state_.rows.flags()[ring.moved(env, slot, distance)]; };
    return per::gather_row(state_.rules, env, slot, window, gather_.wishes(), flags_of);
}

}  // namespace per::cpu

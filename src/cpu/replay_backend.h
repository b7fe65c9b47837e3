// The replay buffer in host memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/relabelling.h"
#include "cpu/draw/live_draw.h"
#include "cpu/replay/checkpoint.h"
#include "cpu/replay/gather.h"
#include "cpu/replay/hindsight.h"
#include "cpu/replay/on_policy.h"
#include "cpu/replay/ragged_gather.h"
#include "cpu/replay/replay_state.h"
#include "cpu/replay/rows_by_id.h"
#include "cpu/replay/sequence_gather.h"
#include "cpu/replay/step_writer.h"
#include "rows/fields.h"
#include "threads/worker_threads.h"

namespace per::cpu {

class CpuReplayBackend : public ReplayBackend {
 public:
    // The options must have been resolved; `fields` must outlive the backend.
    CpuReplayBackend(const per_replay_options& options, const Fields& fields);

    void add(const ReplaySteps& steps, int64_t* ids_out, void*) override { writer_.add(steps, ids_out); }
    void cut(int64_t count, const int64_t* env_ids, void*) override { state_.cut(count, env_ids); }
    void sample(const ReplaySample& sample, void* stream) override;
    void begin_mixture(void*) override { chosen_took_ranks_ = false; }
    void choose_rows(const ReplaySample& sample) override { chosen_took_ranks_ = choose(sample); }
    void write_mixture(std::span<const SourceRows> sources, int32_t normalize_weights, const per_batch& batch,
                       int32_t* sources_out) override;
    void check_update(const ReplayUpdate& update) override { all_valid_ = rows_.read_update(update); }
    void write_update(const ReplayUpdate&) override { rows_.write_update(all_valid_); }
    void end_mixture(bool is_done) override;
    void sample_hindsight(const ReplaySample& sample, const ReplayHindsight& hindsight, Relabelling& relabelling,
                          void* stream) override;
    void relabel(const Relabelling& relabelling, const per_batch& batch, void*) override {
        write_returns(state_, relabelling, batch);
    }
    void take_back_draw(Relabelling& relabelling) override;
    void update(const ReplayUpdate& update, void*) override { rows_.update(update); }
    void priorities(int64_t count, const int64_t* ids, float* priorities_out, void*) override {
        rows_.priorities(count, ids, priorities_out);
    }
    void get(int64_t count, const int64_t* ids, const per_batch& batch, void*) override {
        rows_.get(count, ids, batch, ragged_, threads_);
    }
    void set(int64_t count, const int64_t* ids, const per_array* fields, void*) override {
        rows_.set(count, ids, fields);
    }
    void clear(void*) override { state_.clear(); }

    FrameArrays frame_arrays() const override { return state_.rows.frame_arrays(); }
    void begin_ahead(const ReplaySample& sample, FrameGather* gather) override;
    void hand_out() override { --state_.n_ahead; }
    void end_ahead() override;

    std::vector<int64_t> live_ids(void*) override { return cpu::live_ids(state_); }
    uint64_t reserve_batches(int64_t count, void* stream) override;
    int64_t bootstraps(int64_t capacity, const per_batch& batch, void* stream) override;
    void advantages(const ReplayAdvantages& advantages, void*) override { write_advantages(state_, advantages); }

    void change_settings(const per_replay_settings& settings, void* stream) override;
    int64_t version() const override { return state_.version; }

    void summarize(const LeafScale& measured, bool wants_smallest, per_shard_summary& summary_out) override;
    void set_scale(const LeafScale& scale) override;
    void raise_max_priority(float priority, void*) override { state_.priorities.raise_largest(priority); }

    int64_t live() override { return state_.priorities.live().count(); }
    void statistics(per_replay_statistics& statistics_out) override;
    void synchronize(void*) override {}

    RowFile* row_file() override { return state_.rows.file(); }
    void save(CheckpointWriter& writer) override { save_state(writer, state_); }
    std::unique_ptr<ReplaySnapshot> snapshot() override { return snapshot_of(state_); }
    void restore(CheckpointReader& reader) override { restore_state(reader, state_); }

    // For tests.
    ReplayState& state() { return state_; }

 private:
    bool choose(const ReplaySample& sample);
    void write_chosen(const ReplaySample& sample);
    bool draw(const ReplaySample& sample);
    void find_newest(int64_t count);
    bool take(const ReplaySample& sample);
    template <class Choose>
    bool with_ranks(const ReplaySample& sample, const Choose& choose);
    double beta_of(const ReplaySample& sample) const;
    BatchKey key() const { return {state_.seed, static_cast<uint64_t>(state_.batches)}; }
    void prepare_live(const NSteps& n_steps, const per_batch& batch, const FrameGather* gather);
    void write_live(const NSteps& n_steps, const std::vector<int64_t>& slots, const per_batch& batch,
                    int64_t* ages_out);
    void write_law(double beta, const per_batch& batch) const;
    void write_times_sampled(const std::vector<int64_t>& slots, const per_batch& batch) const;

    ReplayState state_;
    StepWriter writer_;
    RowsById rows_;
    LiveDraw draw_;
    GatherPlan plan_;
    SequenceGather sequences_;
    RaggedGather ragged_;
    WorkerThreads threads_;
    GoalWriter goals_;
    std::vector<int64_t> bootstraps_;  // slots; memory kept from call to call, like the next two
    std::vector<int64_t> newest_;      // slots
    std::vector<int64_t> newest_ids_;  // a heap

    // The state of the current call:
    bool all_valid_ = false;  // the priorities of an update
    BatchKey key_of_draw_ = {};
    double beta_of_draw_ = 0;  // read once: a loader may advance the schedule at any time
    bool chosen_took_ranks_ = false;
};

}  // namespace per::cpu

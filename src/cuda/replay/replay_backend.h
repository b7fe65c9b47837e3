// per_replay in the memory of a CUDA device.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "cuda/add/step_queue.h"
#include "cuda/batch/batch_queue.h"
#include "cuda/batch/hindsight.h"
#include "cuda/replay/replay_memory.h"
#include "cuda/runtime/device.h"
#include "cuda/runtime/stream_order.h"
#include "file/checkpoint_state.h"
#include "rows/fields.h"

namespace per::cuda {

class CudaReplayBackend final : public ReplayBackend {
 public:
    // `options` must have been resolved; `fields` must outlive the backend.
    CudaReplayBackend(const per_replay_options& options, const Fields& fields);

    void add(const ReplaySteps& steps, int64_t* ids_out, void* stream) override;
    void cut(int64_t count, const int64_t* env_ids, void* stream) override;
    void sample(const ReplaySample& sample, void* stream) override;
    void begin_mixture(void* stream) override { mixture_call_.emplace(order_, stream); }
    void choose_rows(const ReplaySample& sample) override;
    void write_mixture(std::span<const SourceRows> sources, int32_t normalize_weights, const per_batch& batch,
                       int32_t* sources_out) override;
    void check_update(const ReplayUpdate& update) override;
    void write_update(const ReplayUpdate& update) override { queue_update(update, *mixture_call_); }
    void end_mixture(bool is_done) override;
    void sample_hindsight(const ReplaySample& sample, const ReplayHindsight& hindsight, Relabelling& relabelling,
                          void* stream) override;
    void relabel(const Relabelling& relabelling, const per_batch& batch, void* stream) override;
    void take_back_draw(Relabelling& relabelling) override;
    void update(const ReplayUpdate& update, void* stream) override;
    void priorities(int64_t count, const int64_t* ids, float* priorities_out, void* stream) override;
    void get(int64_t count, const int64_t* ids, const per_batch& batch, void* stream) override;
    void set(int64_t count, const int64_t* ids, const per_array* fields, void* stream) override;
    void clear(void* stream) override;

    void begin_ahead(const ReplaySample& sample, FrameGather* gather) override;
    void hand_out() override;
    void end_ahead() override;

    std::vector<int64_t> live_ids(void* stream) override;
    uint64_t reserve_batches(int64_t count, void* stream) override;
    int64_t bootstraps(int64_t capacity, const per_batch& batch, void* stream) override;
    void advantages(const ReplayAdvantages& advantages, void* stream) override;

    void change_settings(const per_replay_settings& settings, void* stream) override;
    int64_t version() const override { return version_; }

    void summarize(const LeafScale& measured, bool wants_smallest, per_shard_summary& summary_out) override;
    void set_scale(const LeafScale& scale) override;
    void raise_max_priority(float priority, void* stream) override;

    int64_t live() override;
    void statistics(per_replay_statistics& statistics_out) override;
    void synchronize(void* stream) override;

    void save(CheckpointWriter& writer) override;
    std::unique_ptr<ReplaySnapshot> snapshot() override;
    void restore(CheckpointReader& reader) override;

 private:
    // The host's copy of device data, in pinned memory.
    struct HostCopy {
        ReplayState replay;
        TreeState tree;
        TreeState rank_tree;         // once ranks were asked for
        RankState ranks;             // likewise
        uint32_t live_maximum_bits;  // with PER_MAX_NOW
        int64_t n_bootstraps;
    };
    void queue_update(const ReplayUpdate& update, const StreamOrder::Call& call);
    const HostCopy& read(const StreamOrder::Call& call);
    void copy_trees(HostCopy& copy, const StreamOrder::Call& call);
    void require_ordered(const HostCopy& copy) const;
    void take_back(Relabelling& relabelling, const StreamOrder::Call& call);
    std::vector<SlotArray> slot_arrays(const WindowRules& rules) const;
    CheckpointMoment moment(const HostCopy& copy, const StreamOrder::Call& call);
    std::optional<CheckpointRanks> known_ranks(const HostCopy& copy, const StreamOrder::Call& call);
    void restore_ranks(const CheckpointRanks& saved, const StreamOrder::Call& call);
    float largest_priority(const HostCopy& copy) const;
    int64_t birth_of_age_0(const StreamOrder::Call& call);

    const Fields& fields_;
    const bool skips_invalid_;
    const bool always_has_ranks_;
    int64_t version_ = 0;  // of rows that are added
    StreamOrder order_;
    PinnedMemory host_copy_;
    ReplayMemory memory_;
    StepQueue steps_;
    BatchQueue batches_;
    HindsightQueue hindsight_;
    std::optional<StreamOrder::Call> mixture_call_;
};

}  // namespace per::cuda

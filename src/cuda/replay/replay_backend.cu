#include "cuda/replay/replay_backend.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "backend/batch.h"
#include "backend/create.h"
#include "backend/leaf_measure.h"
#include "backend/relabelling.h"
#include "base/error.h"
#include "cuda/draw/mixture.h"
#include "cuda/replay/on_policy.h"
#include "cuda/replay/priorities.h"
#include "cuda/runtime/device.h"
#include "cuda/runtime/dialect.h"
#include "cuda/tree/tree_kernels.h"
#include "rules/limits.h"
#include "rules/mass.h"
#include "rules/priority.h"

namespace per::cuda {
namespace {

// For calls that wait for the device. They use the handle's own stream; the caller's stream is only checked.
void require_no_capture(void* stream) {
    if (stream != nullptr && is_captured(static_cast<cudaStream_t>(stream))) refuse_capture(stream);
}

// A call that sets an option cannot be captured: the host keeps the option, too, and does not learn of launches.
void require_no_capture(const StreamOrder::Call& call, const char* option) {
    if (call.is_captured())
        throw Error(PER_ERROR_INVALID_ARGUMENT, "stream is %p: it is being captured, and %s is not set by a graph",
                    static_cast<void*>(call.stream()), option);
}

// Checks only the first array of a batch that is given, since each check is a call of the driver.
void require_batch_reachable(const per_batch& batch, const Fields& fields) {
    bool is_checked = false;
    for_each_array(batch, fields, [&](const char* name, const void* array, std::size_t) {
        if (!is_checked) require_reachable(name, array);
        is_checked |= array != nullptr;
    });
}

// Checks one array in place of all: ids, units or a key if the call has them, or else an array of the batch. The ids of
// an epoch need no check, as they lie in host memory.
void require_sample_reachable(const ReplaySample& sample, const Fields& fields) {
    if (const auto* const rows = sample.rows_as<RowsOfIds>()) return require_reachable("ids", rows->ids);
    if (const auto* const rows = sample.rows_as<RowsOfUnits>()) return require_reachable("units", rows->units);
    const auto* const drawn = sample.rows_as<DrawnRows>();
    if (drawn != nullptr && drawn->key != nullptr) return require_reachable("key", drawn->key);
    require_batch_reachable(sample.batch, fields);
}

// ---- kernels of one thread: settings

__global__ void set_beta_kernel(ReplayState* state, double beta) {
    state->beta.first = beta;
    state->beta.n_steps = 0;
}

__global__ void set_gamma_kernel(ReplayState* state, double gamma) {
    state->gamma = gamma;
}

__global__ void raise_max_priority_kernel(ReplayState* state, float priority) {
    atomicMax(&state->largest_bits, __float_as_uint(priority + 0.0f));  // -0 becomes 0
}

__global__ void reserve_batches_kernel(ReplayState* state, uint64_t count) {
    state->batches += count;
}

__global__ void hand_out_kernel(ReplayState* state) {
    --state->n_ahead;
}

__global__ void end_ahead_kernel(ReplayState* state) {
    state->beta.step -= state->n_ahead;
    state->n_ahead = 0;
}

__global__ void take_back_kernel(ReplayState* state, bool by_schedule) {
    --state->batches;
    if (by_schedule) --state->beta.step;
    state->last.size = 0;
}

__global__ void clear_lanes_kernel(DeviceReplay replay) {
    const GridSpan span = grid_span();
    for (int64_t env = span.first; env < replay.n_envs; env += span.step) {
        Lane& lane = replay.lanes[env];
        lane.first = lane.head;
        lane.tail = lane.head;
        if (lane.in_episode()) lane.state = LaneState::idle;
    }
}

}  // namespace

CudaReplayBackend::CudaReplayBackend(const per_replay_options& options, const Fields& fields)
    : fields_(fields),
      skips_invalid_(options.on_invalid == PER_INVALID_SKIP),
      always_has_ranks_(options.prioritization == PER_RANK),
      order_(options.device_index),
      host_copy_(sizeof(HostCopy)),
      memory_(options, fields, order_.own_stream()),
      steps_(memory_, fields, options, order_.own_stream()),
      batches_(options, fields, memory_, steps_.staging(), order_.own_stream()),
      hindsight_(memory_, fields, options) {
    load_kernels(set_beta_kernel, set_gamma_kernel, raise_max_priority_kernel, reserve_batches_kernel, hand_out_kernel,
                 end_ahead_kernel, take_back_kernel, clear_lanes_kernel);
    load_mixture_kernels();
    load_on_policy_kernels();
    load_priority_kernels();
    wait_for(order_.own_stream());
}

// -------------------------------------------------------------------------------------------------------- calls

void CudaReplayBackend::add(const ReplaySteps& steps, int64_t* ids_out, void* stream) {
    StreamOrder::Call call(order_, stream);
    steps_.add(steps, ids_out, call);
    call.finish();
}

void CudaReplayBackend::cut(int64_t count, const int64_t* env_ids, void* stream) {
    StreamOrder::Call call(order_, stream);
    steps_.cut(count, env_ids, call);
    call.finish();
}

void CudaReplayBackend::sample(const ReplaySample& sample, void* stream) {
    StreamOrder::Call call(order_, stream);
    if (!sample.is_ahead()) require_sample_reachable(sample, fields_);
    batches_.sample(sample, call);
    if (!sample.is_drawn() && sample.n_step_min != 0)
        launch(call.stream(), 1, 1, reserve_batches_kernel, memory_.device().state, uint64_t{1});
    call.finish();
}

// Makes sure that the draw finds its memory. Whether enough transitions are live is known to the device alone.
void CudaReplayBackend::choose_rows(const ReplaySample& sample) {
    require_sample_reachable(sample, fields_);
    batches_.prepare(sample, *mixture_call_);
}

void CudaReplayBackend::check_update(const ReplayUpdate& update) {
    require_reachable("ids", update.ids);
    batches_.entries_for(update.count, *mixture_call_);
}

void CudaReplayBackend::write_mixture(std::span<const SourceRows> sources, int32_t normalize_weights,
                                      const per_batch& batch, int32_t* sources_out) {
    std::array<SourceShares, max_sources> shares;
    for (std::size_t k = sources.size(); k-- > 0;) {
        const SourceRows& rows = sources[k];
        CudaReplayBackend& backend = static_cast<CudaReplayBackend&>(*rows.backend);
        if (rows.count > 0) backend.batches_.sample(*rows.sample, *backend.mixture_call_);
        const ReplayState& state = *backend.memory_.device().state;  // on the device: only addresses are taken
        shares[k] = {backend.batches_.shares(),
                     &state.last.reference,
                     &state.last.beta,
                     &state.n_live,
                     rows.share,
                     rows.first,
                     rows.count};
    }
    queue_mixture({shares.data(), sources.size()}, normalize_weights, batch, sources_out, mixture_call_->stream());
}

void CudaReplayBackend::end_mixture(bool is_done) {
    if (is_done) mixture_call_->finish();
    mixture_call_.reset();
}

void CudaReplayBackend::sample_hindsight(const ReplaySample& sample, const ReplayHindsight& hindsight,
                                         Relabelling& relabelling, void* stream) {
    StreamOrder::Call call(order_, stream);
    if (call.is_captured()) refuse_capture(stream);
    require_sample_reachable(sample, fields_);
    const HostCopy& copy = read(call);
    const ReplayState before = copy.replay;
    const bool is_drawn = sample.is_drawn();
    if (is_drawn && before.n_live == 0)
        throw_empty(memory_.device().has_sequences, before.rules.n_step, before.counters.added);
    relabelling.clear(fields_.count());
    relabelling.gamma = before.gamma;
    relabelling.batch_number = before.batches;
    relabelling.by_schedule = is_drawn && std::isnan(sample.beta);
    relabelling.took_ranks =
        sample.prioritization == PER_RANK &&
        (!has_ranks(memory_.device().priorities) || ranks_are_due(copy.ranks.n_changes, copy.ranks.n_live));
    relabelling.batch_before = batches_.last_batch(before.last, call);
    batches_.sample(sample, call);
    relabelling.is_drawn = is_drawn;
    if (!is_drawn) launch(call.stream(), 1, 1, reserve_batches_kernel, memory_.device().state, uint64_t{1});
    try {
        hindsight_.choose_goals(sample, hindsight, batches_.slots_of(sample), relabelling, call);
    } catch (...) {
        take_back(relabelling, call);
        throw;
    }
    call.finish();
}

void CudaReplayBackend::relabel(const Relabelling& relabelling, const per_batch& batch, void* stream) {
    StreamOrder::Call call(order_, stream);
    hindsight_.write_returns(relabelling, batch, call);
    call.finish();
}

void CudaReplayBackend::take_back(Relabelling& relabelling, const StreamOrder::Call& call) {
    if (read(call).replay.batches != relabelling.batch_number + 1) return;
    launch(call.stream(), 1, 1, take_back_kernel, memory_.device().state, relabelling.by_schedule);
    if (relabelling.took_ranks) queue_forget_ranks(memory_.device(), call.stream());
    batches_.restore(std::move(relabelling.batch_before));
}

void CudaReplayBackend::take_back_draw(Relabelling& relabelling) {
    StreamOrder::Call call(order_, order_.own_stream());
    take_back(relabelling, call);
    call.finish();
}

void CudaReplayBackend::update(const ReplayUpdate& update, void* stream) {
    StreamOrder::Call call(order_, stream);
    if (update.count > 0) require_reachable("ids", update.ids);
    queue_update(update, call);
    call.finish();
}

void CudaReplayBackend::queue_update(const ReplayUpdate& update, const StreamOrder::Call& call) {
    queue_priorities(memory_.device(), update, batches_.entries_for(update.count, call), call.stream());
}

void CudaReplayBackend::priorities(int64_t count, const int64_t* ids, float* priorities_out, void* stream) {
    StreamOrder::Call call(order_, stream);
    if (count > 0) require_reachable("ids", ids);
    queue_read_priorities(memory_.device(), count, ids, priorities_out, call.stream());
    call.finish();
}

void CudaReplayBackend::get(int64_t count, const int64_t* ids, const per_batch& batch, void* stream) {
    StreamOrder::Call call(order_, stream);
    if (count > 0) require_reachable("ids", ids);
    batches_.get(count, ids, batch, call);
    call.finish();
}

void CudaReplayBackend::set(int64_t count, const int64_t* ids, const per_array* fields, void* stream) {
    StreamOrder::Call call(order_, stream);
    if (count > 0) require_reachable("ids", ids);
    batches_.set(count, ids, fields, call);
    call.finish();
}

void CudaReplayBackend::clear(void* stream) {
    StreamOrder::Call call(order_, stream);
    const DeviceReplay& replay = memory_.device();
    launch(call.stream(), (replay.n_envs + n_threads - 1) / n_threads, n_threads, clear_lanes_kernel, replay);
    queue_no_priorities(replay, call.stream());
    call.finish();
}

void CudaReplayBackend::begin_ahead(const ReplaySample& sample, FrameGather*) {
    StreamOrder::Call call(order_, order_.own_stream());
    batches_.prepare(sample, call);
    call.finish();
}

void CudaReplayBackend::hand_out() {
    StreamOrder::Call call(order_, order_.own_stream());
    launch(call.stream(), 1, 1, hand_out_kernel, memory_.device().state);
    call.finish();
}

void CudaReplayBackend::end_ahead() {
    StreamOrder::Call call(order_, order_.own_stream());
    launch(call.stream(), 1, 1, end_ahead_kernel, memory_.device().state);
    call.finish();
}

// ---------------------------------------------------------------------------------------------------- on-policy

std::vector<int64_t> CudaReplayBackend::live_ids(void* stream) {
    StreamOrder::Call call(order_, order_.own_stream());
    require_no_capture(stream);
    const DeviceReplay& replay = memory_.device();
    const DeviceLive& live = replay.priorities.live;
    const std::vector<uint32_t> words = read_array(live.words, live.n_nodes[0], call.stream());
    const std::vector<Lane> lanes = read_array(replay.lanes, replay.n_envs, call.stream());
    const HostCopy& copy = read(call);
    call.finish();

    const WindowRules& rules = copy.replay.rules;
    std::vector<int64_t> ids;
    ids.reserve(static_cast<std::size_t>(copy.replay.n_live));
    for (int64_t env = 0; env < replay.n_envs; ++env) {
        const Lane& lane = lanes[static_cast<std::size_t>(env)];
        for (int64_t row = lane.tail; row < complete_end(lane, rules); ++row) {
            const int64_t slot = rules.ring.slot(env, row);
            if (words[static_cast<std::size_t>(slot / slots_per_word)] >> slot % slots_per_word & 1)
                ids.push_back(rules.ring.id(env, row));
        }
    }
    return ids;
}

uint64_t CudaReplayBackend::reserve_batches(int64_t count, void* stream) {
    StreamOrder::Call call(order_, order_.own_stream());
    require_no_capture(stream);
    const uint64_t first = read(call).replay.batches;
    launch(call.stream(), 1, 1, reserve_batches_kernel, memory_.device().state, static_cast<uint64_t>(count));
    call.finish();
    return first;
}

int64_t CudaReplayBackend::bootstraps(int64_t capacity, const per_batch& batch, void* stream) {
    StreamOrder::Call call(order_, stream);
    if (call.is_captured()) refuse_capture(stream);
    if (capacity > 0) require_batch_reachable(batch, fields_);
    const DeviceReplay& replay = memory_.device();
    HostCopy* const copy = reinterpret_cast<HostCopy*>(host_copy_.data());
    queue_count_bootstraps(replay, call.stream());
    copy_to_host(&copy->n_bootstraps, replay.bootstraps + replay.n_envs, 1, call.stream());
    wait_for(call.stream());
    const int64_t count = copy->n_bootstraps;
    batches_.bootstraps(std::min(count, capacity), batch, call);
    call.finish();
    return count;
}

void CudaReplayBackend::advantages(const ReplayAdvantages& advantages, void* stream) {
    StreamOrder::Call call(order_, stream);
    if (advantages.count > 0) require_reachable("ids", advantages.ids);
    queue_advantages(memory_.device(), advantages, call.stream());
    call.finish();
}

// ----------------------------------------------------------------------------------------------------- settings

// All settings are changed within one StreamOrder::Call: if it refuses the stream, nothing has changed yet.
void CudaReplayBackend::change_settings(const per_replay_settings& settings, void* stream) {
    const bool sets_alpha = !std::isnan(settings.alpha), sets_beta = !std::isnan(settings.beta);
    const bool sets_gamma = !std::isnan(settings.gamma), sets_n_step = settings.n_step != 0;
    const bool sets_version = settings.version != -1;
    if (!sets_alpha && !sets_beta && !sets_gamma && !sets_n_step && !sets_version) return;
    StreamOrder::Call call(order_, stream);
    require_no_capture(call, sets_alpha    ? "alpha"
                             : sets_beta   ? "beta"
                             : sets_gamma  ? "gamma"
                             : sets_n_step ? "n_step"
                                           : "version");
    auto* const state = memory_.device().state;
    if (sets_alpha) queue_alpha(memory_.device(), settings.alpha, call.stream());
    if (sets_beta) launch(call.stream(), 1, 1, set_beta_kernel, state, settings.beta);
    if (sets_gamma) launch(call.stream(), 1, 1, set_gamma_kernel, state, settings.gamma);
    if (sets_n_step) steps_.set_n_step(settings.n_step, call);
    if (sets_version) {
        steps_.set_version(settings.version, call);
        version_ = settings.version;
    }
    call.finish();
}

void CudaReplayBackend::set_scale(const LeafScale& scale) {
    StreamOrder::Call call(order_, order_.own_stream());
    const DeviceTree& tree = memory_.device().priorities.tree;
    const Freshness freshness = read(call).replay.freshness;
    const int64_t raised = raise_to(freshness, scale.reference);
    if (scale.scale != PER_SCALE_AUTOMATIC)
        check_scale(scale.scale, {read_array(tree.leaves, tree.capacity, call.stream()).data(), tree.capacity, raised});
    if (raised > 0) queue_reference(memory_.device(), freshness.reference + raised, raised, call.stream());
    if (scale.scale != PER_SCALE_AUTOMATIC)
        queue_fixed_scale(tree, scale.scale, call.stream());
    else
        queue_automatic_scale(tree, call.stream());
    call.finish();
    wait_for(call.stream());
}

void CudaReplayBackend::raise_max_priority(float priority, void* stream) {
    StreamOrder::Call call(order_, stream);
    launch(call.stream(), 1, 1, raise_max_priority_kernel, memory_.device().state, priority);
    call.finish();
}

// -------------------------------------------------------------------------------------------- what the host sees

// Queues copies of the states of the trees.
void CudaReplayBackend::copy_trees(HostCopy& copy, const StreamOrder::Call& call) {
    const DevicePriorities& priorities = memory_.device().priorities;
    copy_to_host(&copy.tree, priorities.tree.state, 1, call.stream());
    if (has_ranks(priorities)) copy_to_host(&copy.rank_tree, priorities.ranks.tree.state, 1, call.stream());
}

void CudaReplayBackend::require_ordered(const HostCopy& copy) const {
    cuda::require_ordered(copy.tree.meeting);
    if (has_ranks(memory_.device().priorities)) cuda::require_ordered(copy.rank_tree.meeting);
}

// Copies the state to the host, and waits for the stream: all work that was queued before has ended then. The result is
// valid until the next call of read().
const CudaReplayBackend::HostCopy& CudaReplayBackend::read(const StreamOrder::Call& call) {
    HostCopy* const copy = reinterpret_cast<HostCopy*>(host_copy_.data());
    const DeviceReplay& replay = memory_.device();
    const DevicePriorities& priorities = replay.priorities;
    copy_to_host(&copy->replay, replay.state, 1, call.stream());
    copy_trees(*copy, call);
    if (priorities.live_maximum.n_levels != 0)
        copy_to_host(&copy->live_maximum_bits, priorities.live_maximum.top(), 1, call.stream());
    if (has_ranks(priorities)) copy_to_host(&copy->ranks, priorities.ranks.state, 1, call.stream());
    wait_for(call.stream());
    require_ordered(*copy);
    return *copy;
}

void CudaReplayBackend::summarize(const LeafScale& measured, bool wants_smallest, per_shard_summary& summary_out) {
    StreamOrder::Call call(order_, order_.own_stream());
    const HostCopy& copy = read(call);
    const Freshness& freshness = copy.replay.freshness;
    const DevicePriorities& priorities = memory_.device().priorities;
    summary_out.total_mass = copy.tree.total;
    summary_out.live = copy.replay.n_live;
    summary_out.version = version_;
    summary_out.reference = freshness.reference;
    summary_out.max_priority = largest_priority(copy);
    summary_out.scale = copy.tree.scale;
    summary_out.is_scale_fixed = copy.tree.is_scale_fixed;
    if (wants_smallest && copy.tree.total != 0) {
        const uint32_t reversed = read_array(priorities.smallest_leaf.top(), 1, call.stream())[0];
        summary_out.smallest_mass = mass_of(reversed_leaf(bit_cast<float>(reversed)), power_of_two(summary_out.scale));
    }
    if (measured.scale != PER_SCALE_AUTOMATIC) {
        const DeviceTree& tree = priorities.tree;
        const int64_t raised = raise_to(freshness, measured.reference);
        summary_out.measured_reference = freshness.reference + raised;
        measure_leaves({read_array(tree.leaves, tree.capacity, call.stream()).data(), tree.capacity, raised},
                       measured.scale, summary_out);
    }
    call.finish();
}

int64_t CudaReplayBackend::live() {
    StreamOrder::Call call(order_, order_.own_stream());
    const int64_t n_live = read(call).replay.n_live;
    call.finish();
    return n_live;
}

float CudaReplayBackend::largest_priority(const HostCopy& copy) const {
    if (memory_.device().max_priority == PER_MAX_EVER) return bit_cast<float>(copy.replay.largest_bits);
    return copy.replay.n_live > 0 ? bit_cast<float>(copy.live_maximum_bits) : 1.0f;
}

void CudaReplayBackend::statistics(per_replay_statistics& statistics_out) {
    StreamOrder::Call call(order_, order_.own_stream());
    const HostCopy& copy = read(call);
    const ReplayState& state = copy.replay;
    statistics_out.live = state.n_live;
    statistics_out.samples = static_cast<int64_t>(state.batches);
    statistics_out.beta_step = state.beta_step();
    statistics_out.total = static_cast<double>(copy.tree.total) / power_of_two(copy.tree.scale);
    if (state.freshness.decays()) statistics_out.total *= of_age_0(state.freshness, birth_of_age_0(call));
    statistics_out.version = version_;
    statistics_out.max_priority = static_cast<double>(largest_priority(copy));
    statistics_out.alpha = state.alpha;
    statistics_out.beta = state.beta.beta(state.beta_step());
    statistics_out.gamma = state.gamma;
    statistics_out.memory_bytes = static_cast<int64_t>(memory_.n_bytes());
    write_statistics(state.counters, batches_.last_batch(state.last, call).figures(), statistics_out);
    call.finish();
}

int64_t CudaReplayBackend::birth_of_age_0(const StreamOrder::Call& call) {
    const DeviceReplay& replay = memory_.device();
    if (replay.versions != nullptr) return version_;
    return newest_row(read_array(replay.lanes, replay.n_envs, call.stream()));
}

void CudaReplayBackend::synchronize(void* stream) {
    StreamOrder::Call call(order_, stream);
    if (call.is_captured()) refuse_capture(stream);
    ReplayErrors* const errors = &memory_.device().state->errors;
    HostCopy& copy = *reinterpret_cast<HostCopy*>(host_copy_.data());
    copy_to_host(&copy.replay.errors, errors, 1, call.stream());
    copy_trees(copy, call);
    check(cudaMemsetAsync(errors, 0, sizeof *errors, call.stream()), "ending the report");
    call.finish();
    wait_for(call.stream());
    require_ordered(copy);
    report(copy.replay.errors, skips_invalid_, memory_.device().has_sequences);
}

std::unique_ptr<ReplayBackend> create_replay_backend(const per_replay_options& options, const Fields& fields) {
    require_device(options.device_index);
    const CurrentDevice device(options.device_index);
    const ApartFromCaptures apart;
    return std::make_unique<CudaReplayBackend>(options, fields);
}

}  // namespace per::cuda

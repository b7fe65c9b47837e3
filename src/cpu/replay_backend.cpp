#include "cpu/replay_backend.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "backend/batch.h"
#include "backend/create.h"
#include "backend/draw_outcome.h"
#include "backend/leaf_measure.h"

namespace per::cpu {

CpuReplayBackend::CpuReplayBackend(const per_replay_options& options, const Fields& fields)
    : state_(options, fields),
      writer_(state_, options),
      rows_(state_, options),
      draw_(state_.has_sequences),
      plan_(state_),
      sequences_(state_),
      ragged_(state_),
      threads_(std::max(options.gather_threads, 1)),
      goals_(state_) {}

// ---- batches

// Call it before write_live(): it allocates, so if memory runs out, nothing has been written.
void CpuReplayBackend::prepare_live(const NSteps& n_steps, const per_batch& batch, const FrameGather* gather) {
    if (state_.has_sequences)
        sequences_.prepare(n_steps, batch, gather);
    else
        plan_.make(batch, false, gather);
}

// Writes the arrays that depend on the rows alone, not on the draw. ages_out: [slots] or NULL.
void CpuReplayBackend::write_live(const NSteps& n_steps, const std::vector<int64_t>& slots, const per_batch& batch,
                                  int64_t* ages_out) {
    if (!state_.has_sequences) return write_transitions(state_, plan_, n_steps, slots, batch, threads_, ages_out);
    sequences_.run(slots);
    for (size_t i = 0; i < slots.size(); ++i) {
        const int64_t env = state_.ring().env_of_slot(slots[i]);
        const int64_t age = write_id(state_, static_cast<int64_t>(i), env, slots[i], batch);
        if (ages_out != nullptr) ages_out[i] = age;
        if (batch.priorities != nullptr) batch.priorities[i] = state_.priorities.given(slots[i]);
    }
}

// Writes weights and probabilities. Call it after draw_ has drawn or taken the batch.
void CpuReplayBackend::write_law(double beta, const per_batch& batch) const {
    if (batch.weights != nullptr) draw_.write_weights(state_.priorities.tree().kernels().power, beta, batch.weights);
    if (batch.probabilities != nullptr) draw_.write_probabilities(batch.probabilities);
}

void CpuReplayBackend::write_times_sampled(const std::vector<int64_t>& slots, const per_batch& batch) const {
    if (batch.times_sampled == nullptr) return;
    for (size_t i = 0; i < slots.size(); ++i) batch.times_sampled[i] = state_.rows.times_sampled()[slots[i]];
}

void CpuReplayBackend::sample(const ReplaySample& sample, void*) {
    if (sample.is_drawn()) {
        draw(sample);
        return;
    }
    take(sample);
    if (sample.n_step_min != 0) ++state_.batches;
}

// Takes ranks if they are due, and calls choose(), which makes draw_ draw or take a batch. Returns true if it took
// ranks: if the batch is taken back later, these must be forgotten.
template <class Choose>
bool CpuReplayBackend::with_ranks(const ReplaySample& sample, const Choose& choose) {
    const bool took_ranks = sample.prioritization == PER_RANK && state_.priorities.take_ranks_if_due();
    try {
        choose();
    } catch (...) {
        if (took_ranks) state_.priorities.forget_ranks();
        throw;
    }
    return took_ranks;
}

double CpuReplayBackend::beta_of(const ReplaySample& sample) const {
    if (!std::isnan(sample.beta)) return sample.beta;
    return state_.beta.beta(sample.is_ahead() ? state_.beta.step : state_.beta_step());
}

// Draws the slots of a batch. Throws only before it changes anything. Returns true if it took ranks, which must be
// forgotten if the batch is taken back.
bool CpuReplayBackend::choose(const ReplaySample& sample) {
    if (live() == 0) throw_empty(state_.has_sequences, state_.rules.n_step, state_.counters.added);
    const int64_t n = sample.n_drawn();
    if (sample.scheme == PER_WITHOUT_REPLACEMENT) require_drawn(n, {live(), live()}, state_.has_sequences);
    require_newest(sample.n_newest, live(), state_.has_sequences);
    const DrawnRows& rows = std::get<DrawnRows>(sample.rows);
    key_of_draw_ = rows.key_or(key());
    beta_of_draw_ = beta_of(sample);
    const NSteps n_steps = sample.n_steps(key_of_draw_);
    prepare_live(n_steps, sample.batch, rows.ahead ? rows.ahead->gather : nullptr);
    state_.last_batch.ages.reserve(static_cast<size_t>(sample.batch_size));
    find_newest(sample.n_newest);
    const RowsOfLeaves fetched = state_.has_sequences ? RowsOfLeaves{} : plan_.rows_to_fetch(n, n_steps.longest);
    return with_ranks(sample, [&] {
        const DrawRequest request = {n, sample.scheme, key_of_draw_.seed, key_of_draw_.batch_number};
        plan_.set_fetched(draw_.draw(state_.priorities, sample, request, fetched, newest_));
        ragged_.find(sample.batch, n_steps, draw_.slots(), draw_.slots(), threads_);
    });
}

// Fills newest_. `count` must be at most the number of live transitions.
void CpuReplayBackend::find_newest(int64_t count) {
    newest_.clear();
    if (count == 0) return;
    const Ring& ring = state_.ring();
    const LiveSet& live = state_.priorities.live();
    // A heap with an id of each lane, of which no larger one is left that is live.
    newest_ids_.clear();
    for (int64_t env = 0; env < ring.n_envs; ++env) {
        const int64_t row = complete_end(state_.lane(env), state_.rules) - 1;
        if (row >= state_.lane(env).tail) newest_ids_.push_back(ring.id(env, row));
    }
    std::make_heap(newest_ids_.begin(), newest_ids_.end());
    while (std::ssize(newest_) < count) {
        std::pop_heap(newest_ids_.begin(), newest_ids_.end());
        const int64_t id = newest_ids_.back();
        newest_ids_.pop_back();
        const int64_t env = ring.env_of_id(id);
        int64_t row = ring.row_of_id(id);
        if (live.contains(ring.slot(env, row))) newest_.push_back(ring.slot(env, row));
        while (--row >= state_.lane(env).tail)
            if (live.contains(ring.slot(env, row))) {
                newest_ids_.push_back(ring.id(env, row));
                std::push_heap(newest_ids_.begin(), newest_ids_.end());
                break;
            }
    }
}

// Writes the batch whose slots choose() has drawn, except rows of any length, and counts it.
void CpuReplayBackend::write_chosen(const ReplaySample& sample) {
    LastBatch& last = state_.last_batch;
    const bool is_ahead = sample.is_ahead();
    const bool by_schedule = std::isnan(sample.beta);
    const std::vector<int64_t>& slots = draw_.slots();
    last.ages.resize(slots.size());
    write_live(sample.n_steps(key_of_draw_), slots, sample.batch, last.ages.data());
    // An update of these rows usually follows, and first reads what is prefetched here.
    for (const int64_t slot : slots) state_.priorities.live().prefetch(slot);
    write_law(beta_of_draw_, sample.batch);
    if (state_.rows.has_times_sampled()) {
        state_.count_draws(slots);
        write_times_sampled(slots, sample.batch);
    }
    draw_.become(last, beta_of_draw_);
    ++state_.batches;
    if (by_schedule) ++state_.beta.step;
    if (by_schedule && is_ahead) ++state_.n_ahead;
}

// Returns true if the draw took ranks.
bool CpuReplayBackend::draw(const ReplaySample& sample) {
    const bool took_ranks = choose(sample);
    ragged_.write(threads_);
    write_chosen(sample);
    return took_ranks;
}

// ---- mixtures

void CpuReplayBackend::write_mixture(std::span<const SourceRows> sources, int32_t normalize_weights,
                                     const per_batch& batch, int32_t* sources_out) {
    const PowerKernels& kernels = state_.priorities.tree().kernels().power;
    const auto backend_of = [](const SourceRows& rows) -> CpuReplayBackend& {
        return static_cast<CpuReplayBackend&>(*rows.backend);
    };
    const auto factor_of = [&](const SourceRows& rows) {
        CpuReplayBackend& backend = backend_of(rows);
        return mixture_factor(rows.share, backend.draw_.reference(), backend.live());
    };
    // The weights come first, while the shares are still in the cache.
    double smallest = no_share();
    int64_t n_live = 0;
    for (const SourceRows& rows : sources) {
        n_live += backend_of(rows).live();
        if (rows.count > 0)
            smallest = std::min(smallest,
                                kernels.smallest(rows.count, backend_of(rows).draw_.shares().data()) * factor_of(rows));
    }
    const double reference = normalize_weights == PER_NONE ? 1.0 / static_cast<double>(n_live) : smallest;
    for (const SourceRows& rows : sources) {
        if (sources_out != nullptr)
            std::fill_n(sources_out + rows.first, rows.count, static_cast<int32_t>(&rows - sources.data()));
        if (rows.count == 0) continue;
        const double factor = factor_of(rows);
        const double* const shares = backend_of(rows).draw_.shares().data();
        if (batch.weights != nullptr)
            kernels.weigh_shares(rows.count, shares, reference / factor, backend_of(rows).beta_of_draw_,
                                 batch.weights + rows.first);
        for (int64_t j = 0; j < rows.count && batch.probabilities != nullptr; ++j)
            batch.probabilities[rows.first + j] = static_cast<float>(shares[j] * factor);
    }
    for (std::size_t k = sources.size(); k-- > 0;) {
        if (sources[k].count == 0) continue;
        backend_of(sources[k]).ragged_.take_room();
        backend_of(sources[k]).ragged_.write(threads_);
    }
    // In the order in which the sources were drawn, so that their slots are still in the cache.
    for (const SourceRows& rows : sources)
        if (rows.count > 0) backend_of(rows).write_chosen(*rows.sample);
}

void CpuReplayBackend::end_mixture(bool is_done) {
    if (!is_done && chosen_took_ranks_) state_.priorities.forget_ranks();
}

// Writes the transitions that `sample` names by ids or units. Returns true if it took ranks. In place of transitions
// that are not live, others of the batch are written first and then cleared, so that the writing code needs no special
// case.
bool CpuReplayBackend::take(const ReplaySample& sample) {
    const auto* const of_units = sample.rows_as<RowsOfUnits>();
    const std::vector<int64_t>& slots = of_units != nullptr
                                            ? draw_.find_units(state_.priorities, sample.batch_size, *of_units)
                                            : rows_.find_live(sample);
    const bool has_live = std::any_of(slots.begin(), slots.end(), [](int64_t slot) { return slot >= 0; });
    const NSteps n_steps = sample.n_steps(key());
    prepare_live(n_steps, sample.batch, nullptr);
    const auto find_ragged = [&] {
        ragged_.find(sample.batch, n_steps, slots, has_live ? draw_.slots() : std::vector<int64_t>(), threads_);
    };
    const auto take_slots = [&] {
        if (has_live) draw_.take(state_.priorities, sample, slots);
        find_ragged();
    };
    const bool took_ranks = live() > 0 && with_ranks(sample, take_slots);
    if (live() == 0) find_ragged();
    ragged_.write(threads_);
    if (of_units != nullptr) draw_.write_units(state_.priorities.tree(), *of_units);
    if (has_live) {
        write_live(n_steps, draw_.slots(), sample.batch, nullptr);
        write_law(beta_of(sample), sample.batch);
        write_times_sampled(draw_.slots(), sample.batch);
    }
    const int64_t steps = state_.has_sequences ? state_.rules.sequence.steps : 0;
    for (size_t i = 0; i < slots.size(); ++i)
        if (slots[i] < 0)
            clear_place(sample.batch, state_.fields, {sample.batch_size, steps, sample.n_step},
                        static_cast<int64_t>(i));
    return took_ranks;
}

void CpuReplayBackend::sample_hindsight(const ReplaySample& sample, const ReplayHindsight& hindsight,
                                        Relabelling& relabelling, void*) {
    relabelling.clear(state_.fields.count());
    relabelling.gamma = state_.gamma;
    relabelling.batch_number = static_cast<uint64_t>(state_.batches);
    const auto* const drawn = sample.rows_as<DrawnRows>();
    relabelling.by_schedule = drawn != nullptr && std::isnan(sample.beta);
    relabelling.batch_before = state_.last_batch;
    relabelling.took_ranks = drawn != nullptr ? draw(sample) : take(sample);
    relabelling.is_drawn = drawn != nullptr;
    if (drawn == nullptr) reserve_batches(1, nullptr);
    try {
        goals_.choose_goals(sample, hindsight, drawn != nullptr ? state_.last_batch.slots : rows_.slots(), relabelling);
    } catch (...) {
        take_back_draw(relabelling);
        throw;
    }
}

void CpuReplayBackend::take_back_draw(Relabelling& relabelling) {
    if (static_cast<uint64_t>(state_.batches) != relabelling.batch_number + 1) return;
    --state_.batches;
    if (relabelling.by_schedule) --state_.beta.step;
    if (relabelling.took_ranks) state_.priorities.forget_ranks();
    std::swap(state_.last_batch, relabelling.batch_before);
}

// ---- for a loader

void CpuReplayBackend::begin_ahead(const ReplaySample&, FrameGather* gather) {
    if (gather != nullptr) state_.reads.begin(*gather, state_.ring().capacity());
}

void CpuReplayBackend::end_ahead() {
    state_.beta.step -= state_.n_ahead.exchange(0);
    state_.reads.end();
}

// ---- on-policy

uint64_t CpuReplayBackend::reserve_batches(int64_t count, void*) {
    const int64_t first = state_.batches;
    state_.batches += count;
    return static_cast<uint64_t>(first);
}

int64_t CpuReplayBackend::bootstraps(int64_t capacity, const per_batch& batch, void*) {
    const int64_t count = find_bootstraps(state_, capacity, bootstraps_);
    const GatherPlan& plan = plan_.make(batch, false);
    ragged_.find_transitions(batch, {1}, bootstraps_, threads_);
    ragged_.write(threads_);
    write_transitions(state_, plan, {1}, bootstraps_, batch, threads_, nullptr);
    for (size_t i = 0; batch.priorities != nullptr && i < bootstraps_.size(); ++i)
        batch.priorities[i] = state_.priorities.priority(bootstraps_[i]);
    write_times_sampled(bootstraps_, batch);
    return count;
}

// ---- the whole buffer

void CpuReplayBackend::change_settings(const per_replay_settings& settings, void*) {
    if (!std::isnan(settings.alpha)) state_.priorities.set_alpha(settings.alpha);
    if (!std::isnan(settings.beta)) {
        state_.beta.first = settings.beta;
        state_.beta.n_steps = 0;
    }
    if (!std::isnan(settings.gamma)) state_.gamma = settings.gamma;
    if (settings.n_step != 0) state_.set_n_step(settings.n_step);
    if (settings.version != -1) state_.set_version(settings.version);
}

void CpuReplayBackend::summarize(const LeafScale& measured, bool wants_smallest, per_shard_summary& summary_out) {
    const SumTree& tree = state_.priorities.tree();
    const Freshness& freshness = state_.priorities.freshness();
    summary_out.total_mass = tree.total_mass();
    summary_out.live = live();
    summary_out.version = state_.version;
    summary_out.reference = freshness.reference;
    summary_out.max_priority = state_.priorities.largest();
    summary_out.scale = tree.scale();
    summary_out.is_scale_fixed = tree.is_scale_fixed() ? 1 : 0;
    if (wants_smallest && tree.total_mass() != 0)
        summary_out.smallest_mass = state_.priorities.smallest_mass(PER_PROPORTIONAL);
    if (measured.scale == PER_SCALE_AUTOMATIC) return;
    const int64_t raised = raise_to(freshness, measured.reference);
    summary_out.measured_reference = freshness.reference + raised;
    measure_leaves({tree.leaves(), tree.capacity(), raised}, measured.scale, summary_out);
}

void CpuReplayBackend::set_scale(const LeafScale& scale) {
    PriorityStore& priorities = state_.priorities;
    const SumTree& tree = priorities.tree();
    const int64_t raised = raise_to(priorities.freshness(), scale.reference);
    if (scale.scale != PER_SCALE_AUTOMATIC) check_scale(scale.scale, {tree.leaves(), tree.capacity(), raised});
    priorities.set_scale({scale.scale, priorities.freshness().reference + raised});
}

void CpuReplayBackend::statistics(per_replay_statistics& statistics_out) {
    const SumTree& tree = state_.priorities.tree();
    write_statistics(state_.counters, state_.last_batch.figures(), statistics_out);
    statistics_out.live = live();
    statistics_out.samples = state_.batches;
    statistics_out.beta_step = state_.beta_step();
    statistics_out.total = static_cast<double>(tree.total_mass()) / power_of_two(tree.scale());
    if (const Freshness& freshness = state_.priorities.freshness(); freshness.decays())
        statistics_out.total *=
            of_age_0(freshness, state_.rows.has_versions() ? state_.version : newest_row(state_.lanes));
    statistics_out.version = state_.version;
    statistics_out.max_priority = static_cast<double>(state_.priorities.largest());
    statistics_out.alpha = state_.priorities.alpha();
    statistics_out.beta = state_.beta.beta(state_.beta_step());
    statistics_out.gamma = state_.gamma;
    const MemoryUse use = state_.rows.memory_use() + state_.priorities.memory_use();
    statistics_out.memory_bytes = static_cast<int64_t>(use.bytes);
    statistics_out.huge_page_bytes = static_cast<int64_t>(use.huge_page_bytes);
}

std::unique_ptr<ReplayBackend> create_replay_backend(const per_replay_options& options, const Fields& fields) {
    return std::make_unique<CpuReplayBackend>(options, fields);
}

}  // namespace per::cpu

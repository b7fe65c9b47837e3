#include "cpu/replay/replay_backend.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <new>

#include "rows/arguments.h"
#include "rows/cast.h"
#include "rows/error.h"
#include "rules/td_error.h"

namespace per::cpu {

CpuReplayBackend::CpuReplayBackend(const per_replay_options& options, const Fields& fields)
    : state_(options, fields),
      writer_(state_, options),
      gather_(state_),
      has_sequences_(options.sequence_length > 0),
      sequence_gather_(state_),
      threads_(std::max(options.gather_threads, 1)),
      gamma_(options.gamma),
      epsilon_(options.epsilon),
      sequence_eta_(options.sequence_eta),
      critics_(options.critics),
      skips_invalid_(options.on_invalid == PER_INVALID_SKIP),
      seed_(options.seed),
      beta_{options.beta, options.beta_final, options.beta_steps},
      part_ages_(static_cast<size_t>(threads_.count())),
      given_(static_cast<size_t>(fields.count())) {}

void CpuReplayBackend::add(const ReplaySteps& steps, int64_t* ids_out, void*) {
    writer_.add(steps, ids_out);
}

void CpuReplayBackend::cut(int64_t count, const int64_t* env_ids, void*) {
    const float largest = state_.priorities.largest();
    state_.begin_change(count);
    for (int64_t j = 0; j < count; ++j) {
        const int64_t env = env_ids != nullptr ? env_ids[j] : j;
        Lane& lane = state_.lane(env);
        state_.watch(env);
        if (lane.in_episode()) state_.apply(env, cut_episode(lane, state_.rules), largest);
    }
    state_.commit();
}

// ---------------------------------------------------------------------------------------------------------- batches

// To be called before write_live(): where memory ends, nothing has been written.
void CpuReplayBackend::prepare_live(int64_t n_step, const per_batch& batch) {
    if (has_sequences_)
        sequence_gather_.prepare(n_step, gamma_, batch);
    else
        gather_.prepare(batch, false);
}

// What a batch has of live transitions or sequences: the rest is that of the draw.
void CpuReplayBackend::write_live(int64_t n_step, const std::vector<int64_t>& slots, const per_batch& batch) {
    if (batch.priorities != nullptr)
        for (size_t i = 0; i < slots.size(); ++i) batch.priorities[i] = state_.priorities.given(slots[i]);
    if (!has_sequences_) return write_rows(n_step, slots, batch);
    sequence_gather_.run(slots);
    ages_ = {};
    for (size_t i = 0; i < slots.size(); ++i) write_id(static_cast<int64_t>(i), slots[i], batch, ages_);
}

// Of what lies in the slot, with its age.
inline void CpuReplayBackend::write_id(int64_t i, int64_t slot, const per_batch& batch, BatchAges& ages) const {
    const Ring& ring = state_.ring();
    const int64_t env = ring.env_of_slot(slot);
    const int64_t head = state_.lane(env).head;
    const int64_t row = ring.row_of_slot(env, slot, head);
    ages.add(head - 1 - row);
    if (batch.ids != nullptr) batch.ids[i] = ring.id(env, row);
}

// Fetches what rows in these slots are made of if their windows are whole and their stacks full, as most are: to wait
// for the flags, which say it, would be to wait twice. In loops that do nothing else: where many pages are touched a
// fetch waits until its page is found, and between other work few such waits overlap.
void CpuReplayBackend::prefetch_rows(int64_t n_step, const int64_t* slots, int64_t n) const {
    const Return whole = {0.0f, 0.0f, static_cast<int32_t>(n_step), row_is_step, static_cast<int32_t>(n_step)};
    GatherRow rows[Gather::most_block_rows];
    for (int64_t i = 0; i < n; ++i) {
        __builtin_prefetch(state_.rows.flags() + slots[i]);
        __builtin_prefetch(state_.rows.rewards() + slots[i]);
        new (rows + i) GatherRow(per::gather_row(state_.rules, state_.ring().env_of_slot(slots[i]), slots[i], whole,
                                                 gather_.wishes(), [](int64_t) { return uint8_t{row_is_step}; }));
    }
    gather_.prefetch(rows, n);
}

// Writes rows first .. first + n - 1 of the batch. Each is made in its place: copying what was just written in pieces
// stalls for 5 ns.
void CpuReplayBackend::write_block(int64_t n_step, const int64_t* slots, int64_t n, int64_t first,
                                   const per_batch& batch, BatchAges& ages) const {
    GatherRow rows[Gather::most_block_rows];
    for (int64_t i = 0; i < n; ++i) {
        const int64_t env = state_.ring().env_of_slot(slots[i]);
        const Return window = return_of(env, slots[i], n_step);
        new (rows + i) GatherRow(gather_row(env, slots[i], window));
        write_return(first + i, window, batch);
        write_id(first + i, slots[i], batch, ages);
    }
    gather_.copy(first, rows, n);
}

// While a block of rows is written, the next one comes in.
BatchAges CpuReplayBackend::write_some_rows(int64_t n_step, const int64_t* slots, int64_t first, int64_t end,
                                            const per_batch& batch) const {
    BatchAges ages;
    const int64_t block = gather_.block_rows();
    prefetch_rows(n_step, slots + first, std::min(block, end - first));
    for (int64_t at = first; at < end; at += block) {
        const int64_t next = std::min(at + block, end);
        prefetch_rows(n_step, slots + next, std::min(block, end - next));
        write_block(n_step, slots + at, next - at, at, batch, ages);
    }
    return ages;
}

// After gather_ was prepared.
void CpuReplayBackend::write_rows(int64_t n_step, const std::vector<int64_t>& slots, const per_batch& batch) {
    // Below this, waking a thread takes a good part of what it saves.
    constexpr int64_t least_bytes_of_part = int64_t{1} << 19;
    const int64_t n = static_cast<int64_t>(slots.size());
    const int64_t most_parts = std::max<int64_t>(1, std::min(threads_.count(), n));
    const int64_t n_parts = std::clamp<int64_t>(n * gather_.row_bytes() / least_bytes_of_part, 1, most_parts);
    threads_.run(n_parts, [&](int64_t part) {
        part_ages_[static_cast<size_t>(part)] =
            write_some_rows(n_step, slots.data(), n * part / n_parts, n * (part + 1) / n_parts, batch);
    });
    ages_ = {};
    for (int64_t part = 0; part < n_parts; ++part) ages_.add(part_ages_[static_cast<size_t>(part)]);
}

void CpuReplayBackend::sample(const ReplaySample& sample, void*) {
    draw_batch(sample);
}

// Returns whether the draw took ranks: one that is taken back then forgets them.
bool CpuReplayBackend::draw_batch(const ReplaySample& sample) {
    if (live() == 0) throw_empty(sample.of_sequences);
    prepare_live(sample.n_step, sample.batch);
    const bool by_schedule = std::isnan(sample.beta);
    const double beta = by_schedule ? beta_.beta(sample.is_ahead ? beta_.step : beta_step()) : sample.beta;
    LiveDraw& draw = last_batch_.spare_draw();
    const bool took_ranks = sample.prioritization == PER_RANK && state_.priorities.take_ranks_if_due();
    try {
        draw.draw(state_.priorities, sample,
                  {sample.batch_size, sample.scheme, seed_, static_cast<uint64_t>(batches_)});
    } catch (...) {
        if (took_ranks) state_.priorities.forget_ranks();
        throw;
    }
    write_live(sample.n_step, draw.slots(), sample.batch);
    // What an update of these rows, which mostly follows, begins with.
    for (const int64_t slot : draw.slots()) state_.priorities.live().prefetch(slot);
    if (sample.batch.weights != nullptr)
        draw.write_weights(state_.priorities.tree().kernels().power, beta, sample.batch.weights);
    if (sample.batch.probabilities != nullptr) draw.write_probabilities(sample.batch.probabilities);
    last_batch_.drawn(beta, ages_);
    ++batches_;
    if (by_schedule) ++beta_.step;
    if (by_schedule && sample.is_ahead) ++ahead_;
    return took_ranks;
}

// --------------------------------------------------------------------------------------------------------- rows by id

CpuReplayBackend::Row CpuReplayBackend::row_of(int64_t i, int64_t id) const {
    if (id == -1) return {0, -1, 0, false};
    const Ring& ring = state_.ring();
    const int64_t env = ring.env_of_id(id);
    const int64_t k = ring.row_of_id(id);
    if (id < 0 || k >= state_.lane(env).head)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "ids[%" PRId64 "] is %" PRId64 ": never issued", i, id);
    return {env, k, ring.slot(env, k), k >= oldest_row(state_.lane(env), state_.rules)};
}

// Whether an update reaches the row, which is there: it is live, or will be.
bool CpuReplayBackend::accepts(int64_t slot) const {
    if (state_.priorities.live().contains(slot)) return true;
    const int64_t env = state_.ring().env_of_slot(slot);
    return is_pending(state_.lane(env), state_.rules, row_in(env, slot));
}

void CpuReplayBackend::check_priorities(const ReplayUpdate& update) const {
    for (int64_t i = 0; i < update.count; ++i) {
        const float p = given_priorities_[static_cast<size_t>(i)];
        if (is_priority(p)) continue;
        if (update.td_errors == nullptr)
            throw Error(PER_ERROR_INVALID_ARGUMENT, "priorities[%" PRId64 "] is %g: must be finite and >= 0", i,
                        static_cast<double>(p));
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "td_errors[%" PRId64
                    "] gives the priority %g: TD errors must be finite, and |td_error| + epsilon "
                    "within float32",
                    i, static_cast<double>(p));
    }
}

void CpuReplayBackend::read_priorities(const ReplayUpdate& update) {
    given_priorities_.resize(static_cast<size_t>(update.count));
    float* const priorities = given_priorities_.data();
    if (update.td_errors == nullptr)
        std::copy_n(update.priorities, update.count, priorities);
    else if (has_sequences_)
        read_sequence_priorities(update);
    else if (update.n_critics == 1)
        state_.priorities.tree().kernels().power.from_td_errors(update.count, update.td_errors, epsilon_, priorities);
    else
        for (int64_t i = 0; i < update.count; ++i)
            priorities[i] = td_error_priority(update.td_errors + i, update.n_critics, update.count, critics_, epsilon_);
}

// After find_slots(). Of sequences that can no longer be drawn the mask is not known, and of those that have no step
// after the burn-in yet no error says anything: they are as if they were not there.
void CpuReplayBackend::read_sequence_priorities(const ReplayUpdate& update) {
    const SequenceRules& sequence = state_.rules.sequence;
    const int64_t n_given = sequence.steps - update.n_left_out;
    for (int64_t i = 0; i < update.count; ++i) {
        int64_t& slot = slots_[static_cast<size_t>(i)];
        float& priority = given_priorities_[static_cast<size_t>(i)];
        int64_t n_steps = 0;
        if (slot >= 0 && accepts(slot)) {
            const int64_t env = state_.ring().env_of_slot(slot);
            n_steps = complete_steps(state_.lane(env), state_.rules, row_in(env, slot),
                                     [&](int64_t row) { return state_.flags(env, row); });
        }
        if (n_steps <= sequence.burn_in) {
            slot = -1;
            priority = 0.0f;
            continue;
        }
        priority = sequence_priority(update.td_errors + i * n_given, update.n_critics, update.count * n_given, critics_,
                                     {sequence.burn_in - update.n_left_out, n_steps - update.n_left_out}, sequence_eta_,
                                     epsilon_);
    }
}

// The slots of rows by id, -1 for those that are not there.
void CpuReplayBackend::find_slots(int64_t count, const int64_t* ids) {
    slots_.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
        const Row row = row_of(i, read_once(ids[i]));
        if (row.is_there) state_.priorities.prefetch_to_update(row.slot);
        slots_[static_cast<size_t>(i)] = row.is_there ? row.slot : -1;
    }
}

void CpuReplayBackend::update(const ReplayUpdate& update, void*) {
    find_slots(update.count, update.ids);
    read_priorities(update);
    PriorityStore& priorities = state_.priorities;
    const bool all_valid = priorities.tree().kernels().power.are_priorities(update.count, given_priorities_.data());
    if (!all_valid && !skips_invalid_) check_priorities(update);
    // What is left to give moves to the front of both arrays.
    size_t n = 0;
    for (size_t i = 0; i < slots_.size(); ++i) {
        const int64_t slot = slots_[i];
        const float p = given_priorities_[i];
        if (!all_valid && !is_priority(p)) {
            ++state_.counters.rejected_updates;
        } else if (slot < 0 || !accepts(slot)) {
            ++state_.counters.stale_updates;
        } else {
            slots_[n] = slot;
            given_priorities_[n] = p;
            ++n;
        }
    }
    state_.counters.updates += static_cast<int64_t>(n);
    priorities.update(static_cast<int64_t>(n), slots_.data(), given_priorities_.data());
}

void CpuReplayBackend::priorities(int64_t count, const int64_t* ids, float* priorities_out, void*) {
    find_slots(count, ids);
    for (int64_t i = 0; i < count; ++i) {
        const int64_t slot = slots_[static_cast<size_t>(i)];
        priorities_out[i] = slot >= 0 ? state_.priorities.priority(slot) : 0.0f;
    }
}

// The slot of a step that is there.
int64_t CpuReplayBackend::slot_of_step(int64_t i, int64_t id, bool wants_next) const {
    const Row row = row_of(i, id);
    if (!row.is_there)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "ids[%" PRId64 "] is %" PRId64 ": not there (any more)", i, id);
    const uint8_t flags = state_.rows.flags()[row.slot];
    if (!(flags & row_is_step))
        throw Error(PER_ERROR_INVALID_ARGUMENT, "ids[%" PRId64 "] is %" PRId64 ": a final observation, no transition",
                    i, id);
    if (wants_next && !next_is_there(state_.lane(row.env), row.k, flags))
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "ids[%" PRId64 "] is %" PRId64
                    ": its next observation is not known: must be read without next observations",
                    i, id);
    return row.slot;
}

void CpuReplayBackend::get(int64_t count, const int64_t* ids, const per_batch& batch, void*) {
    gather_.prepare(batch, true);
    slots_.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i)
        slots_[static_cast<size_t>(i)] = slot_of_step(i, read_once(ids[i]), gather_.wishes().next);
    for (int64_t i = 0; i < count; ++i) {
        const int64_t slot = slots_[static_cast<size_t>(i)];
        const int64_t env = state_.ring().env_of_slot(slot);
        const Return step = own_step(state_.rows.rewards()[slot], gamma_, state_.rows.flags()[slot]);
        const GatherRow place = gather_row(env, slot, step);
        gather_.copy(i, &place, 1);
        write_return(i, step, batch);
        if (batch.priorities != nullptr) batch.priorities[i] = state_.priorities.priority(slot);
        if (batch.ids != nullptr) batch.ids[i] = state_.ring().id(env, row_in(env, slot));
    }
}

void CpuReplayBackend::set(int64_t count, const int64_t* ids, const per_array* fields, void*) {
    slots_.resize(static_cast<size_t>(count));
    is_there_.resize(static_cast<size_t>(count));
    int64_t n_stale = 0;
    for (int64_t i = 0; i < count; ++i) {
        const Row row = row_of(i, read_once(ids[i]));
        const bool is_there = row.is_there && state_.rows.flags()[row.slot] & row_is_step;
        slots_[static_cast<size_t>(i)] = is_there ? row.slot : -1;
        is_there_[static_cast<size_t>(i)] = is_there;
        n_stale += !is_there;
    }
    for (int64_t i = 0; i < state_.fields.count(); ++i) {
        if (fields[i].data == nullptr) continue;
        const Field& field = state_.fields[i];
        read_values(field.name, {fields[i], 1}, field.dtype, field.elements, count, is_there_.data(),
                    given_[static_cast<size_t>(i)]);
    }
    for (int64_t i = 0; i < state_.fields.count(); ++i) {
        if (fields[i].data == nullptr) continue;
        write_to_slots(given_[static_cast<size_t>(i)], slots_, state_.fields[i].bytes, state_.rows.field(i));
    }
    state_.counters.stale_updates += n_stale;
}

// ------------------------------------------------------------------------------------------------------ whole buffer

void CpuReplayBackend::clear(void*) {
    for (Lane& lane : state_.lanes) {
        lane.first = lane.head;
        lane.tail = lane.head;
        if (lane.in_episode()) lane.state = LaneState::idle;
    }
    state_.priorities.clear();
}

void CpuReplayBackend::set_alpha(double alpha, void*) {
    state_.priorities.set_alpha(alpha);
}

void CpuReplayBackend::set_beta(double beta, void*) {
    beta_.first = beta;
    beta_.n_steps = 0;
}

void CpuReplayBackend::set_gamma(double gamma, void*) {
    gamma_ = gamma;
}

void CpuReplayBackend::set_n_step(int64_t n_step, void*) {
    const float largest = state_.priorities.largest();
    WindowRules rules = state_.rules;
    rules.n_step = n_step;
    state_.begin_change(state_.ring().n_envs);
    for (int64_t env = 0; env < state_.ring().n_envs; ++env) {
        const int64_t before = complete_end(state_.lane(env), state_.rules);
        const int64_t after = complete_end(state_.lane(env), rules);
        state_.watch(env);
        state_.make_live(env, {before, after}, largest);
        state_.make_dead(env, {after, before});
    }
    state_.rules = rules;
    state_.commit();
}

void CpuReplayBackend::statistics(per_replay_statistics& statistics_out) {
    const ReplayCounters& counters = state_.counters;
    const SumTree& tree = state_.priorities.tree();
    statistics_out.live = live();
    statistics_out.added = counters.added;
    statistics_out.dropped = counters.dropped;
    statistics_out.episodes = counters.episodes;
    statistics_out.cuts = counters.cuts;
    statistics_out.suspected_resets = counters.suspected_resets;
    statistics_out.samples = batches_;
    statistics_out.beta_step = beta_step();
    statistics_out.stale_updates = counters.stale_updates;
    statistics_out.rejected_updates = counters.rejected_updates;
    statistics_out.total = static_cast<double>(tree.total_mass()) / power_of_two(tree.scale());
    statistics_out.max_priority = static_cast<double>(state_.priorities.largest());
    statistics_out.alpha = state_.priorities.alpha();
    statistics_out.beta = beta_.beta(beta_step());
    statistics_out.gamma = gamma_;
    statistics_out.updates = counters.updates;
    const BatchFigures& last = last_batch_.figures(tree.kernels().power);
    statistics_out.last_batch_size = last.size;
    statistics_out.last_max_age = last.max_age;
    statistics_out.last_mean_age = last.mean_age;
    statistics_out.last_effective_size = last.effective_size;
    statistics_out.last_duplicates = last.duplicates;
    statistics_out.memory_bytes = static_cast<int64_t>(state_.rows.memory_bytes() + state_.priorities.memory_bytes());
}

}  // namespace per::cpu

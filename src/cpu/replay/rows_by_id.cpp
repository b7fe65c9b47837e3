#include "cpu/replay/rows_by_id.h"

#include <algorithm>
#include <cinttypes>

#include "backend/draw_outcome.h"
#include "base/arguments.h"
#include "base/error.h"
#include "rules/td_error.h"

namespace per::cpu {

namespace {

// Throws the Error of entry i of ids.
[[noreturn]] void refuse_id(int64_t i, int64_t id, const std::string& why) {
    throw Error(PER_ERROR_INVALID_ARGUMENT, "ids[%" PRId64 "] is %" PRId64 ": %s", i, id, why.c_str());
}

}  // namespace

RowsById::RowsById(ReplayState& state, const per_replay_options& options)
    : state_(state),
      epsilon_(options.epsilon),
      sequence_eta_(options.sequence_eta),
      critics_(options.critics),
      skips_invalid_(options.on_invalid == PER_INVALID_SKIP),
      values_(static_cast<size_t>(state.fields.count())),
      plan_(state) {}

// ---- ids

RowOfId RowsById::find_row(int64_t id) const {
    return per::find_row(id, state_.rules, [&](int64_t env) -> const Lane& { return state_.lane(env); });
}

// Returns the row of an id. Throws Error if the id was never issued.
RowOfId RowsById::row_of(int64_t i, int64_t id) const {
    const RowOfId row = find_row(id);
    if (!row.is_issued) refuse_unissued(i, id);
    return row;
}

[[gnu::cold]] void RowsById::refuse_unissued(int64_t i, int64_t id) const {
    if (id < 0) throw_negative_id(i, id);
    const Ring& ring = state_.ring();
    int64_t latest = -1;
    for (int64_t env = 0; env < ring.n_envs; ++env)
        if (const int64_t head = state_.lane(env).head; head > 0) latest = std::max(latest, ring.id(env, head - 1));
    if (latest < 0) refuse_id(i, id, "never issued; no step was added yet");
    if (id > latest) refuse_id(i, id, "never issued; ids so far are 0 .. " + std::to_string(latest));
    const int64_t env = ring.env_of_id(id);
    const int64_t head = state_.lane(env).head;
    const std::string of_env = "of environment " + std::to_string(env);
    refuse_id(
        i, id,
        "never issued; " + (head == 0 ? "no step " + of_env + " was added yet"
                                      : "the latest " + of_env + " is " + std::to_string(ring.id(env, head - 1))));
}

// Why a row is not there, for errors.
std::string RowsById::why_missing(const RowOfId& row) const {
    if (row.k < 0) return "no step; -1 marks steps that were not added, and entries without a transition";
    const Lane& lane = state_.lane(row.env);
    const int64_t oldest = oldest_row(lane, state_.rules);
    const std::string why = row.k < lane.first ? "cleared" : "overwritten";
    if (oldest >= lane.head) return why + "; no step was added since";
    const std::string of_env = state_.ring().n_envs > 1 ? " of environment " + std::to_string(row.env) : "";
    return why + "; the oldest row" + of_env + " still stored is " + std::to_string(state_.ring().id(row.env, oldest));
}

// Why a row that is there is not live, for errors.
std::string RowsById::why_dead(const RowOfId& row) const {
    const uint8_t flags = state_.rows.flags(row.slot);
    if (!(flags & row_is_step)) return "a final observation";
    if (flags & row_is_used_up) return "drawn max_times_sampled times, or older than max_age";
    if (will_be_live(row.slot)) return "not yet, as more steps of its episode are needed";
    if (!starts_sequence(state_.rules, flags)) return "no sequence starts there (sequence_stride)";
    return "cut off from the steps after it, older than max_age, or without all frames of its stack";
}

[[gnu::cold]] void RowsById::refuse_missing(int64_t i, int64_t id) const {
    refuse_id(i, id, why_missing(find_row(id)));
}

[[gnu::cold]] void RowsById::refuse_dead(int64_t i, int64_t id) const {
    const RowOfId row = find_row(id);
    refuse_id(i, id,
              std::string("no live ") + drawn_noun(state_.has_sequences) + " (" +
                  (row.is_there ? why_dead(row) : why_missing(row)) +
                  "); with on_invalid PER_INVALID_SKIP such ids are skipped");
}

RowsById::StoredRows RowsById::stored_rows(int64_t env) const {
    const Lane& lane = state_.lane(env);
    const RowRange rows = {oldest_row(lane, state_.rules), lane.head};
    const int64_t latest = std::max<int64_t>(rows.end - 1, 0);
    return {rows, state_.ring().slot(env, latest) - latest, env * state_.ring().rows};
}

// stored_of(i, id, k) returns the StoredRows of the lane of ids[i] and sets k to its row there, or returns NULL.
template <class StoredOf>
void RowsById::find_slots_by(int64_t count, const int64_t* ids, const StoredOf& stored_of) {
    const int64_t n_rows = state_.ring().rows;
    int64_t* const slots = slots_.data();
    for (int64_t i = 0; i < count; ++i) {
        const int64_t id = read_once(ids[i]);
        int64_t k = 0;
        const StoredRows* const stored = id < 0 ? nullptr : stored_of(i, id, k);
        if (stored != nullptr && k >= stored->rows.first && k < stored->rows.end) [[likely]] {
            const int64_t slot = k + stored->offset;
            slots[i] = slot + (n_rows & -int64_t{slot < stored->first_slot});  // a branch would be a toss-up
        } else {
            const RowOfId row = row_of(i, id);
            slots[i] = row.is_there ? row.slot : -1;
        }
    }
}

// Finds the slots of rows by id; -1 for missing rows. Calls fetch(slot) for those of the first fetched_ahead ids whose
// rows exist.
template <class Fetch>
void RowsById::find_slots(int64_t count, const int64_t* ids, const Fetch& fetch) {
    slots_.resize(static_cast<size_t>(count));
    has_births_ = false;
    const Ring ring = state_.ring();  // a copy, which the compiler knows not to change when slots do
    if (ring.n_envs == 1) {
        const StoredRows stored = stored_rows(0);
        find_slots_by(count, ids, [&](int64_t, int64_t id, int64_t& k) {
            k = id;
            return &stored;
        });
    } else if (ring.n_envs <= count) {
        stored_rows_.resize(static_cast<size_t>(ring.n_envs));
        for (int64_t env = 0; env < ring.n_envs; ++env) stored_rows_[static_cast<size_t>(env)] = stored_rows(env);
        const StoredRows* const stored = stored_rows_.data();
        const auto stored_of = [&](int64_t, int64_t id, int64_t& k) {
            k = ring.row_of_id(id);
            return stored + (id - k * ring.n_envs);
        };
        has_births_ = state_.priorities.freshness().decays() && !state_.rows.has_versions();
        if (has_births_) {
            if (births_.size() < slots_.size()) births_.resize(slots_.size());
            int64_t* const births = births_.data();
            find_slots_by(count, ids, [&](int64_t i, int64_t id, int64_t& k) {
                const StoredRows* const rows = stored_of(i, id, k);
                births[i] = std::min(k, max_birth);
                return rows;
            });
        } else {
            find_slots_by(count, ids, stored_of);
        }
    } else {
        find_slots_by(count, ids, [](int64_t, int64_t, int64_t&) -> const StoredRows* { return nullptr; });
    }
    for (int64_t i = 0; i < std::min(count, PriorityStore::fetched_ahead); ++i)
        if (slots_[static_cast<size_t>(i)] >= 0) fetch(slots_[static_cast<size_t>(i)]);
}

const std::vector<int64_t>& RowsById::find_live(const ReplaySample& sample) {
    const auto* const epoch = sample.rows_as<RowsOfEpoch>();
    const RowsOfIds rows =
        epoch != nullptr ? RowsOfIds{epoch->ids, PER_INVALID_ERROR} : std::get<RowsOfIds>(sample.rows);
    const bool skips_dead = rows.on_invalid == PER_INVALID_SKIP;
    slots_.resize(static_cast<size_t>(sample.batch_size));
    for (int64_t i = 0; i < sample.batch_size; ++i) {
        const int64_t id = read_once(rows.ids[i]);
        const RowOfId row = skips_dead ? find_row(id) : row_of(i, id);
        const bool is_live = row.is_there && state_.priorities.live().contains(row.slot);
        if (!is_live && epoch != nullptr)
            throw Error(PER_ERROR_INVALID_ARGUMENT, "id %" PRId64 " of the epochs is not live any more", id);
        if (!is_live && !skips_dead) refuse_dead(i, id);
        slots_[static_cast<size_t>(i)] = is_live ? row.slot : -1;
    }
    return slots_;
}

// ---- priorities

// True if this row, which exists and is not live, will become live.
bool RowsById::will_be_live(int64_t slot) const {
    if (state_.rows.flags(slot) & row_is_used_up) return false;
    const int64_t env = state_.ring().env_of_slot(slot);
    return is_pending(state_.lane(env), state_.rules, state_.row_in(env, slot));
}

void RowsById::check_priorities(const ReplayUpdate& update) const {
    for (int64_t i = 0; i < update.count; ++i) {
        const float p = priorities_[static_cast<size_t>(i)];
        if (!is_priority(p)) throw_no_priority(i, p, update.td_errors != nullptr);
    }
}

void RowsById::read_priorities(const ReplayUpdate& update) {
    priorities_.resize(static_cast<size_t>(update.count));
    float* const priorities = priorities_.data();
    if (update.td_errors == nullptr)
        std::copy_n(update.priorities, update.count, priorities);
    else if (state_.has_sequences)
        read_sequence_priorities(update);
    else if (update.n_critics == 1)
        state_.priorities.tree().kernels().power.from_td_errors(update.count, update.td_errors, epsilon_, priorities);
    else
        for (int64_t i = 0; i < update.count; ++i)
            priorities[i] = td_error_priority(update.td_errors + i, update.n_critics, update.count, critics_, epsilon_);
}

// Call it after find_slots(). Two kinds of sequences are treated as missing: those that can no longer be drawn, since
// their mask is unknown, and those without a step after the burn-in, since their errors mean nothing.
void RowsById::read_sequence_priorities(const ReplayUpdate& update) {
    const SequenceRules& sequence = state_.rules.sequence;
    const int64_t n_given = sequence.steps - update.n_left_out;
    for (int64_t i = 0; i < update.count; ++i) {
        int64_t& slot = slots_[static_cast<size_t>(i)];
        float& priority = priorities_[static_cast<size_t>(i)];
        int64_t n_steps = 0;
        if (slot >= 0 && accepts_priority(slot)) {
            const int64_t env = state_.ring().env_of_slot(slot);
            n_steps = complete_steps(state_.lane(env), state_.rules, state_.row_in(env, slot),
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

// The ids of an update, with -1 in place of those of other sources.
const int64_t* RowsById::own_ids(const ReplayUpdate& update) {
    is_of_others_.clear();
    if (update.source_of == nullptr) return update.ids;
    is_of_others_.resize(static_cast<size_t>(update.count));
    own_ids_.resize(static_cast<size_t>(update.count));
    for (size_t i = 0; i < own_ids_.size(); ++i) {
        is_of_others_[i] = read_once(update.source_of[i]) != update.source;
        own_ids_[i] = is_of_others_[i] ? -1 : read_once(update.ids[i]);
    }
    return own_ids_.data();
}

// Finds the slots and priorities of an update, and throws if one of them is not allowed. Returns true if all priorities
// are valid.
bool RowsById::read_update(const ReplayUpdate& update) {
    const int64_t* const ids = own_ids(update);
    find_slots(update.count, ids, [this](int64_t slot) { state_.priorities.prefetch_to_update(slot); });
    read_priorities(update);
    for (size_t i = 0; i < is_of_others_.size(); ++i)
        if (is_of_others_[i]) priorities_[i] = 0.0f;
    const bool all_valid = state_.priorities.tree().kernels().power.are_priorities(update.count, priorities_.data());
    if (!all_valid && !skips_invalid_) check_priorities(update);
    return all_valid;
}

// Writes the update that read_update() has read.
void RowsById::write_update(bool all_valid) {
    PriorityStore& priorities = state_.priorities;
    // Entries to be written move to the front of both arrays, where most of them are already.
    const LiveSet& live = priorities.live();
    size_t n = 0;
    if (all_valid && is_of_others_.empty())
        while (n < slots_.size() && slots_[n] >= 0 && live.contains(slots_[n])) ++n;
    for (size_t i = n; i < slots_.size(); ++i) {
        const int64_t slot = slots_[i];
        const float p = priorities_[i];
        if (!is_of_others_.empty() && is_of_others_[i]) continue;
        if (!all_valid && !is_priority(p)) {
            ++state_.counters.rejected_updates;
        } else if (slot < 0 || !accepts_priority(slot)) {
            ++state_.counters.stale_updates;
        } else {
            slots_[n] = slot;
            priorities_[n] = p;
            if (has_births_) births_[n] = births_[i];
            ++n;
        }
    }
    state_.counters.updates += static_cast<int64_t>(n);
    priorities.update(static_cast<int64_t>(n), slots_.data(), priorities_.data(),
                      has_births_ ? births_.data() : nullptr);
}

void RowsById::priorities(int64_t count, const int64_t* ids, float* priorities_out) {
    const auto fetch = [this](int64_t slot) { state_.priorities.prefetch(slot); };
    find_slots(count, ids, fetch);
    for (int64_t i = 0; i < count; ++i) {
        const int64_t ahead = i + PriorityStore::fetched_ahead;
        if (ahead < count && slots_[static_cast<size_t>(ahead)] >= 0) fetch(slots_[static_cast<size_t>(ahead)]);
        const int64_t slot = slots_[static_cast<size_t>(i)];
        priorities_out[i] = slot >= 0 ? state_.priorities.priority(slot) : 0.0f;
    }
}

// ---- fields

// Returns the slot of a step. Throws Error unless the step, and with wants_next the observation after it, is there.
int64_t RowsById::slot_of_step(int64_t i, int64_t id, bool wants_next) const {
    const RowOfId row = row_of(i, id);
    if (!row.is_there) refuse_missing(i, id);
    const uint8_t flags = state_.rows.flags(row.slot);
    if (!(flags & row_is_step)) refuse_id(i, id, "a final observation, no transition");
    if (wants_next && !next_is_there(state_.lane(row.env), row.k, flags))
        refuse_id(
            i, id,
            "its next observation is not stored (no step of its episode follows yet, or it was marked as unknown);"
            " must be read with NULL in next_fields");
    return row.slot;
}

void RowsById::get(int64_t count, const int64_t* ids, const per_batch& batch, RaggedGather& ragged,
                   WorkerThreads& threads) {
    const GatherPlan& plan = plan_.make(batch, true);
    bool wants_next = false;
    for (int64_t i = 0; i < state_.fields.count() && batch.next_fields != nullptr; ++i)
        wants_next |= state_.fields[i].is_observation() && batch.next_fields[i] != nullptr;
    slots_.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) slots_[static_cast<size_t>(i)] = slot_of_step(i, read_once(ids[i]), wants_next);
    ragged.find_steps(batch, slots_);
    ragged.write(threads);
    plan.will_need(slots_, 1);
    for (int64_t i = 0; i < count; ++i) {
        const int64_t slot = slots_[static_cast<size_t>(i)];
        const int64_t env = state_.ring().env_of_slot(slot);
        const Return step = own_step(state_.rows.rewards()[slot], state_.gamma, state_.rows.flags(slot));
        const GatherRow row = frames_at(state_, env, slot, step, plan.wishes());
        plan.copy(i, &row, 1);
        write_return(i, step, batch);
        if (batch.priorities != nullptr) batch.priorities[i] = state_.priorities.priority(slot);
        if (batch.times_sampled != nullptr) batch.times_sampled[i] = state_.rows.times_sampled()[slot];
        write_id(state_, i, env, slot, batch);
    }
}

// Prepares the values that go to heaps.
void RowsById::prepare_values(const per_array* fields) {
    try {
        for (int64_t i = 0; i < state_.fields.count(); ++i) {
            PackedFrames* const packed = state_.rows.packed(i);
            RaggedRows* const ragged = state_.rows.ragged(i);
            if (fields[i].data == nullptr || (packed == nullptr && ragged == nullptr)) continue;
            const GivenValues& values = values_[static_cast<size_t>(i)];
            for (int64_t entry = 0; entry < std::ssize(slots_); ++entry) {
                const int64_t slot = slots_[static_cast<size_t>(entry)];
                if (slot < 0) continue;
                if (ragged != nullptr)
                    ragged->prepare(slot, values.row(entry));
                else
                    packed->prepare_instead(slot, values.at(entry));
            }
        }
    } catch (...) {
        state_.rows.drop_prepared();
        throw;
    }
}

void RowsById::set(int64_t count, const int64_t* ids, const per_array* fields) {
    slots_.resize(static_cast<size_t>(count));
    is_there_.resize(static_cast<size_t>(count));
    int64_t n_stale = 0;
    for (int64_t i = 0; i < count; ++i) {
        const RowOfId row = row_of(i, read_once(ids[i]));
        const bool is_there = row.is_there && state_.rows.flags(row.slot) & row_is_step;
        slots_[static_cast<size_t>(i)] = is_there ? row.slot : -1;
        is_there_[static_cast<size_t>(i)] = is_there;
        n_stale += !is_there;
    }
    for (int64_t i = 0; i < state_.fields.count(); ++i) {
        if (fields[i].data == nullptr) continue;
        const Field& field = state_.fields[i];
        GivenValues& values = values_[static_cast<size_t>(i)];
        if (field.is_ragged())
            read_rows(field.name, fields[i], field, count, is_there_.data(), values);
        else
            read_values(field.name, {fields[i], 1}, field.dtype, field.elements, count, is_there_.data(), values);
    }
    for (const int64_t slot : slots_)
        if (slot >= 0) state_.rows.reserve(slot, 1);
    state_.will_need(slots_, 0, 1);
    for (int64_t i = 0; i < state_.fields.count(); ++i) {
        if (fields[i].data == nullptr || state_.rows.place_in_record(state_.rows.field(i).first) >= 0) continue;
        for (const int64_t slot : slots_)
            if (slot >= 0) state_.reads.await(slot, 1);
    }
    if (state_.rows.has_heaps()) prepare_values(fields);
    for (int64_t i = 0; i < state_.fields.count(); ++i) {
        if (fields[i].data == nullptr) continue;
        if (state_.rows.packed(i) == nullptr && state_.rows.ragged(i) == nullptr)
            write_to_slots(values_[static_cast<size_t>(i)], slots_, state_.fields[i].bytes, state_.rows.field(i));
    }
    if (state_.rows.has_heaps()) state_.rows.put_prepared();
    state_.counters.stale_updates += n_stale;
}

}  // namespace per::cpu

#include "cpu/step_writer.h"

#include <algorithm>
#include <cstring>

#include "error.h"
#include "td_error.h"

namespace per::cpu {

void write_to_slots(const GivenValues& values, const std::vector<int64_t>& slots, int64_t bytes, std::byte* array) {
    const bool contiguous = values.stride == bytes;
    const int64_t n = static_cast<int64_t>(slots.size());
    for (int64_t i = 0; i < n;) {
        const int64_t slot = slots[static_cast<size_t>(i)];
        int64_t run = 1;
        if (slot >= 0) {
            while (contiguous && i + run < n && slots[static_cast<size_t>(i + run)] == slot + run) ++run;
            std::memcpy(array + slot * bytes, values.at(i), static_cast<size_t>(run * bytes));
        }
        i += run;
    }
}

StepWriter::StepWriter(ReplayState& state, const per_replay_options& options)
    : state_(state),
      autoreset_(options.autoreset),
      on_gap_(options.on_gap),
      on_invalid_(options.on_invalid),
      overwrite_(options.overwrite != 0),
      epsilon_(options.epsilon),
      given_(state.fields) {}

// Calls visit(place) for the entries of step k that the mask lets through.
template <class Visit>
void StepWriter::for_each_given(int64_t k, Visit visit) {
    for (int64_t j = 0; j < steps_->n_envs; ++j) {
        const int64_t index = k * steps_->n_envs + j;
        if (given_.is_given(index)) visit(Place{k, j, steps_->env_ids != nullptr ? steps_->env_ids[j] : j, index});
    }
}

void StepWriter::add(const ReplaySteps& steps, int64_t* ids_out) {
    const size_t n_entries = static_cast<size_t>(steps.length * steps.n_envs);
    steps_ = &steps;
    given_.read(steps, epsilon_);
    row_slots_.resize(n_entries);
    observation_slots_.resize(n_entries);
    next_slots_.resize(n_entries);
    entries_.assign(n_entries, Entry{{}, false, false, 0.0f, -1, -1});
    announcing_.assign(static_cast<size_t>(steps.n_envs), -1);
    lanes_.resize(static_cast<size_t>(steps.n_envs));
    for (int64_t j = 0; j < steps.n_envs; ++j)
        lanes_[static_cast<size_t>(j)] = state_.lane(steps.env_ids != nullptr ? steps.env_ids[j] : j);

    n_rejected_ = 0;
    for (int64_t k = 0; k < steps.length; ++k) for_each_given(k, [this](const Place& place) { check(place); });
    write(ids_out);
}

// ------------------------------------------------------------------------------------------------------- first pass

void StepWriter::check(const Place& place) {
    Lane& lane = lanes_[static_cast<size_t>(place.j)];
    Entry& entry = entries_[static_cast<size_t>(place.index)];
    StepInput& step = entry.input;
    step.next_known = given_.next_known(place.index);
    step.terminated = given_.terminated(place.index);
    step.truncated = given_.truncated(place.index);
    step.matches = compares_observation(lane, state_.rules) && matches_announced(place);

    const StepOutcome outcome = advance(lane, state_.rules, step);
    if (outcome.dropped) return;
    check_next_observation(place, step);
    check_priority(place, entry);
    if (outcome.is_cut && on_gap_ == PER_GAP_ERROR)
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "the observation of step %lld of environment %lld is not the one announced by the step before "
                    "(on_gap is PER_GAP_ERROR)",
                    static_cast<long long>(place.k), static_cast<long long>(place.env));
    if (!overwrite_ && used_end(lane, state_.rules) - lane.first > state_.ring().rows)
        throw Error(PER_ERROR_FULL,
                    "step %lld of environment %lld does not fit in its lane of %lld rows (overwrite is 0)",
                    static_cast<long long>(place.k), static_cast<long long>(place.env),
                    static_cast<long long>(state_.ring().rows));
    if (step.next_known) announcing_[static_cast<size_t>(place.j)] = place.index;
}

void StepWriter::check_next_observation(const Place& place, const StepInput& step) const {
    const bool ends = step.terminated || step.truncated;
    const char* missing = nullptr;
    if (ends && autoreset_ == PER_AUTORESET_SAME_STEP && steps_->next_mask.data == nullptr)
        missing =
            "next_mask must say whether next_fields is its final observation (autoreset is "
            "PER_AUTORESET_SAME_STEP)";
    else if (ends && !step.next_known && !given_.next_unavailable(place.index))
        missing = "its final observation must be given in next_fields, or be marked unknown by next_mask 0";
    else if (!ends && !step.next_known && state_.rules.store_next_observation)
        missing = "next_fields must be given with every step (store_next_observation is 1)";
    if (missing == nullptr) return;
    throw Error(PER_ERROR_INVALID_ARGUMENT, "step %lld of environment %lld %s: %s", static_cast<long long>(place.k),
                static_cast<long long>(place.env), ends ? "ends an episode" : "has no next observation", missing);
}

void StepWriter::check_priority(const Place& place, Entry& entry) {
    if (!given_.has_priorities()) return;
    entry.priority = given_.priority(place.index);
    entry.has_priority = is_priority(entry.priority);
    if (entry.has_priority) return;
    if (on_invalid_ == PER_INVALID_SKIP) {
        ++n_rejected_;
        return;
    }
    const bool from_errors = steps_->td_errors.data != nullptr;
    throw Error(PER_ERROR_INVALID_ARGUMENT, "%s of step %lld of environment %lld gives the priority %g: %s",
                from_errors ? "td_errors" : "priorities", static_cast<long long>(place.k),
                static_cast<long long>(place.env), static_cast<double>(entry.priority),
                from_errors ? "it must be finite" : "it must be finite and not negative");
}

bool StepWriter::matches_announced(const Place& place) const {
    const Lane& lane = lanes_[static_cast<size_t>(place.j)];
    const int64_t announcing = announcing_[static_cast<size_t>(place.j)];
    const int64_t slot = state_.ring().slot(place.env, compared_row(lane));
    for (int64_t i = 0; i < state_.fields.count(); ++i) {
        const Field& field = state_.fields[i];
        if (!field.is_observation()) continue;
        const std::byte* announced =
            state_.rules.store_next_observation ? state_.rows.next_field(i) : state_.rows.field(i);
        announced += slot * field.bytes;
        if (announcing >= 0) announced = given_.next_field(i).at(announcing);
        if (std::memcmp(announced, given_.field(i).at(place.index), static_cast<size_t>(field.bytes)) != 0)
            return false;
    }
    return true;
}

// ------------------------------------------------------------------------------------------------------ second pass

void StepWriter::write(int64_t* ids_out) {
    for (int64_t k = 0; k < steps_->length; ++k) {
        // What is given with a step counts from the next one on, as if each were a call of its own.
        const float largest = state_.priorities.largest();
        float largest_given = 0.0f;
        for_each_given(k, [&](const Place& place) {
            write_step(place, largest);
            const Entry& entry = entries_[static_cast<size_t>(place.index)];
            if (entry.has_priority) largest_given = std::max(largest_given, entry.priority);
        });
        state_.priorities.raise_largest(largest_given);
    }
    state_.priorities.commit();
    state_.counters.rejected_updates += n_rejected_;
    write_frames();
    if (ids_out == nullptr) return;
    const int64_t n = steps_->n_envs;
    for (int64_t index = 0; index < steps_->length * n; ++index) {
        const int64_t env = steps_->env_ids != nullptr ? steps_->env_ids[index % n] : index % n;
        const int64_t row = entries_[static_cast<size_t>(index)].row;
        ids_out[index] = row >= 0 ? state_.ring().id(env, row) : -1;
    }
}

void StepWriter::write_step(const Place& place, float largest) {
    Entry& entry = entries_[static_cast<size_t>(place.index)];
    Lane& lane = state_.lane(place.env);
    const bool was_announced = lane.state == LaneState::announced && next_takes_row(state_.rules);
    const StepOutcome outcome = advance(lane, state_.rules, entry.input);
    if (outcome.dropped) {
        ++state_.counters.dropped;
        return;
    }
    if (outcome.is_cut) state_.apply(place.env, outcome.cut, largest);

    entry.row = outcome.row;
    entry.next_row = outcome.next_row;
    entry.was_announced = was_announced && !outcome.is_cut;
    const int64_t slot = state_.ring().slot(place.env, outcome.row);
    state_.rows.flags()[slot] = outcome.flags;
    state_.rows.rewards()[slot] = given_.reward(place.index);
    if (outcome.next_row >= 0) state_.rows.flags()[state_.ring().slot(place.env, outcome.next_row)] = 0;
    state_.advance_tail(place.env);
    state_.priorities.forget(slot);
    if (entry.has_priority) state_.priorities.give(slot, entry.priority);
    state_.make_live(place.env, outcome.completed, largest);

    ++state_.counters.added;
    if (outcome.flags & row_ends_episode) ++state_.counters.episodes;
}

// Each slot is written once: rows that the call itself overwrote, being longer than a lane, are left out.
void StepWriter::find_slots() {
    const int64_t n = steps_->n_envs;
    const Ring& ring = state_.ring();
    for (size_t index = 0; index < entries_.size(); ++index) {
        const Entry& entry = entries_[index];
        const int64_t j = static_cast<int64_t>(index) % n;
        const int64_t env = steps_->env_ids != nullptr ? steps_->env_ids[j] : j;
        const int64_t oldest = used_end(state_.lane(env), state_.rules) - ring.rows;
        const auto slot_of = [&](int64_t row) { return row >= 0 && row >= oldest ? ring.slot(env, row) : -1; };
        row_slots_[index] = slot_of(entry.row);
        observation_slots_[index] = entry.was_announced ? -1 : row_slots_[index];
        next_slots_[index] = slot_of(entry.next_row);
        if (state_.rules.store_next_observation) next_slots_[index] = entry.input.next_known ? row_slots_[index] : -1;
    }
}

void StepWriter::write_frames() {
    find_slots();
    for (int64_t i = 0; i < state_.fields.count(); ++i) {
        const Field& field = state_.fields[i];
        std::byte* const array = state_.rows.field(i);
        if (!field.is_observation()) {
            write_to_slots(given_.field(i), row_slots_, field.bytes, array);
            continue;
        }
        write_to_slots(given_.field(i), observation_slots_, field.bytes, array);
        if (steps_->next_fields == nullptr) continue;
        std::byte* const next_array = state_.rules.store_next_observation ? state_.rows.next_field(i) : array;
        write_to_slots(given_.next_field(i), next_slots_, field.bytes, next_array);
    }
}

}  // namespace per::cpu

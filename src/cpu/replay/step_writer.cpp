#include "cpu/replay/step_writer.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "base/error.h"
#include "rows/dtype.h"
#include "rows/element.h"
#include "rules/td_error.h"

namespace per::cpu {

namespace {

// The most steps of a segment. The second pass writes one kind of value after the other, and small rows stay in the
// first-level cache meanwhile: adds of 1024 steps and more take 0.7 to 0.8 of the time that they take with 1024.
constexpr int64_t max_segment = 128;
// The prefetch distance, in rows, of the second pass.
constexpr int64_t rows_fetched_ahead = 64;

using Bytes = std::span<const std::byte>;

bool are_equal(Bytes a, Bytes b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

// True if two frames of a field are the same observation. Their bytes decide nearly always.
bool is_same_frame(Bytes a, Bytes b, const Field& field) {
    if (are_equal(a, b)) return true;
    if (a.size() != b.size() || !is_floating(field.dtype)) return false;
    for (size_t i = 0; i < a.size(); i += static_cast<size_t>(dtype_size(field.dtype)))
        if (!is_same_number(&a[i], &b[i], field.dtype)) return false;
    return true;
}

Bytes frame_of(const GivenValues& values, int64_t entry, const Field& field) {
    return field.is_ragged() ? values.row(entry) : Bytes(values.at(entry), static_cast<size_t>(field.bytes));
}

}  // namespace

StepWriter::StepWriter(ReplayState& state, const per_replay_options& options)
    : state_(state),
      autoreset_(options.autoreset),
      on_gap_(options.on_gap),
      on_invalid_(options.on_invalid),
      // With PER_MAX_NOW the priority of new rows may differ from step to step.
      takes_runs_(options.max_priority == PER_MAX_EVER),
      overwrite_(options.overwrite != 0),
      epsilon_(options.epsilon),
      given_(state.fields, options.on_nan == PER_NAN_ERROR) {}

StepWriter::Place StepWriter::place(int64_t k, int64_t j) const {
    return {k, j, steps_->env_ids != nullptr ? steps_->env_ids[j] : j, k * steps_->n_envs + j};
}

void StepWriter::add(const ReplaySteps& steps, int64_t* ids_out) {
    steps_ = &steps;
    given_.read(steps, epsilon_);
    check_all();
    await_reads();
    if (state_.rows.has_heaps()) prepare_frames();
    write_all(ids_out);
}

// ------------------------------------------------------------------------------------------------------- first pass

void StepWriter::check_all() {
    checks_.resize(static_cast<size_t>(steps_->n_envs));
    for (int64_t j = 0; j < steps_->n_envs; ++j) {
        const Lane& lane = state_.lane(place(0, j).env);
        checks_[static_cast<size_t>(j)] = {lane, 0, -1, lane.head, -1};
    }
    segments_.clear();
    if (given_.has_priorities()) largest_given_.assign(static_cast<size_t>(steps_->length), 0.0f);
    n_rejected_ = 0;

    for (int64_t k = 0; k < steps_->length;) {
        int64_t next = steps_->length;
        for (int64_t j = 0; j < steps_->n_envs; ++j) {
            int64_t& next_step = checks_[static_cast<size_t>(j)].next_step;
            if (next_step == k) next_step += check(place(k, j));
            next = std::min(next, next_step);
        }
        k = next;
    }
    reserve_rows();
}

// Reserves space on the disk for the rows, before anything changes.
void StepWriter::reserve_rows() {
    if (!state_.rows.are_stored()) return;
    for (int64_t j = 0; j < steps_->n_envs; ++j) {
        const int64_t env = place(0, j).env;
        const Lane& lane = checks_[static_cast<size_t>(j)].lane;
        state_.reserve(env, {state_.lane(env).head, used_end(lane, state_.rules)});
    }
}

// Returns the number of steps that were checked.
int64_t StepWriter::check(const Place& place) {
    if (!given_.is_given(place.index)) return 1;
    const int64_t count = run_length(place);
    if (count > 1) {
        check_run(place, count);
        return count;
    }
    check_step(place);
    return 1;
}

void StepWriter::check_run(const Place& place, int64_t count) {
    const bool next_known = given_.next_known(place.index);
    LaneCheck& check = check_of(place);
    const LaneState before = check.lane.state;
    const StepOutcome outcome = advance_run(check.lane, state_.rules, count, next_known);
    const int64_t first = outcome.row;
    note_frames(check, before, outcome);
    if (next_known) check.announcing = place.index + (count - 1) * steps_->n_envs;
    if (given_.has_priorities()) {
        for (int64_t row = next_start(check.lane, state_.rules, first); row < first + count;
             row += state_.rules.sequence.stride) {
            const int64_t i = row - first;
            float& largest = largest_given_[static_cast<size_t>(place.k + i)];
            largest = std::max(largest, given_.priority(place.index + i * steps_->n_envs));
        }
    }
    segments_.push_back({place, count, {next_known, false, false, true}});
}

// Notes the first row whose frames the call will write. If the step brings the announced observation, that is the row
// after the step's own, which has the observation already.
void StepWriter::note_frames(LaneCheck& check, LaneState before, const StepOutcome& outcome) {
    if (check.first_frame >= 0) return;
    check.first_frame = outcome.row + (was_announced(before) && !outcome.is_cut ? 1 : 0);
}

// While a loader gathers on a device, frames that it has not read yet must not be overwritten. (The other values in the
// row of an announced observation belong to a step that is not there yet, so they are not read either.)
void StepWriter::await_reads() {
    if (!state_.reads.are_made()) return;
    const Ring& ring = state_.ring();
    for (int64_t j = 0; j < steps_->n_envs; ++j) {
        const LaneCheck& check = checks_[static_cast<size_t>(j)];
        if (check.first_frame < 0) continue;
        const int64_t end = used_end(check.lane, state_.rules);
        for_each_part(ring, place(0, j).env, {std::max(check.first_frame, end - ring.rows), end},
                      [&](int64_t slot, int64_t, int64_t n) { state_.reads.await(slot, n); });
    }
}

// Prepares the frames that go to heaps, before anything changes.
void StepWriter::prepare_frames() {
    prepared_lanes_.clear();
    for (int64_t j = 0; j < steps_->n_envs; ++j) prepared_lanes_.push_back(state_.lane(place(0, j).env));
    try {
        for (const Segment& segment : segments_) {
            Lane& lane = prepared_lanes_[static_cast<size_t>(segment.place.j)];
            const bool is_announced = was_announced(lane.state);
            const StepOutcome outcome = advance_segment(lane, segment);
            if (outcome.dropped) continue;
            const RowRange rows = {outcome.row, outcome.row + segment.count};
            for_each_run(segment, rows, is_announced && !outcome.is_cut, outcome.next_row, [&](const FrameRun& run) {
                const RowStore& store = state_.rows;
                PackedFrames* const packed = run.is_next_field ? store.next_packed(run.field) : store.packed(run.field);
                RaggedRows* const ragged = run.is_next_field ? store.next_ragged(run.field) : store.ragged(run.field);
                if (packed == nullptr && ragged == nullptr) return;
                for (int64_t row = run.rows.first; row < run.rows.end; ++row) {
                    const int64_t slot = state_.ring().slot(segment.place.env, row);
                    const int64_t entry = run.entry + (row - run.rows.first) * steps_->n_envs;
                    if (ragged != nullptr)
                        ragged->prepare(slot, run.values.row(entry));
                    else
                        packed->prepare(segment.place.env, slot, run.values.at(entry));
                }
            });
        }
    } catch (...) {
        state_.rows.drop_prepared();
        throw;
    }
}

// Returns the number of steps from this one on that can be taken together; 1 or less: this one is taken alone.
int64_t StepWriter::run_length(const Place& place) const {
    const LaneCheck& check = check_of(place);
    const Lane& lane = check.lane;
    const WindowRules& rules = state_.rules;
    const int64_t most = std::min({steps_->length - place.k, longest_run(lane, rules, overwrite_), max_segment});
    if (!takes_runs_ || most <= 1) return 1;
    // Rows without a priority take the largest one seen before the step that makes them live. That can be any step of
    // the run, so there is no run while such rows wait.
    if (given_.has_priorities() && complete_end(lane, rules) < check.ungiven_end) return 1;
    const bool next_known = given_.next_known(place.index);
    if (!next_known && rules.store_next_observation) return 1;
    if (compares_observation(lane, rules) && !matches_announced(place)) return 1;
    const int64_t n = given_.steps_that_run_on(place.index, steps_->n_envs, most);
    return next_known && next_takes_row(rules) ? matching_steps(place.index, n) : n;
}

// Number of steps from this one on, at most `most`, whose observations are byte-identical to those announced by the
// steps before them. A run stores the given observations. If an observation equals the announced one only in its
// numbers, the announced bytes must stay, so it is in no run.
int64_t StepWriter::matching_steps(int64_t index, int64_t most) const {
    const int64_t stride = steps_->n_envs;
    for (int64_t i = 0; i < state_.fields.count() && most > 1; ++i) {
        const Field& field = state_.fields[i];
        if (!field.is_observation()) continue;
        const GivenValues& given = given_.field(i);
        const GivenValues& announced = given_.next_field(i);
        const int64_t dense = field.bytes;
        if (!field.is_ragged() && stride * given.stride == dense && stride * announced.stride == dense &&
            std::memcmp(given.at(index + 1), announced.at(index), static_cast<size_t>((most - 1) * dense)) == 0)
            continue;
        int64_t n = 1;
        while (n < most && are_equal(frame_of(given, index + n * stride, field),
                                     frame_of(announced, index + (n - 1) * stride, field)))
            ++n;
        most = n;
    }
    return most;
}

void StepWriter::check_step(const Place& place) {
    LaneCheck& check = check_of(place);
    Lane& lane = check.lane;
    StepInput step;
    step.next_known = given_.next_known(place.index);
    step.terminated = given_.terminated(place.index);
    step.truncated = given_.truncated(place.index);
    step.matches = compares_observation(lane, state_.rules) && matches_announced(place);
    step.has_reward = given_.reward(place.index) != 0.0f;
    segments_.push_back({place, 1, step});

    const LaneState before = lane.state;
    const StepOutcome outcome = advance(lane, state_.rules, step);
    if (outcome.dropped) return;
    note_frames(check, before, outcome);
    given_.check_next(place.index, place.k, place.env, autoreset_, state_.rules.store_next_observation);
    if (!check_priority(place, starts_sequence(state_.rules, outcome.flags))) check.ungiven_end = outcome.row + 1;
    if (outcome.is_cut && on_gap_ == PER_GAP_ERROR)
        throw Error(
            PER_ERROR_INVALID_ARGUMENT,
            "the observation of step %lld of environment %lld differs from the next observation of the step before "
            "(on_gap is PER_GAP_ERROR); if the environment was reset, call per_replay_cut() first",
            static_cast<long long>(place.k), static_cast<long long>(place.env));
    if (!overwrite_ && used_end(lane, state_.rules) - lane.first > state_.ring().rows)
        throw Error(PER_ERROR_FULL,
                    "step %lld of environment %lld does not fit in its lane of %lld rows, and overwrite is off; "
                    "per_replay_clear() empties the buffer, per_replay_compute_capacity() computes a larger capacity",
                    static_cast<long long>(place.k), static_cast<long long>(place.env),
                    static_cast<long long>(state_.ring().rows));
    if (step.next_known) check.announcing = place.index;
}

// Returns true if the step is given a valid priority. If no sequence starts at the step, its priority is checked but
// does not count for the largest one.
bool StepWriter::check_priority(const Place& place, bool starts_sequence) {
    if (!given_.has_priorities()) return false;
    const float priority = given_.priority(place.index);
    if (is_priority(priority)) {
        if (!starts_sequence) return true;
        float& largest = largest_given_[static_cast<size_t>(place.k)];
        largest = std::max(largest, priority);
        return true;
    }
    if (on_invalid_ == PER_INVALID_SKIP) {
        ++n_rejected_;
        return false;
    }
    const bool from_errors = steps_->td_errors.data != nullptr;
    throw Error(PER_ERROR_INVALID_ARGUMENT, "%s of step %lld of environment %lld gives the priority %g: %s",
                from_errors ? "td_errors" : "priorities", static_cast<long long>(place.k),
                static_cast<long long>(place.env), static_cast<double>(priority),
                from_errors ? "it must be finite" : "it must be finite and not negative");
}

bool StepWriter::matches_announced(const Place& place) const {
    const LaneCheck& check = check_of(place);
    const int64_t slot = state_.ring().slot(place.env, compared_row(check.lane));
    for (int64_t i = 0; i < state_.fields.count(); ++i) {
        const Field& field = state_.fields[i];
        if (!field.is_observation()) continue;
        const bool is_next_field = state_.rules.store_next_observation;
        const Column<const std::byte> column = is_next_field ? state_.rows.next_field(i) : state_.rows.field(i);
        const PackedFrames* const packed = is_next_field ? state_.rows.next_packed(i) : state_.rows.packed(i);
        const RaggedRows* const ragged = is_next_field ? state_.rows.next_ragged(i) : state_.rows.ragged(i);
        Bytes announced(column.at(slot), static_cast<size_t>(field.bytes));
        if (check.announcing >= 0) {
            announced = frame_of(given_.next_field(i), check.announcing, field);
        } else if (ragged != nullptr) {
            announced = (*ragged)[slot];
        } else if (packed != nullptr) {
            announced_.resize(static_cast<size_t>(field.bytes));
            packed->read(slot, announced_.data());
            announced = announced_;
        }
        if (!is_same_frame(announced, frame_of(given_.field(i), place.index, field), field)) return false;
    }
    return true;
}

// ------------------------------------------------------------------------------------------------------ second pass

// Writes the steps. They are split into several changes of the tree if need be: a call must leave the same scale as
// calls of single steps.
void StepWriter::write_all(int64_t* ids_out) {
    if (ids_out != nullptr) std::fill_n(ids_out, steps_->length * steps_->n_envs, int64_t{-1});
    int64_t n_raised = 0;
    // The priority of a step counts for the largest one from the next step on, as if each step were a call.
    const auto raise_largest = [&](int64_t end) {
        if (given_.has_priorities())
            for (; n_raised < end; ++n_raised)
                state_.priorities.raise_largest(largest_given_[static_cast<size_t>(n_raised)]);
    };
    int64_t most = steps_->length;
    size_t n_written = 0;
    for (int64_t first = 0, end; first < steps_->length; first = end) {
        raise_largest(first);  // the largest one then bounds the priorities of rows that may die
        end = end_of_change(first, most);
        most = 4 * (end - first);
        for (int64_t j = 0; j < steps_->n_envs; ++j) state_.remember_lane(place(0, j).env);
        int64_t k = -1;
        float largest = 0.0f;
        size_t n_fetched = n_written;
        int64_t n_rows_ahead = 0;
        for (size_t i = n_written; i < segments_.size() && segments_[i].place.k < end; ++i) {
            if (segments_[i].count == 0) continue;
            for (; n_fetched < segments_.size() && n_rows_ahead < rows_fetched_ahead; ++n_fetched) {
                if (segments_[n_fetched].count == 0) continue;
                fetch_rows(segments_[n_fetched], segments_[i].place.k);
                n_rows_ahead += segments_[n_fetched].count;
            }
            n_rows_ahead -= segments_[i].count;
            const Segment segment = take_part(segments_[i], end);
            if (segment.place.k > k) {
                k = segment.place.k;
                raise_largest(k);
                largest = state_.priorities.largest();
            }
            write(segment, largest, ids_out);
        }
        while (n_written < segments_.size() && segments_[n_written].count == 0) ++n_written;
        state_.commit_lanes();
    }
    raise_largest(steps_->length);
    if (state_.rows.has_heaps()) state_.rows.put_prepared();
    state_.counters.rejected_updates += n_rejected_;
}

// Takes the steps before `end` from the front of a segment, and returns them.
StepWriter::Segment StepWriter::take_part(Segment& segment, int64_t end) const {
    Segment part = segment;
    part.count = std::min(segment.count, end - segment.place.k);
    segment.place.k += part.count;
    segment.place.index += part.count * steps_->n_envs;
    segment.count -= part.count;
    return part;
}

// Returns the end of the steps that are written as one change, beginning with step `first` and `most` of them at most.
// The scale depends on the sums after each step, so steps share a change only if none of them can make a tree change
// its scale.
int64_t StepWriter::end_of_change(int64_t first, int64_t most) const {
    int64_t n = std::min(most, steps_->length - first);
    while (n > 1 && !keeps_scales(first, n)) n /= 2;
    return first + n;
}

bool StepWriter::keeps_scales(int64_t first, int64_t n) const {
    const WindowRules& rules = state_.rules;
    // A step takes up to two rows of its lane, and completes those that wait for their windows.
    const int64_t n_waiting = least_rows(rules);
    const int64_t n_born = steps_->n_envs * (n + n_waiting);
    const int64_t n_dying = steps_->n_envs * (2 * n + rules.stack);
    const int64_t latest = latest_birth(n);
    const auto keep = [&](float largest) {
        return state_.priorities.keeps_scales(n_born, largest, latest, n_dying,
                                              [&](const auto& visit) { visit_dying(n, visit); });
    };
    float largest = state_.priorities.largest_ever();
    for (int64_t k = first; k < first + n && given_.has_priorities(); ++k)
        largest = std::max(largest, largest_given_[static_cast<size_t>(k)]);
    // If each row is given a priority, all of these may be far below the largest that ever was: then a bound on them
    // decides.
    return keep(largest) || (given_.has_priorities() && n_rejected_ == 0 && keep(largest_to_come(first, n)));
}

// Returns a bound on the births of the rows that n steps make live.
int64_t StepWriter::latest_birth(int64_t n) const {
    if (!state_.priorities.freshness().decays()) return 0;
    if (state_.rows.has_versions()) return state_.version;
    int64_t latest = 0;
    for (int64_t j = 0; j < steps_->n_envs; ++j) latest = std::max(latest, state_.lane(place(0, j).env).head + 2 * n);
    return latest;
}

// Returns a bound on the priorities of the rows that n steps make live. Each of these steps must be given a priority.
float StepWriter::largest_to_come(int64_t first, int64_t n) const {
    float largest = 0.0f;
    for (int64_t k = first; k < first + n; ++k) largest = std::max(largest, largest_given_[static_cast<size_t>(k)]);
    for (int64_t j = 0; j < steps_->n_envs; ++j) {
        const int64_t env = place(0, j).env;
        const Lane& lane = state_.lane(env);
        for (int64_t row = complete_end(lane, state_.rules); row < lane.head; ++row) {
            if (!can_be_live(state_.rules, state_.flags(env, row))) continue;
            const float given = state_.priorities.given(state_.ring().slot(env, row));
            largest = std::max(largest, given >= 0.0f ? given : state_.priorities.largest_ever());
        }
    }
    return largest;
}

// Calls visit(slot, n) for the slots of rows that may stop being live within n steps.
template <class Visit>
void StepWriter::visit_dying(int64_t n, const Visit& visit) const {
    const Ring& ring = state_.ring();
    for (int64_t j = 0; j < steps_->n_envs; ++j) {
        const int64_t env = place(0, j).env;
        const Lane& lane = state_.lane(env);
        const int64_t oldest = used_end(lane, state_.rules) + 2 * n - most_live_rows(state_.rules);
        const int64_t end = std::min(oldest + state_.rules.stack, lane.tail + ring.rows);
        for_each_part(ring, env, {lane.tail, end},
                      [&](int64_t slot, int64_t, int64_t n_slots) { visit(slot, n_slots); });
    }
}

// Prefetches the rows that a segment will be written to. The lane is still at step k, so the rows are a guess: an
// episode that ends in between takes one more row.
void StepWriter::fetch_rows(const Segment& segment, int64_t k) const {
    const Place& place = segment.place;
    const int64_t row = state_.lane(place.env).head + place.k - k;
    for_each_part(state_.ring(), place.env, {row, row + segment.count + 1},
                  [&](int64_t slot, int64_t, int64_t n) { state_.rows.prefetch_to_write(slot, n); });
}

StepOutcome StepWriter::advance_segment(Lane& lane, const Segment& segment) const {
    return segment.count == 1 ? advance(lane, state_.rules, segment.input)
                              : advance_run(lane, state_.rules, segment.count, segment.input.next_known);
}

void StepWriter::write(const Segment& segment, float largest, int64_t* ids_out) {
    const int64_t env = segment.place.env;
    Lane& lane = state_.lane(env);
    const bool is_announced = was_announced(lane.state);
    const StepOutcome outcome = advance_segment(lane, segment);
    if (outcome.is_suspect) ++state_.counters.suspected_resets;
    if (outcome.dropped) {
        ++state_.counters.dropped;
        return;
    }
    if (outcome.is_cut) state_.apply(env, outcome.cut, largest);

    const RowRange rows = {outcome.row, outcome.row + segment.count};
    const int64_t end = std::max(rows.end, outcome.next_row + 1);
    for_each_part(state_.ring(), env, {rows.first, end},
                  [&](int64_t slot, int64_t, int64_t n) { state_.begin_rows(slot, n); });
    write_flags(env, rows, outcome);
    state_.advance_tail(env);
    write_values(segment, rows, ids_out);
    state_.make_live(env, outcome.completed, largest);
    write_frames(segment, rows, is_announced && !outcome.is_cut, outcome.next_row);

    state_.counters.added += segment.count;
    if (outcome.flags & row_ends_episode) ++state_.counters.episodes;
}

void StepWriter::write_flags(int64_t env, RowRange rows, const StepOutcome& outcome) {
    const Ring& ring = state_.ring();
    RowStore& store = state_.rows;
    for_each_part(ring, env, {rows.first + 1, rows.end},
                  [&](int64_t slot, int64_t, int64_t n) { store.set_flags(slot, n, row_is_step); });
    if (const int64_t stride = state_.rules.sequence.stride; stride > 1)
        for (int64_t row = next_start(state_.lane(env), state_.rules, rows.first + 1); row < rows.end; row += stride)
            store.set_flags(ring.slot(env, row), row_is_step | row_starts_sequence);
    store.set_flags(ring.slot(env, rows.first), outcome.flags);
    if (outcome.next_row >= 0) store.set_flags(ring.slot(env, outcome.next_row), 0);
}

// Writes ids, rewards and priorities.
void StepWriter::write_values(const Segment& segment, RowRange rows, int64_t* ids_out) {
    const Ring& ring = state_.ring();
    const int64_t env = segment.place.env;
    const int64_t stride = steps_->n_envs;
    for_each_part(ring, env, rows, [&](int64_t slot, int64_t row, int64_t n) {
        const int64_t index = segment.place.index + (row - rows.first) * stride;
        given_.rewards().copy(index, stride, n, sizeof(float), state_.rows.rewards().to_write(slot, n));
        state_.priorities.forget(slot, n);
        for (int64_t i = 0; i < n && given_.has_priorities(); ++i) {
            const float priority = given_.priority(index + i * stride);
            if (is_priority(priority)) state_.priorities.store(slot + i, priority);
        }
        if (ids_out == nullptr) return;
        for (int64_t i = 0; i < n; ++i) ids_out[index + i * stride] = ring.id(env, row + i);
    });
}

// Calls visit(run) for all frames that the steps of a segment write, in the order of fields. first_is_there: the row of
// the first step has its observation already.
template <class Visit>
void StepWriter::for_each_run(const Segment& segment, RowRange rows, bool first_is_there, int64_t next_row,
                              const Visit& visit) const {
    const int64_t stride = steps_->n_envs;
    const int64_t index = segment.place.index;
    for (int64_t i = 0; i < state_.fields.count(); ++i) {
        const Field& field = state_.fields[i];
        const int64_t n_there = field.is_observation() && first_is_there ? 1 : 0;
        visit({i, false, given_.field(i), index + n_there * stride, {rows.first + n_there, rows.end}});
        if (!field.is_observation() || !segment.input.next_known) continue;
        const GivenValues& next = given_.next_field(i);
        if (state_.rules.store_next_observation)
            visit({i, true, next, index, rows});
        else if (next_row >= 0)
            visit({i, false, next, index + (segment.count - 1) * stride, {next_row, next_row + 1}});
    }
}

// Writes all frames but those that go to heaps.
void StepWriter::write_frames(const Segment& segment, RowRange rows, bool first_is_there, int64_t next_row) {
    const int64_t stride = steps_->n_envs;
    for_each_run(segment, rows, first_is_there, next_row, [&](const FrameRun& run) {
        const RowColumn<std::byte>& column =
            run.is_next_field ? state_.rows.next_field(run.field) : state_.rows.field(run.field);
        if (state_.rows.packed(run.field) != nullptr || state_.rows.ragged(run.field) != nullptr) return;
        for_each_part(state_.ring(), segment.place.env, run.rows, [&](int64_t slot, int64_t row, int64_t n) {
            run.values.copy(run.entry + (row - run.rows.first) * stride, stride, n, state_.fields[run.field].bytes,
                            column.to_write(slot, n));
        });
    });
}

}  // namespace per::cpu

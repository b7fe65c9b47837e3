#include "cpu/replay/replay_state.h"

#include <algorithm>
#include <limits>

#include "backend/replay_options.h"

namespace per::cpu {
namespace {

// Returns the last rows of a range, at most as many as a lane has: later rows of the range have overwritten the others.
RowRange last_rows(RowRange range, const Ring& ring) {
    return {std::max(range.first, range.end - ring.rows), range.end};
}

}  // namespace

// ---- lanes

ReplayState::ReplayState(const per_replay_options& options, const Fields& declared)
    : fields(declared),
      rules(window_rules(options, declared)),
      has_sequences(options.sequence_length > 0),
      max_times_sampled(options.max_times_sampled),
      max_age(has_max_age(options, PER_AGE_VERSIONS) ? options.freshness.max_age : -1),
      gamma(options.gamma),
      rows(options, declared),
      priorities(options, rows.priorities(), Births(rules.ring, lanes, rows.versions())),
      lanes(static_cast<size_t>(options.n_envs)),
      seed(options.seed),
      beta{options.beta, options.beta_final, options.beta_steps} {
    remembered_.reserve(lanes.size());
}

void ReplayState::reserve(int64_t env, RowRange range) {
    for_each_part(ring(), env, last_rows(range, ring()),
                  [this](int64_t slot, int64_t, int64_t n) { rows.reserve(slot, n); });
    // Before a write to a page that is not in memory, the system reads it: these pages, and those of the next rows, are
    // fetched early.
    constexpr int64_t window_bytes = int64_t{1} << 17;
    const int64_t window = std::max<int64_t>(1, window_bytes / rows.records().stride);
    if (range.end > ring().rows && range.first / window != range.end / window)
        will_need(ring().slot(env, range.first), 0, std::min(range.end - range.first + 2 * window, ring().rows));
}

void ReplayState::will_need(int64_t slot, int64_t before, int64_t n) const {
    const int64_t env = ring().env_of_slot(slot);
    const int64_t first = ring().moved(env, slot, -before);
    const int64_t n_before_end = std::min(n, (env + 1) * ring().rows - first);
    rows.will_need(first, n_before_end);
    if (n_before_end < n) rows.will_need(env * ring().rows, n - n_before_end);
}

// Asking for a whole batch at once keeps the disk busy.
void ReplayState::will_need(const std::vector<int64_t>& slots, int64_t before, int64_t n) const {
    if (!rows.are_stored()) return;
    for (const int64_t slot : slots)
        if (slot >= 0) will_need(slot, before, n);
}

void ReplayState::make_live(int64_t env, RowRange range, float otherwise) {
    for_each_part(ring(), env, range, [&](int64_t slot, int64_t row, int64_t n) {
        if (rules.sequence.stride == 1 && max_times_sampled == 0 && max_age < 0)
            return priorities.make_live(slot, n, row, otherwise);
        for (int64_t i = 0; i < n; ++i)
            if (can_be_live(rules, rows.flags(slot + i))) priorities.make_live(slot + i, 1, row + i, otherwise);
    });
}

void ReplayState::make_dead(int64_t env, RowRange range) {
    for_each_part(ring(), env, range, [&](int64_t slot, int64_t, int64_t n) { priorities.make_dead(slot, n); });
}

void ReplayState::apply(int64_t env, const Cut& cut, float largest) {
    const int64_t slot = ring().slot(env, cut.row);
    rows.set_flags(slot, rows.flags(slot) | cut.flags);
    make_live(env, cut.completed, largest);
    ++counters.cuts;
    ++counters.episodes;
}

void ReplayState::count_draws(const std::vector<int64_t>& slots) {
    const Column<int32_t> times_sampled = rows.times_sampled().to_write(slots);
    for (const int64_t slot : slots) times_sampled[slot] += times_sampled[slot] != std::numeric_limits<int32_t>::max();
    if (max_times_sampled == 0) return;
    for (const int64_t slot : slots) {
        if (times_sampled[slot] != max_times_sampled) continue;
        rows.set_flags(slot, rows.flags(slot) | row_is_used_up);
        priorities.use_up(slot);
    }
    priorities.commit([&](const auto& commit_slots) {
        for (const int64_t slot : slots)
            if (rows.flags(slot) & row_is_used_up) commit_slots(slot, 1);
    });
}

void ReplayState::begin_rows(int64_t first, int64_t n) {
    const auto fill = [&](const RowColumn<int32_t>& column, int32_t value) {
        const Column<int32_t> values = column.to_write(first, n);
        for (int64_t i = 0; i < n; ++i) values[i] = value;
    };
    if (rows.has_times_sampled()) fill(rows.times_sampled(), 0);
    if (rows.has_versions()) fill(rows.versions(), static_cast<int32_t>(version));
}

void ReplayState::advance_tail(int64_t env) {
    Lane& lane = this->lane(env);
    const auto flags_of = [&](int64_t row) { return flags(env, row); };
    const int64_t tail = std::max(tail_of(lane, rules, flags_of), lane.tail);
    if (tail == lane.tail) return;
    make_dead(env, {lane.tail, tail});
    lane.tail = tail;
}

void ReplayState::remember_lane(int64_t env) {
    remembered_.push_back({env, lane(env).tail, complete_end(lane(env), rules)});
}

// In a full ring, the rows that a long add makes live and those that it overwrites are in the same slots, or in
// adjacent ones. They are then committed together, as one range.
void ReplayState::commit_lanes() {
    priorities.commit([this](const auto& commit_slots) {
        const auto commit_rows = [&](int64_t env, RowRange rows) {
            for_each_part(ring(), env, last_rows(rows, ring()),
                          [&](int64_t slot, int64_t, int64_t n) { commit_slots(slot, n); });
        };
        for (const LaneBefore& before : remembered_) {
            const int64_t end = complete_end(lane(before.env), rules);
            const RowRange decided = {std::min(before.complete_end, end), std::max(before.complete_end, end)};
            // The slots of overwritten rows, named by the rows that have taken these slots or will take them.
            const RowRange died = {before.tail + ring().rows, lane(before.env).tail + ring().rows};
            const bool is_near = decided.first <= died.end + PriorityStore::min_run &&
                                 died.first <= decided.end + PriorityStore::min_run;
            if (is_near && died.first < died.end && decided.first < decided.end) {
                commit_rows(before.env, {std::min(decided.first, died.first), std::max(decided.end, died.end)});
            } else {
                commit_rows(before.env, decided);
                commit_rows(before.env, died);
            }
        }
    });
    remembered_.clear();
}

// ---- calls

void ReplayState::cut(int64_t count, const int64_t* env_ids) {
    const float largest = priorities.largest();
    for (int64_t j = 0; j < count; ++j) {
        const int64_t env = env_ids != nullptr ? env_ids[j] : j;
        remember_lane(env);
        if (!lane(env).in_episode()) continue;
        apply(env, cut_episode(lane(env), rules), largest);
        advance_tail(env);
    }
    commit_lanes();
}

void ReplayState::set_n_step(int64_t n_step) {
    const float largest = priorities.largest();
    WindowRules changed = rules;
    changed.n_step = n_step;
    for (int64_t env = 0; env < ring().n_envs; ++env) {
        const int64_t before = complete_end(lane(env), rules);
        const int64_t after = complete_end(lane(env), changed);
        remember_lane(env);
        make_live(env, {before, after}, largest);
        make_dead(env, {after, before});
    }
    rules = changed;
    commit_lanes();
}

// Versions only grow along a lane. Rows are marked, too: those that wait for their windows, which the tail cannot pass,
// and all others for the case that a larger n_step makes them wait again.
void ReplayState::set_version(int64_t to) {
    version = to;
    if (max_age < 0) return;
    for (int64_t env = 0; env < ring().n_envs; ++env) {
        Lane& lane = this->lane(env);
        const auto is_old = [&](int64_t row) { return rows.versions()[ring().slot(env, row)] < version - max_age; };
        int64_t end = lane.tail;
        for (; end < lane.head && is_old(end); ++end)
            if (const int64_t slot = ring().slot(env, end); rows.flags(slot) & row_is_step)
                rows.set_flags(slot, rows.flags(slot) | row_is_used_up);
        const int64_t tail = std::min(end, complete_end(lane, rules));
        if (tail <= lane.tail) continue;
        remember_lane(env);
        make_dead(env, {lane.tail, tail});
        lane.tail = tail;
    }
    commit_lanes();
}

void ReplayState::clear() {
    for (Lane& lane : lanes) {
        lane.first = lane.head;
        lane.tail = lane.head;
        if (lane.in_episode()) lane.state = LaneState::idle;
    }
    priorities.clear();
    for (int64_t i = 0; i < fields.count() && fields.has_ragged(); ++i) {
        if (!fields[i].is_ragged()) continue;
        drop_rows(*rows.ragged(i));
        if (rows.next_ragged(i) != nullptr) drop_rows(*rows.next_ragged(i));
    }
}

// Frees all rows but those that the next observations are compared with.
void ReplayState::drop_rows(RaggedRows& dropped) {
    for (int64_t env = 0; env < ring().n_envs; ++env) {
        const bool compares = lane(env).state == LaneState::ended;
        const int64_t kept = compares ? ring().slot(env, compared_row(lane(env))) : -1;
        for (int64_t slot = ring().slot(env, 0), end = slot + ring().rows; slot < end; ++slot)
            if (slot != kept) dropped.drop(slot);
    }
}

}  // namespace per::cpu

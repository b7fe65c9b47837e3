// The rules that decide which transitions are live: the rows of a lane, the effect of a step on them, and when the
// window of a row (n_step steps ahead, a stack of frames back, a sequence) is complete or broken. Host and device run
// these same functions.
//
// A lane counts its rows k = 0, 1, 2 ...; the latest `rows` of them are stored. A row holds a step, or only an
// observation that the step before it gave as its next one. Such an observation is
//
//   announced   while the next step may still take its row, by bringing the same observation
//   final       if no step did: the episode ended there, or the trajectory was cut
//
// With store_next_observation such observations take no rows.
//
// A draw gives a sequence of `steps` transitions, of which the first `burn_in` are not learned from. Sequences start at
// every `stride`-th step of an episode. Single transitions are sequences of one. The live rows of a lane are the starts
// among tail <= k < complete_end() that have more than `burn_in` transitions before the end of their episode. If an
// episode was truncated at an unknown observation, its last step is no transition.
#pragma once

#include <stdint.h>

#include "rules/divisor.h"
#include "rules/host_device.h"

namespace per {

// The flags of a row's step, in one byte; 0 for an announced or final observation.
enum RowFlag : uint8_t {
    row_is_step = 1,
    row_starts_episode = 2,
    row_terminated = 4,  // never together with row_truncated: a step flagged both ways is terminated
    row_truncated = 8,
    row_final_unknown = 16,    // the step ends its episode, and the observation after it was not given
    row_starts_sequence = 32,  // not used with a stride of 1, where each step starts one
    row_is_used_up = 64,       // drawn max_times_sampled times, or its version is too old: never live again
};
inline constexpr uint8_t row_ends_episode = row_terminated | row_truncated;

// True if a step ends its episode and only serves the rows before it, which bootstrap from its observation.
PER_HOST_DEVICE bool is_never_live(uint8_t flags) {
    return (flags & (row_truncated | row_final_unknown)) == (row_truncated | row_final_unknown);
}

// The rows first <= k < end of a lane; empty if end <= first.
struct RowRange {
    int64_t first;
    int64_t end;
};

// The places of rows: lane by lane, so that the rows of a window, and those of a long add, are contiguous.
struct Ring {
    int64_t rows = 1;  // rows of a lane; neither number changes later
    int64_t n_envs = 1;
    Divisor by_rows = Divisor(rows);
    Divisor by_envs = Divisor(n_envs);

    PER_HOST_DEVICE int64_t capacity() const { return rows * n_envs; }
    PER_HOST_DEVICE int64_t id(int64_t env, int64_t k) const { return k * n_envs + env; }
    PER_HOST_DEVICE int64_t env_of_id(int64_t id) const { return by_envs.remainder(id); }
    PER_HOST_DEVICE int64_t row_of_id(int64_t id) const { return by_envs.quotient(id); }
    // The one function that gives a row its place.
    PER_HOST_DEVICE int64_t slot(int64_t env, int64_t k) const { return env * rows + by_rows.remainder(k); }
    PER_HOST_DEVICE int64_t env_of_slot(int64_t slot) const { return by_rows.quotient(slot); }
    // The latest row below `end` that a slot of lane `env` held.
    PER_HOST_DEVICE int64_t row_of_slot(int64_t env, int64_t slot, int64_t end) const {
        const int64_t last = end - 1;
        const int64_t behind = by_rows.remainder(last) - (slot - env * rows);
        return last - (behind < 0 ? behind + rows : behind);
    }
    // The slot of the row `distance` after the one in `slot`, 0 <= distance < rows.
    PER_HOST_DEVICE int64_t later(int64_t env, int64_t slot, int64_t distance) const {
        const int64_t later = slot + distance;
        return later - (later < (env + 1) * rows ? 0 : rows);
    }
    // The same for -rows < distance < rows.
    PER_HOST_DEVICE int64_t moved(int64_t env, int64_t slot, int64_t distance) const {
        const int64_t first = env * rows;
        const int64_t moved = slot + distance;
        if (moved < first) return moved + rows;
        return moved < first + rows ? moved : moved - rows;
    }
};

// Splits a range of rows, at most a whole lane, where the ring wraps around. Calls visit(slot, row, n) for each part: n
// rows from `row` on, which lie in adjacent slots from `slot` on.
template <class Visit>
[[gnu::always_inline]] inline void for_each_part(const Ring& ring, int64_t env, RowRange range, const Visit& visit) {
    for (int64_t row = range.first; row < range.end;) {
        const int64_t slot = ring.slot(env, row);
        const int64_t in_ring = (env + 1) * ring.rows - slot;
        const int64_t n = range.end - row < in_ring ? range.end - row : in_ring;
        visit(slot, row, n);
        row += n;
    }
}

enum class LaneState : uint8_t {
    idle,       // the next step starts an episode
    running,    // an episode runs; what followed its last step is not known
    announced,  // an episode runs; the observation after its last step is known
    ended,      // idle, and the last observation of the episode is known: the meaning of a step that repeats it depends
                // on how the environment resets
};

struct Lane {
    int64_t head = 0;     // the row that the next step takes; smaller rows have ids
    int64_t first = 0;    // smaller rows were cleared
    int64_t tail = 0;     // smaller rows are overwritten, miss a frame of their stack or are too old: never live again
    int64_t episode = 0;  // first row of the running episode
    LaneState state = LaneState::idle;

    PER_HOST_DEVICE bool in_episode() const { return state == LaneState::running || state == LaneState::announced; }
};

// The newest row of any lane; -1 without one.
template <class Lanes>
int64_t newest_row(const Lanes& lanes) {
    int64_t newest = -1;
    for (const Lane& lane : lanes) newest = lane.head - 1 > newest ? lane.head - 1 : newest;
    return newest;
}

struct SequenceRules {
    int64_t steps = 1;
    int64_t burn_in = 0;  // less than steps
    int64_t stride = 1;
};

inline constexpr int64_t no_max_age = int64_t{1} << 62;

struct WindowRules {
    Ring ring;
    int64_t n_step;
    int64_t stack;  // the largest of all fields
    bool store_next_observation;
    bool drops_reset_step;  // with PER_AUTORESET_NEXT_STEP
    SequenceRules sequence = {};
    int64_t max_age = no_max_age;  // of a live row, in steps
};

PER_HOST_DEVICE bool next_takes_row(const WindowRules& rules) {
    return !rules.store_next_observation;
}

// The least number of rows of a lane: with fewer, a step could overwrite a row whose window it completes. It is one row
// for each step of a sequence, for each step that the last return reaches beyond it, and for each older frame of a
// stack. If next observations take rows, it is also one for the observation after the last step, and one for the final
// observation that a cut may leave.
PER_HOST_DEVICE int64_t least_rows(int64_t n_step, int64_t stack, int64_t steps, bool next_takes_row) {
    return steps + (n_step - 1) + (stack - 1) + (next_takes_row ? 2 : 0);
}

PER_HOST_DEVICE int64_t least_rows(const WindowRules& rules) {
    return least_rows(rules.n_step, rules.stack, rules.sequence.steps, next_takes_row(rules));
}

// One past the last row in use: the head, or one more if an announced observation takes that row.
PER_HOST_DEVICE int64_t used_end(const Lane& lane, const WindowRules& rules) {
    return lane.head + (lane.state == LaneState::announced && next_takes_row(rules) ? 1 : 0);
}

PER_HOST_DEVICE int64_t oldest_row(const Lane& lane, const WindowRules& rules) {
    const int64_t oldest = used_end(lane, rules) - rules.ring.rows;
    return oldest > lane.first ? oldest : lane.first;
}

// The number of latest rows of a lane that can be live.
PER_HOST_DEVICE int64_t most_live_rows(const WindowRules& rules) {
    return rules.max_age < rules.ring.rows ? rules.max_age + 1 : rules.ring.rows;
}

// The row that an id names.
struct RowOfId {
    int64_t env;
    int64_t k;
    int64_t slot;
    bool is_issued;
    bool is_there;  // neither overwritten nor cleared; -1 counts as issued, and is never there
};

template <class LaneOf>
PER_HOST_DEVICE RowOfId find_row(int64_t id, const WindowRules& rules, const LaneOf& lane_of) {
    if (id < 0) return {0, -1, 0, id == -1, false};
    const int64_t env = rules.ring.env_of_id(id);
    const int64_t k = rules.ring.row_of_id(id);
    const Lane& lane = lane_of(env);
    const bool is_issued = k < lane.head;
    return {env, k, rules.ring.slot(env, k), is_issued, is_issued && k >= oldest_row(lane, rules)};
}

// One past the last row whose return is complete. In a running episode the return of row k needs the observation n_step
// steps later; once the episode has ended, all returns are complete.
PER_HOST_DEVICE int64_t returns_end(const Lane& lane, const WindowRules& rules) {
    if (!lane.in_episode()) return lane.head;
    const int64_t end = lane.head + (lane.state == LaneState::announced ? 1 : 0) - rules.n_step;
    return end > lane.episode ? end : lane.episode;
}

// One past the last row for which it is decided whether it is live: all returns of its sequence are complete.
PER_HOST_DEVICE int64_t complete_end(const Lane& lane, const WindowRules& rules) {
    if (!lane.in_episode()) return lane.head;
    const int64_t end = returns_end(lane, rules) - (rules.sequence.steps - 1);
    return end > lane.episode ? end : lane.episode;
}

// True if a sequence starts at a row of the running episode, or of the one that just ended.
PER_HOST_DEVICE bool starts_sequence(const Lane& lane, const WindowRules& rules, int64_t row) {
    return rules.sequence.stride == 1 || (row - lane.episode) % rules.sequence.stride == 0;
}
PER_HOST_DEVICE bool starts_sequence(const WindowRules& rules, uint8_t flags) {
    return rules.sequence.stride == 1 || flags & row_starts_sequence;
}
// True if a step with these flags is live once its window is complete.
PER_HOST_DEVICE bool can_be_live(const WindowRules& rules, uint8_t flags) {
    return starts_sequence(rules, flags) && !(flags & row_is_used_up);
}
// The first row at or after `row`, of the running episode, at which a sequence starts.
PER_HOST_DEVICE int64_t next_start(const Lane& lane, const WindowRules& rules, int64_t row) {
    const int64_t stride = rules.sequence.stride;
    return lane.episode + (row - lane.episode + stride - 1) / stride * stride;
}

// True if a row below the head that is not live may still become so, once its window is complete.
PER_HOST_DEVICE bool is_pending(const Lane& lane, const WindowRules& rules, int64_t row) {
    return lane.in_episode() && row >= complete_end(lane, rules) && starts_sequence(lane, rules, row);
}

// The number of transitions of the episode from a step on, at most `most`. flags_of(row) gives the RowFlags of a row
// below the head. The caller must know that the first `count` transitions do not end the episode.
template <class FlagsOf>
PER_HOST_DEVICE int64_t transitions_from(const Lane& lane, int64_t row, int64_t most, const FlagsOf& flags_of,
                                         int64_t count = 0) {
    while (count < most && row + count < lane.head) {
        const uint8_t flags = flags_of(row + count);
        if (is_never_live(flags)) break;
        ++count;
        if (flags & row_ends_episode) break;
    }
    return count;
}

// The number of steps, burn-in included, that can be learned from by now in the sequence that starts at a row. These
// are all steps of the sequence, or those up to the end of the episode; in a running episode those whose return is
// complete.
template <class FlagsOf>
PER_HOST_DEVICE int64_t complete_steps(const Lane& lane, const WindowRules& rules, int64_t row,
                                       const FlagsOf& flags_of) {
    int64_t most = rules.sequence.steps;
    if (lane.in_episode() && row >= lane.episode) {
        const int64_t complete = returns_end(lane, rules) - row;
        most = complete < most ? complete : most;
    }
    return transitions_from(lane, row, most, flags_of);
}

// True if the next step's observation is compared with the one announced before it. The announced one lies in
// compared_row(): as that row's observation, or with store_next_observation as its next observation.
PER_HOST_DEVICE bool compares_observation(const Lane& lane, const WindowRules& rules) {
    return lane.state == LaneState::ended || (lane.state == LaneState::announced && next_takes_row(rules));
}
PER_HOST_DEVICE int64_t compared_row(const Lane& lane) {
    return lane.state == LaneState::ended ? lane.head - 1 : lane.head;
}

// The effect of ending a running episode without a further step: row `row` gets `flags` in addition to its own.
struct Cut {
    int64_t row;
    uint8_t flags;
    RowRange completed;  // rows whose windows this completes; those at which sequences start become live
};

PER_HOST_DEVICE Cut cut_episode(Lane& lane, const WindowRules& rules) {
    Cut cut = {lane.head - 1, row_truncated, {complete_end(lane, rules), lane.head - rules.sequence.burn_in}};
    if (lane.state == LaneState::running) {
        cut.flags |= row_final_unknown;
        cut.completed.end -= 1;
    }
    lane.head = used_end(lane, rules);
    lane.state = LaneState::idle;
    return cut;
}

struct StepInput {
    bool next_known;  // the observation after it is given
    bool terminated;
    bool truncated;
    bool matches;             // see compares_observation()
    bool has_reward = false;  // other than 0
};

// The effect of a step on its lane, in the order of events: a cut and the rows that it completes, the rows written (and
// those they overwrite), the rows that this step completes.
struct StepOutcome {
    bool dropped;     // the environment resets in this step; nothing else happens
    bool is_suspect;  // the environment seems to reset in another way than `autoreset` says
    bool is_cut;
    Cut cut;
    int64_t row;         // the row that the step takes
    uint8_t flags;       // and its RowFlags
    int64_t next_row;    // the row that the observation after it takes, or -1
    RowRange completed;  // rows of one episode whose windows this step completes
};

// The RowFlags of a step that neither starts nor ends the running episode.
PER_HOST_DEVICE uint8_t flags_of_step(const Lane& lane, const WindowRules& rules, int64_t row) {
    const bool is_marked = rules.sequence.stride > 1 && starts_sequence(lane, rules, row);
    return static_cast<uint8_t>(row_is_step | (is_marked ? row_starts_sequence : 0));
}

// True if this may be a step in which the environment only resets.
PER_HOST_DEVICE bool can_be_reset_step(const StepInput& step) {
    return !(step.has_reward || step.terminated || step.truncated);
}

PER_HOST_DEVICE StepOutcome advance(Lane& lane, const WindowRules& rules, const StepInput& step) {
    StepOutcome outcome = {};
    if (lane.state == LaneState::ended) {
        lane.state = LaneState::idle;
        outcome.dropped = step.matches && rules.drops_reset_step;
        outcome.is_suspect = step.matches && (!rules.drops_reset_step || !can_be_reset_step(step));
        if (outcome.dropped) return outcome;
    } else if (compares_observation(lane, rules) && !step.matches) {
        outcome.is_cut = true;
        outcome.cut = cut_episode(lane, rules);
    }

    outcome.completed.first = complete_end(lane, rules);
    const bool starts_episode = !lane.in_episode();
    if (starts_episode) lane.episode = lane.head;
    outcome.flags = flags_of_step(lane, rules, lane.head);
    if (starts_episode) outcome.flags |= row_starts_episode;
    outcome.row = lane.head++;
    outcome.next_row = step.next_known && next_takes_row(rules) ? lane.head : -1;

    if (step.terminated || step.truncated) {
        outcome.flags |= step.terminated ? row_terminated : row_truncated;
        if (!step.next_known) outcome.flags |= row_final_unknown;
        outcome.completed.end = (is_never_live(outcome.flags) ? outcome.row : lane.head) - rules.sequence.burn_in;
        if (outcome.next_row >= 0) ++lane.head;
        lane.state = step.next_known ? LaneState::ended : LaneState::idle;
    } else {
        lane.state = step.next_known ? LaneState::announced : LaneState::running;
        outcome.completed.end = complete_end(lane, rules);
    }
    return outcome;
}

// The most steps that advance_run() may take at once. None of them may end the episode, or bring another observation
// than the announced one. A longer run could overwrite a row that it completes, or make it too old, or find the
// lane full if nothing is overwritten. If this is 1 or less, the next step is taken alone.
PER_HOST_DEVICE int64_t longest_run(const Lane& lane, const WindowRules& rules, bool overwrite) {
    if (lane.state == LaneState::ended) return 1;
    const int64_t most = most_live_rows(rules) - least_rows(rules) + 1;
    const int64_t room = rules.ring.rows - (lane.head - lane.first) - 1;
    return overwrite || most < room ? most : room;
}

// Takes a run of `count` steps, as defined for longest_run(), with the same effect as advance() for one after the
// other. Their rows are consecutive from outcome.row. The first has outcome.flags, the others flags_of_step().
PER_HOST_DEVICE StepOutcome advance_run(Lane& lane, const WindowRules& rules, int64_t count, bool next_known) {
    const StepInput step = {next_known, false, false, true};
    StepOutcome outcome = advance(lane, rules, step);
    if (count == 1) return outcome;
    lane.head += count - 2;  // nothing else changes from the second step to the last
    const StepOutcome last = advance(lane, rules, step);
    outcome.next_row = last.next_row;
    outcome.completed.end = last.completed.end;
    return outcome;
}

// The smallest row at or above `oldest` whose stack is complete: its older frames are stored, or its episode starts
// before them. flags_of(row) gives the RowFlags of a row below the head.
template <class FlagsOf>
PER_HOST_DEVICE int64_t first_with_stack(int64_t oldest, const Lane& lane, int64_t stack, const FlagsOf& flags_of) {
    int64_t row = oldest;
    while (row < lane.head && row - oldest < stack - 1 && !(flags_of(row) & row_starts_episode)) ++row;
    return row;
}

// The lane's tail after it took its latest row: earlier rows are overwritten, miss a frame of their stack, or are too
// old in steps.
template <class FlagsOf>
PER_HOST_DEVICE int64_t tail_of(const Lane& lane, const WindowRules& rules, const FlagsOf& flags_of) {
    const int64_t complete = first_with_stack(oldest_row(lane, rules), lane, rules.stack, flags_of);
    const int64_t young = lane.head - 1 - rules.max_age;
    return complete > young ? complete : young;
}

// True if the observation after a step below the head is stored.
PER_HOST_DEVICE bool next_is_there(const Lane& lane, int64_t row, uint8_t flags) {
    return !(lane.state == LaneState::running && row == lane.head - 1) && !is_never_live(flags);
}

// The number of older frames in the stack of `row`: stack - 1, or fewer if the episode starts less far back.
template <class FlagsOf>
PER_HOST_DEVICE int64_t frames_before(int64_t row, int64_t stack, const FlagsOf& flags_of) {
    int64_t count = 0;
    while (count < stack - 1 && !(flags_of(row - count) & row_starts_episode)) ++count;
    return count;
}

}  // namespace per

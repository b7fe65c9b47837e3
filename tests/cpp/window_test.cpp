// What steps do to a lane, and which windows they complete, by hand.
#include "rules/window.h"

#include <gtest/gtest.h>

#include <vector>

#include "rules/row_frames.h"

namespace per {
namespace {

WindowRules rules_for(int64_t rows, int64_t n_step = 1, int64_t stack = 1) {
    return {{rows, 1}, n_step, stack, false, false};
}

void expect_range(const RowRange& range, int64_t first, int64_t end) {
    EXPECT_EQ(range.first, first);
    EXPECT_EQ(range.end, end);
}

TEST(Ring, rows_of_a_lane_lie_side_by_side) {
    const Ring ring = {5, 3};
    EXPECT_EQ(ring.slot(0, 0), 0);
    EXPECT_EQ(ring.slot(2, 0), 10);
    EXPECT_EQ(ring.slot(2, 4), 14);
    EXPECT_EQ(ring.slot(2, 5), 10);
    EXPECT_EQ(ring.id(2, 7), 23);
    EXPECT_EQ(ring.env_of_id(23), 2);
    EXPECT_EQ(ring.row_of_id(23), 7);
    EXPECT_EQ(ring.env_of_slot(14), 2);
}

TEST(Ring, moves_around_the_lane_in_both_directions) {
    const Ring ring = {5, 3};
    EXPECT_EQ(ring.moved(1, 9, 1), 5);
    EXPECT_EQ(ring.moved(1, 5, -1), 9);
    EXPECT_EQ(ring.moved(1, 7, 4), 6);
    EXPECT_EQ(ring.moved(1, 7, -4), 8);
}

TEST(Ring, slot_gives_back_the_latest_row_below_the_end) {
    const Ring ring = {5, 3};
    for (int64_t end = 1; end < 17; ++end)
        for (int64_t row = end > 5 ? end - 5 : 0; row < end; ++row)
            EXPECT_EQ(ring.row_of_slot(1, ring.slot(1, row), end), row) << "end " << end;
}

// The steps of a lane, each a letter: n gives the next observation, l leaves it out, o brings another observation than
// was announced, T and U terminate and truncate the episode, t and u do so at an unknown observation, and B does both.
StepOutcome outcome_of(Lane& lane, const WindowRules& rules, const char* steps) {
    StepOutcome last = {};
    for (; *steps != '\0'; ++steps) {
        const bool is_known = *steps == 'n' || *steps == 'o' || *steps == 'T' || *steps == 'U';
        const bool terminates = *steps == 'T' || *steps == 't' || *steps == 'B';
        const bool truncates = *steps == 'U' || *steps == 'u' || *steps == 'B';
        last = advance(lane, rules, {is_known, terminates, truncates, *steps != 'o'});
    }
    return last;
}
StepOutcome outcome_of(const WindowRules& rules, const char* steps) {
    Lane lane;
    return outcome_of(lane, rules, steps);
}

TEST(Advance, does_to_a_lane_what_was_counted_by_hand) {
    constexpr int step = row_is_step, start = row_is_step | row_starts_episode, unknown = row_final_unknown;
    const WindowRules one = rules_for(8), two = rules_for(8, 2), three = rules_for(8, 3);
    WindowRules stores_next = two;
    stores_next.store_next_observation = true;
    const struct {
        const char* promise;
        WindowRules rules;
        const char* steps;
        // What the last of them does.
        int64_t row;
        int flags;
        int64_t next_row;
        RowRange completed;
    } cases[] = {
        {"an announced observation makes the first step live at once", one, "n", 0, start, 1, {0, 1}},
        {"an announced observation is taken by the next step", one, "nn", 1, step, 2, {1, 2}},
        {"a step without next observation waits", one, "l", 0, start, -1, {0, 0}},
        {"a step without next observation is live with the next one", one, "ll", 1, step, -1, {0, 1}},
        {"a window of three steps waits for the second", three, "n", 0, start, 1, {0, 0}},
        {"a window of three steps waits for the third", three, "nn", 1, step, 2, {0, 0}},
        {"a window of three steps is complete with the third", three, "nnn", 2, step, 3, {0, 1}},
        {"the window after it is complete with the fourth", three, "nnnn", 3, step, 4, {1, 2}},
        {"a termination completes all windows", three, "nnT", 2, step | row_terminated, 3, {0, 3}},
        {"a truncation completes all windows", three, "nnU", 2, step | row_truncated, 3, {0, 3}},
        {"a termination has a row for its final observation", three, "nnTo", 4, start, 5, {4, 4}},
        {"a truncation has a row for its final observation", three, "nnUo", 4, start, 5, {4, 4}},
        {"terminated at an unknown observation is live", two, "nt", 1, step | row_terminated | unknown, -1, {0, 2}},
        {"an unknown final observation has no row", two, "ntn", 2, start, 3, {2, 2}},
        {"truncated at an unknown observation completes the steps before",
         three,
         "nnu",
         2,
         step | row_truncated | unknown,
         -1,
         {0, 2}},
        {"a step flagged both ways is terminated", one, "B", 0, start | row_terminated | unknown, -1, {0, 1}},
        {"stored next observations take no rows", stores_next, "n", 0, start, -1, {0, 0}},
        {"stored next observations are not compared", stores_next, "no", 1, step, -1, {0, 1}},
        {"a stored final observation takes no row", stores_next, "noU", 2, step | row_truncated, -1, {1, 3}},
        {"after a stored final observation comes the next row", stores_next, "noUn", 3, start, -1, {3, 3}},
    };
    for (const auto& each : cases) {
        SCOPED_TRACE(each.promise);
        const StepOutcome outcome = outcome_of(each.rules, each.steps);
        EXPECT_FALSE(outcome.is_cut);
        EXPECT_FALSE(outcome.dropped);
        EXPECT_EQ(outcome.row, each.row);
        EXPECT_EQ(outcome.flags, each.flags);
        EXPECT_EQ(outcome.next_row, each.next_row);
        expect_range(outcome.completed, each.completed.first, each.completed.end);
    }
}

TEST(Advance, other_observation_than_announced_cuts_the_episode) {
    const StepOutcome outcome = outcome_of(rules_for(8, 3), "nno");
    ASSERT_TRUE(outcome.is_cut);
    EXPECT_EQ(outcome.cut.row, 1);
    EXPECT_EQ(outcome.cut.flags, row_truncated);
    expect_range(outcome.cut.completed, 0, 2);
    EXPECT_EQ(outcome.row, 3);  // row 2 keeps the observation that was announced
    EXPECT_EQ(outcome.flags, row_is_step | row_starts_episode);
    expect_range(outcome.completed, 3, 3);
}

TEST(Advance, step_that_brings_the_final_observation_is_dropped_once) {
    WindowRules rules = rules_for(8);
    rules.drops_reset_step = true;
    Lane lane;
    outcome_of(lane, rules, "T");
    EXPECT_TRUE(compares_observation(lane, rules));
    EXPECT_EQ(compared_row(lane), 1);
    Lane other = lane;
    EXPECT_TRUE(outcome_of(lane, rules, "n").dropped);
    EXPECT_FALSE(compares_observation(lane, rules));
    const StepOutcome outcome = outcome_of(lane, rules, "n");
    EXPECT_FALSE(outcome.dropped);
    EXPECT_EQ(outcome.row, 2);
    // Another observation is that of a step.
    const StepOutcome step = outcome_of(other, rules, "o");
    EXPECT_FALSE(step.dropped);
    EXPECT_FALSE(step.is_cut);
    EXPECT_EQ(step.flags, row_is_step | row_starts_episode);
}

TEST(Advance, stored_next_observations_are_not_compared) {
    WindowRules rules = rules_for(8, 2);
    rules.store_next_observation = true;
    Lane lane;
    outcome_of(lane, rules, "n");
    EXPECT_FALSE(compares_observation(lane, rules));
}

// Sequences of 4 steps, the first of them burn-in, that start every 3 steps.
WindowRules rules_for_sequences(int64_t n_step = 1) {
    WindowRules rules = rules_for(32, n_step);
    rules.sequence = {4, 1, 3};
    return rules;
}

TEST(Sequences, start_at_multiples_of_the_stride_from_the_first_step_of_the_episode) {
    Lane lane;
    const WindowRules rules = rules_for_sequences();
    for (int64_t row = 0; row < 8; ++row)
        EXPECT_EQ((outcome_of(lane, rules, "l").flags & row_starts_sequence) != 0, row % 3 == 0) << row;
    outcome_of(lane, rules, "t");  // row 8
    for (int64_t row = 9; row < 16; ++row)
        EXPECT_EQ((outcome_of(lane, rules, "l").flags & row_starts_sequence) != 0, (row - 9) % 3 == 0) << row;
    EXPECT_EQ(next_start(lane, rules, 9), 9);
    EXPECT_EQ(next_start(lane, rules, 10), 12);
    EXPECT_EQ(next_start(lane, rules, 12), 12);
}

TEST(Sequences, of_a_running_episode_are_complete_with_the_return_of_their_last_step) {
    Lane lane;
    const WindowRules rules = rules_for_sequences(2);
    for (int i = 0; i < 5; ++i) expect_range(outcome_of(lane, rules, "l").completed, 0, 0);
    EXPECT_EQ(returns_end(lane, rules), 3);
    expect_range(outcome_of(lane, rules, "l").completed, 0, 1);  // observation 5: the return of step 3
    expect_range(outcome_of(lane, rules, "n").completed, 1, 3);  // observations 6 and 7
    EXPECT_TRUE(is_pending(lane, rules, 3));
    EXPECT_FALSE(is_pending(lane, rules, 4)) << "no sequence starts there";
    EXPECT_FALSE(is_pending(lane, rules, 0)) << "live";
}

TEST(Sequences, end_completes_those_with_a_step_after_the_burn_in) {
    const WindowRules rules = rules_for_sequences();
    for (const char* const steps : {"nT", "nU", "nt"}) expect_range(outcome_of(rules, steps).completed, 0, 1);
    Lane lane;
    const StepOutcome outcome = outcome_of(lane, rules, "nu");
    EXPECT_LE(outcome.completed.end, outcome.completed.first) << "one transition, which is burn-in";
    const StepOutcome single = outcome_of(lane, rules, "T");
    EXPECT_LE(single.completed.end, single.completed.first);
    outcome_of(lane, rules, "nn");
    expect_range(cut_episode(lane, rules).completed, 4, 5);
}

TEST(Sequences, steps_that_can_be_learned_from) {
    Lane lane;
    const WindowRules rules = rules_for_sequences(2);
    std::vector<uint8_t> flags;
    const auto step = [&](const char* input) {
        const StepOutcome outcome = outcome_of(lane, rules, input);
        flags.resize(static_cast<size_t>(lane.head));
        flags[static_cast<size_t>(outcome.row)] = outcome.flags;
    };
    const auto flags_of = [&](int64_t row) { return flags[static_cast<size_t>(row)]; };
    for (int i = 0; i < 4; ++i) step("l");
    EXPECT_EQ(complete_steps(lane, rules, 0, flags_of), 2);  // those whose return has its last observation, 3
    step("n");
    EXPECT_EQ(complete_steps(lane, rules, 0, flags_of), 4);
    EXPECT_EQ(complete_steps(lane, rules, 3, flags_of), 1);
    step("u");  // row 5
    EXPECT_EQ(complete_steps(lane, rules, 0, flags_of), 4);
    EXPECT_EQ(complete_steps(lane, rules, 3, flags_of), 2);
    EXPECT_EQ(transitions_from(lane, 0, 100, flags_of), 5);
    EXPECT_EQ(transitions_from(lane, 0, 3, flags_of), 3);
}

TEST(CutEpisode, at_an_announced_observation_keeps_it_as_the_final_one) {
    Lane lane;
    const WindowRules rules = rules_for(8, 3);
    outcome_of(lane, rules, "nn");
    const Cut cut = cut_episode(lane, rules);
    EXPECT_EQ(cut.row, 1);
    EXPECT_EQ(cut.flags, row_truncated);
    expect_range(cut.completed, 0, 2);
    EXPECT_EQ(lane.head, 3);
    EXPECT_FALSE(lane.in_episode());
}

TEST(CutEpisode, without_one_leaves_the_final_observation_unknown) {
    Lane lane;
    const WindowRules rules = rules_for(8, 3);
    outcome_of(lane, rules, "ll");
    const Cut cut = cut_episode(lane, rules);
    EXPECT_EQ(cut.row, 1);
    EXPECT_TRUE(is_never_live(cut.flags));
    expect_range(cut.completed, 0, 1);
    EXPECT_EQ(lane.head, 2);
}

TEST(OldestRow, an_announced_observation_overwrites_as_a_step_does) {
    Lane lane;
    const WindowRules rules = rules_for(3);
    outcome_of(lane, rules, "ll");
    EXPECT_EQ(oldest_row(lane, rules), 0);
    outcome_of(lane, rules, "n");  // rows 2 and 3
    EXPECT_EQ(oldest_row(lane, rules), 1);
    outcome_of(lane, rules, "l");  // row 3 was there
    EXPECT_EQ(oldest_row(lane, rules), 1);
}

TEST(OldestRow, cleared_rows_are_gone) {
    Lane lane;
    lane.head = 5;
    lane.first = 4;
    EXPECT_EQ(oldest_row(lane, rules_for(100)), 4);
}

// Rows by their flags; s starts an episode, . goes on, f is a final observation.
struct Flags {
    const char* rows;
    uint8_t operator()(int64_t row) const {
        return rows[row] == 's' ? row_is_step | row_starts_episode : rows[row] == '.' ? row_is_step : 0;
    }
};

TEST(FirstWithStack, skips_rows_whose_older_frames_are_gone) {
    Lane lane;
    lane.head = 8;
    const Flags flags = {"s......."};
    EXPECT_EQ(first_with_stack(0, lane, 3, flags), 0);
    EXPECT_EQ(first_with_stack(2, lane, 1, flags), 2);
    EXPECT_EQ(first_with_stack(2, lane, 3, flags), 4);
}

// The same lane and the same rows as by single steps, from every state that a run can begin in.
TEST(AdvanceRun, does_what_single_steps_do) {
    for (int64_t n_step : {1, 3}) {
        for (const char* const before : {"", "n", "l", "nl", "nT"}) {
            for (const char* const step : {"n", "l"}) {
                for (int64_t count = 1; count <= 12; ++count) {
                    const WindowRules rules = rules_for(32, n_step);
                    Lane lane;
                    outcome_of(lane, rules, before);
                    Lane singly = lane;
                    const StepOutcome first = outcome_of(singly, rules, step);
                    StepOutcome last = first;
                    for (int64_t i = 1; i < count; ++i) {
                        const int64_t completed = last.completed.end;
                        last = outcome_of(singly, rules, step);
                        EXPECT_EQ(last.flags, row_is_step);
                        EXPECT_EQ(last.completed.first, completed);
                    }
                    const StepOutcome run = advance_run(lane, rules, count, *step == 'n');
                    EXPECT_EQ(run.row, first.row);
                    EXPECT_EQ(run.flags, first.flags);
                    EXPECT_EQ(run.next_row, last.next_row);
                    expect_range(run.completed, first.completed.first, last.completed.end);
                    EXPECT_EQ(lane.head, singly.head);
                    EXPECT_EQ(lane.episode, singly.episode);
                    EXPECT_EQ(lane.state, singly.state);
                }
            }
        }
    }
}

// Of 32 rows a row for the sequence, three for its return and one for the stack must be left.
TEST(LongestRun, leaves_the_rows_of_a_window_and_does_not_overfill_a_lane) {
    const WindowRules rules = rules_for(32, 3);
    Lane lane;
    EXPECT_EQ(longest_run(lane, rules, true), 28);
    lane.head = 30;
    EXPECT_EQ(longest_run(lane, rules, true), 28);
    EXPECT_EQ(longest_run(lane, rules, false), 1);
    lane.first = 20;
    EXPECT_EQ(longest_run(lane, rules, false), 21);
    lane.state = LaneState::ended;
    EXPECT_EQ(longest_run(lane, rules, true), 1);
    WindowRules stores_next = rules;
    stores_next.store_next_observation = true;
    EXPECT_EQ(longest_run({}, stores_next, true), 30);
}

TEST(FirstWithStack, stops_where_an_episode_starts) {
    Lane lane;
    lane.head = 8;
    EXPECT_EQ(first_with_stack(2, lane, 4, Flags{"s..fs..."}), 4);
    EXPECT_EQ(first_with_stack(4, lane, 4, Flags{"s..fs..."}), 4);
}

TEST(FramesBefore, counts_back_to_the_start_of_the_episode) {
    const Flags flags = {"s..fs..."};
    EXPECT_EQ(frames_before(2, 4, flags), 2);
    EXPECT_EQ(frames_before(4, 4, flags), 0);
    EXPECT_EQ(frames_before(7, 3, flags), 2);
    EXPECT_EQ(frames_before(7, 1, flags), 0);
}

TEST(HasSameFrames, where_all_that_says_their_places_is_the_same) {
    const GatherRow row = {1, 12, 13, 2, 3, false};
    EXPECT_TRUE(has_same_frames(row, row));
    for (void (*const change)(GatherRow&) :
         {+[](GatherRow& r) { r.frames_before = 1; }, +[](GatherRow& r) { r.next_frames_before = 2; },
          +[](GatherRow& r) { r.next_slot = 14; }, +[](GatherRow& r) { r.next_is_own_array = true; }}) {
        GatherRow other = row;
        change(other);
        EXPECT_FALSE(has_same_frames(row, other));
    }
}

TEST(IsPending, holds_for_incomplete_windows_of_the_running_episode_only) {
    Lane lane;
    const WindowRules rules = rules_for(8, 2);
    outcome_of(lane, rules, "nnn");
    EXPECT_FALSE(is_pending(lane, rules, 1));
    EXPECT_TRUE(is_pending(lane, rules, 2));
    outcome_of(lane, rules, "u");
    EXPECT_FALSE(is_pending(lane, rules, 3));
}

}  // namespace
}  // namespace per

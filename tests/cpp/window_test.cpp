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

const StepInput next_given = {true, false, false, true};
const StepInput next_left_out = {false, false, false, true};
const StepInput other_observation = {true, false, false, false};
const StepInput terminates = {true, true, false, true};
const StepInput truncates = {true, false, true, true};
const StepInput terminates_unknown = {false, true, false, true};
const StepInput truncates_unknown = {false, false, true, true};

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

TEST(Advance, first_step_starts_an_episode_and_next_does_not) {
    Lane lane;
    const WindowRules rules = rules_for(8);
    EXPECT_EQ(advance(lane, rules, next_given).flags, row_is_step | row_starts_episode);
    EXPECT_EQ(advance(lane, rules, next_given).flags, row_is_step);
}

TEST(Advance, announced_observation_makes_a_step_live_at_once_and_is_taken_by_the_next) {
    Lane lane;
    const WindowRules rules = rules_for(8);
    StepOutcome outcome = advance(lane, rules, next_given);
    EXPECT_EQ(outcome.row, 0);
    EXPECT_EQ(outcome.next_row, 1);
    expect_range(outcome.completed, 0, 1);
    outcome = advance(lane, rules, next_given);
    EXPECT_EQ(outcome.row, 1);
    EXPECT_FALSE(outcome.is_cut);
    expect_range(outcome.completed, 1, 2);
}

TEST(Advance, step_without_next_observation_waits_for_the_next_step) {
    Lane lane;
    const WindowRules rules = rules_for(8);
    StepOutcome outcome = advance(lane, rules, next_left_out);
    EXPECT_EQ(outcome.next_row, -1);
    expect_range(outcome.completed, 0, 0);
    outcome = advance(lane, rules, next_left_out);
    EXPECT_EQ(outcome.row, 1);
    expect_range(outcome.completed, 0, 1);
}

TEST(Advance, window_of_three_steps_waits_for_the_third) {
    Lane lane;
    const WindowRules rules = rules_for(8, 3);
    expect_range(advance(lane, rules, next_given).completed, 0, 0);
    expect_range(advance(lane, rules, next_given).completed, 0, 0);
    expect_range(advance(lane, rules, next_given).completed, 0, 1);
    expect_range(advance(lane, rules, next_given).completed, 1, 2);
}

TEST(Advance, end_completes_all_windows_and_gives_the_final_observation_a_row) {
    for (const StepInput& end : {terminates, truncates}) {
        Lane lane;
        const WindowRules rules = rules_for(8, 3);
        advance(lane, rules, next_given);
        advance(lane, rules, next_given);
        const StepOutcome outcome = advance(lane, rules, end);
        EXPECT_EQ(outcome.row, 2);
        EXPECT_EQ(outcome.next_row, 3);
        expect_range(outcome.completed, 0, 3);
        const StepOutcome next = advance(lane, rules, other_observation);
        EXPECT_EQ(next.row, 4);
        EXPECT_FALSE(next.is_cut);
        EXPECT_EQ(next.flags, row_is_step | row_starts_episode);
    }
}

TEST(Advance, terminated_at_an_unknown_observation_is_live_without_a_final_row) {
    Lane lane;
    const WindowRules rules = rules_for(8, 2);
    advance(lane, rules, next_given);
    const StepOutcome outcome = advance(lane, rules, terminates_unknown);
    EXPECT_EQ(outcome.flags, row_is_step | row_terminated | row_final_unknown);
    EXPECT_EQ(outcome.next_row, -1);
    expect_range(outcome.completed, 0, 2);
    EXPECT_EQ(advance(lane, rules, next_given).row, 2);
}

TEST(Advance, truncated_at_an_unknown_observation_completes_only_the_steps_before) {
    Lane lane;
    const WindowRules rules = rules_for(8, 3);
    advance(lane, rules, next_given);
    advance(lane, rules, next_given);
    const StepOutcome outcome = advance(lane, rules, truncates_unknown);
    EXPECT_TRUE(is_never_live(outcome.flags));
    expect_range(outcome.completed, 0, 2);
}

TEST(Advance, step_flagged_both_ways_is_terminated) {
    Lane lane;
    EXPECT_EQ(advance(lane, rules_for(8), {false, true, true, false}).flags,
              row_is_step | row_starts_episode | row_terminated | row_final_unknown);
}

TEST(Advance, other_observation_than_announced_cuts_the_episode) {
    Lane lane;
    const WindowRules rules = rules_for(8, 3);
    advance(lane, rules, next_given);
    advance(lane, rules, next_given);
    const StepOutcome outcome = advance(lane, rules, other_observation);
    ASSERT_TRUE(outcome.is_cut);
    EXPECT_EQ(outcome.cut.row, 1);
    EXPECT_EQ(outcome.cut.flags, row_truncated);
    expect_range(outcome.cut.completed, 0, 2);
    EXPECT_EQ(outcome.row, 3);  // row 2 keeps the observation that was announced
    EXPECT_EQ(outcome.flags, row_is_step | row_starts_episode);
    expect_range(outcome.completed, 3, 3);
}

TEST(Advance, step_that_brings_the_final_observation_is_dropped_once) {
    Lane lane;
    WindowRules rules = rules_for(8);
    rules.drops_reset_step = true;
    advance(lane, rules, terminates);
    EXPECT_TRUE(compares_observation(lane, rules));
    EXPECT_EQ(compared_row(lane), 1);
    EXPECT_TRUE(advance(lane, rules, next_given).dropped);
    EXPECT_FALSE(compares_observation(lane, rules));
    const StepOutcome outcome = advance(lane, rules, next_given);
    EXPECT_FALSE(outcome.dropped);
    EXPECT_EQ(outcome.row, 2);
}

TEST(Advance, other_observation_after_an_end_is_a_step_also_with_autoreset) {
    Lane lane;
    WindowRules rules = rules_for(8);
    rules.drops_reset_step = true;
    advance(lane, rules, terminates);
    const StepOutcome outcome = advance(lane, rules, other_observation);
    EXPECT_FALSE(outcome.dropped);
    EXPECT_FALSE(outcome.is_cut);
    EXPECT_EQ(outcome.flags, row_is_step | row_starts_episode);
}

TEST(Advance, stored_next_observations_take_no_rows_and_are_not_compared) {
    Lane lane;
    WindowRules rules = rules_for(8, 2);
    rules.store_next_observation = true;
    expect_range(advance(lane, rules, next_given).completed, 0, 0);
    EXPECT_FALSE(compares_observation(lane, rules));
    const StepOutcome outcome = advance(lane, rules, other_observation);
    EXPECT_FALSE(outcome.is_cut);
    expect_range(outcome.completed, 0, 1);
    const StepOutcome end = advance(lane, rules, truncates);
    EXPECT_EQ(end.next_row, -1);
    expect_range(end.completed, 1, 3);
    EXPECT_EQ(advance(lane, rules, next_given).row, 3);
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
        EXPECT_EQ((advance(lane, rules, next_left_out).flags & row_starts_sequence) != 0, row % 3 == 0) << row;
    advance(lane, rules, terminates_unknown);  // row 8
    for (int64_t row = 9; row < 16; ++row)
        EXPECT_EQ((advance(lane, rules, next_left_out).flags & row_starts_sequence) != 0, (row - 9) % 3 == 0) << row;
    EXPECT_EQ(next_start(lane, rules, 9), 9);
    EXPECT_EQ(next_start(lane, rules, 10), 12);
    EXPECT_EQ(next_start(lane, rules, 12), 12);
}

TEST(Sequences, of_a_running_episode_are_complete_with_the_return_of_their_last_step) {
    Lane lane;
    const WindowRules rules = rules_for_sequences(2);
    for (int i = 0; i < 5; ++i) expect_range(advance(lane, rules, next_left_out).completed, 0, 0);
    EXPECT_EQ(returns_end(lane, rules), 3);
    expect_range(advance(lane, rules, next_left_out).completed, 0, 1);  // observation 5: the return of step 3
    expect_range(advance(lane, rules, next_given).completed, 1, 3);     // observations 6 and 7
    EXPECT_TRUE(is_pending(lane, rules, 3));
    EXPECT_FALSE(is_pending(lane, rules, 4)) << "no sequence starts there";
    EXPECT_FALSE(is_pending(lane, rules, 0)) << "live";
}

TEST(Sequences, end_completes_those_with_a_step_after_the_burn_in) {
    const WindowRules rules = rules_for_sequences();
    for (const StepInput& end : {terminates, truncates, terminates_unknown}) {
        Lane lane;
        advance(lane, rules, next_given);
        expect_range(advance(lane, rules, end).completed, 0, 1);
    }
    Lane lane;
    advance(lane, rules, next_given);
    const StepOutcome outcome = advance(lane, rules, truncates_unknown);
    EXPECT_LE(outcome.completed.end, outcome.completed.first) << "one transition, which is burn-in";
    const StepOutcome single = advance(lane, rules, terminates);
    EXPECT_LE(single.completed.end, single.completed.first);
    advance(lane, rules, next_given);
    advance(lane, rules, next_given);
    expect_range(cut_episode(lane, rules).completed, 4, 5);
}

TEST(Sequences, steps_that_can_be_learned_from) {
    Lane lane;
    const WindowRules rules = rules_for_sequences(2);
    std::vector<uint8_t> flags;
    const auto step = [&](const StepInput& input) {
        const StepOutcome outcome = advance(lane, rules, input);
        flags.resize(static_cast<size_t>(lane.head));
        flags[static_cast<size_t>(outcome.row)] = outcome.flags;
    };
    const auto flags_of = [&](int64_t row) { return flags[static_cast<size_t>(row)]; };
    for (int i = 0; i < 4; ++i) step(next_left_out);
    EXPECT_EQ(complete_steps(lane, rules, 0, flags_of), 2);  // those whose return has its last observation, 3
    step(next_given);
    EXPECT_EQ(complete_steps(lane, rules, 0, flags_of), 4);
    EXPECT_EQ(complete_steps(lane, rules, 3, flags_of), 1);
    step(truncates_unknown);  // row 5
    EXPECT_EQ(complete_steps(lane, rules, 0, flags_of), 4);
    EXPECT_EQ(complete_steps(lane, rules, 3, flags_of), 2);
    EXPECT_EQ(transitions_from(lane, 0, 100, flags_of), 5);
    EXPECT_EQ(transitions_from(lane, 0, 3, flags_of), 3);
}

TEST(CutEpisode, at_an_announced_observation_keeps_it_as_the_final_one) {
    Lane lane;
    const WindowRules rules = rules_for(8, 3);
    advance(lane, rules, next_given);
    advance(lane, rules, next_given);
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
    advance(lane, rules, next_left_out);
    advance(lane, rules, next_left_out);
    const Cut cut = cut_episode(lane, rules);
    EXPECT_EQ(cut.row, 1);
    EXPECT_TRUE(is_never_live(cut.flags));
    expect_range(cut.completed, 0, 1);
    EXPECT_EQ(lane.head, 2);
}

TEST(OldestRow, an_announced_observation_overwrites_as_a_step_does) {
    Lane lane;
    const WindowRules rules = rules_for(3);
    advance(lane, rules, next_left_out);
    advance(lane, rules, next_left_out);
    EXPECT_EQ(oldest_row(lane, rules), 0);
    advance(lane, rules, next_given);  // rows 2 and 3
    EXPECT_EQ(oldest_row(lane, rules), 1);
    advance(lane, rules, next_left_out);  // row 3 was there
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
        for (const std::vector<StepInput>& before : std::vector<std::vector<StepInput>>{
                 {}, {next_given}, {next_left_out}, {next_given, next_left_out}, {next_given, terminates}}) {
            for (const StepInput& step : {next_given, next_left_out}) {
                for (int64_t count = 1; count <= 12; ++count) {
                    const WindowRules rules = rules_for(32, n_step);
                    Lane lane;
                    for (const StepInput& input : before) advance(lane, rules, input);
                    Lane singly = lane;
                    const StepOutcome first = advance(singly, rules, step);
                    StepOutcome last = first;
                    for (int64_t i = 1; i < count; ++i) {
                        const int64_t completed = last.completed.end;
                        last = advance(singly, rules, step);
                        EXPECT_EQ(last.flags, row_is_step);
                        EXPECT_EQ(last.completed.first, completed);
                    }
                    const StepOutcome run = advance_run(lane, rules, count, step.next_known);
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
    GatherRow other = row;
    other.frames_before = 1;
    EXPECT_FALSE(has_same_frames(row, other));
    other = row;
    other.next_frames_before = 2;
    EXPECT_FALSE(has_same_frames(row, other));
    other = row;
    other.next_slot = 14;
    EXPECT_FALSE(has_same_frames(row, other));
    other = row;
    other.next_is_own_array = true;
    EXPECT_FALSE(has_same_frames(row, other));
}

TEST(IsPending, holds_for_incomplete_windows_of_the_running_episode_only) {
    Lane lane;
    const WindowRules rules = rules_for(8, 2);
    advance(lane, rules, next_given);
    advance(lane, rules, next_given);
    advance(lane, rules, next_given);
    EXPECT_FALSE(is_pending(lane, rules, 1));
    EXPECT_TRUE(is_pending(lane, rules, 2));
    advance(lane, rules, truncates_unknown);
    EXPECT_FALSE(is_pending(lane, rules, 3));
}

}  // namespace
}  // namespace per

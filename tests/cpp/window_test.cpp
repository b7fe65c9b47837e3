// Runs of steps, and the arithmetic of rows. Tests of the public interface cover single steps: tests/c/replay_*.c by
// hand, and replay_model_test by a naive model.
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

// Steps of a lane, one letter each: n gives the next observation, l omits it, and T terminates the episode.
StepOutcome outcome_of(Lane& lane, const WindowRules& rules, const char* steps) {
    StepOutcome last = {};
    for (; *steps != '\0'; ++steps) last = advance(lane, rules, {*steps != 'l', *steps == 'T', false, true});
    return last;
}

// Rows by their flags: s starts an episode, . continues it, f is a final observation.
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

// The lane and rows equal those of single steps, from every state in which a run can begin.
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

// The 32 rows include one row for the sequence, three for its return and one for the stack.
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

}  // namespace
}  // namespace per

/*
 * Priorities for transitions that were overwritten, or can never be drawn again, are ignored and counted: they do not
 * affect the row that took the slot, do not revive a transition, and do not raise the maximum.
 */
#include "replay_check.h"

enum { ROWS = 8 };

static per_replay* create(int32_t max_priority) {
    per_replay_options options = replay_options(ROWS, 1);
    options.alpha = 1;
    options.epsilon = 0;
    options.max_priority = max_priority;
    return create_replay(&options);
}

static void check_stale(per_replay* replay, int64_t id, int64_t stale) {
    const per_replay_statistics before = stats_of(replay);
    const float td_error = 1000;
    CHECK_OK(write_td_errors(replay, 1, &id, 1, &td_error, NULL));
    CHECK_OK(write_priorities(replay, 1, &id, &td_error, NULL));
    const per_replay_statistics after = stats_of(replay);
    CHECK(after.stale_updates == before.stale_updates + 2 * stale);
    if (!stale) return;
    CHECK(after.max_priority == before.max_priority && after.total == before.total && after.live == before.live);
}

static void overwritten_transitions(int32_t max_priority) {
    per_replay* replay = create(max_priority);
    for (int t = 0; t < 20; ++t) add_step(replay, 0, (float)t, 0); /* rows 12 .. 19 exist */
    CHECK_LIVE(replay, 12, 13, 14, 15, 16, 17, 18);
    CHECK(stats_of(replay).total == 7);
    for (int t = 0; t < 12; ++t) check_stale(replay, t, 1);
    for (int t = 12; t < 19; ++t) CHECK(priority_of(replay, t) == 1);
    CHECK(priority_of(replay, 4) == 0);
    CHECK(stats_of(replay).max_priority == 1);
    add_step(replay, 0, 20, 0);
    CHECK(priority_of(replay, 19) == 1);
    check_stale(replay, 13, 0); /* the oldest live row */
    CHECK(priority_of(replay, 13) == 1000 && stats_of(replay).max_priority == 1000);
    per_replay_free(replay);
}

/* Final observations and -1 are ignored; steps truncated at an unknown observation never become live. */
static void rows_that_are_never_live(void) {
    per_replay* replay = create(PER_MAX_EVER);
    add_full(replay, 0, 0, 0, TERMINATED, 1); /* row 1 is the final observation */
    CHECK(add_unknown_end(replay, 0, 2, 0, TRUNCATED) == 2);
    check_stale(replay, 1, 1);
    check_stale(replay, 2, 1);
    check_stale(replay, -1, 1);
    CHECK_LIVE(replay, 0);
    CHECK(priority_of(replay, 1) == 0 && priority_of(replay, 2) == 0);
    per_replay_free(replay);
}

/* A pending row is not stale: its priority is stored until it becomes live. */
static void a_row_that_is_not_live_yet(void) {
    per_replay* replay = create(PER_MAX_EVER);
    const int64_t id = 0;
    const float td_error = -3;
    add_step(replay, 0, 0, 0);
    CHECK_OK(write_td_errors(replay, 1, &id, 1, &td_error, NULL));
    CHECK(stats_of(replay).stale_updates == 0 && live_of(replay) == 0 && priority_of(replay, 0) == 0);
    CHECK(stats_of(replay).max_priority == 3);
    add_step(replay, 0, 1, 0);
    CHECK(priority_of(replay, 0) == 3);
    per_replay_free(replay);
}

/* Cleared transitions stay dead, and so do those with an incomplete stack. */
static void cleared_and_broken_windows(void) {
    per_replay_options options = replay_options(ROWS, 1);
    options.frame_stack = 3;
    per_replay* replay = create_replay(&options);
    for (int t = 0; t < 12; ++t) add_step(replay, 0, (float)t, 0); /* rows 4 .. 11 exist; 4 and 5 lack older frames */
    CHECK(live_of(replay) == 5);
    check_stale(replay, 3, 1);
    check_stale(replay, 4, 1);
    check_stale(replay, 5, 1);
    CHECK_OK(per_replay_clear(replay, NULL));
    for (int t = 0; t < 12; ++t) check_stale(replay, t, 1);
    CHECK_NONE_LIVE(replay);
    for (int t = 0; t < 3; ++t) add_step(replay, 0, (float)t, 0);
    CHECK(live_of(replay) == 2 && stats_of(replay).max_priority == 1);
    check_stale(replay, 11, 1);
    per_replay_free(replay);
}

/* A batch of stale and valid entries: the valid ones count. */
static void late_and_good_entries_together(void) {
    per_replay* replay = create(PER_MAX_EVER);
    const int64_t ids[] = {2, 13, -1, 14, 19, 5, 13};
    const float priorities[] = {500, 4, 600, 5, 6, 700, 3};
    for (int t = 0; t < 20; ++t) add_step(replay, 0, (float)t, 0);
    CHECK_OK(write_priorities(replay, 7, ids, priorities, NULL));
    CHECK(stats_of(replay).stale_updates == 3);
    CHECK(priority_of(replay, 13) == 3); /* of equal ids the last one wins */
    CHECK(priority_of(replay, 14) == 5 && priority_of(replay, 12) == 1);
    CHECK(stats_of(replay).total == 5 * 1 + 3 + 5);
    CHECK(stats_of(replay).max_priority == 6); /* row 19 is pending; the last entry for row 13 counts */
    add_step(replay, 0, 20, 0);
    CHECK(priority_of(replay, 19) == 6);
    per_replay_free(replay);
}

int main(void) {
    overwritten_transitions(PER_MAX_EVER);
    overwritten_transitions(PER_MAX_NOW);
    rows_that_are_never_live();
    a_row_that_is_not_live_yet();
    cleared_and_broken_windows();
    late_and_good_entries_together();
    return 0;
}

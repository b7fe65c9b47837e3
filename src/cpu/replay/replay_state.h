// The state of a replay buffer in host memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/replay_statistics.h"
#include "cpu/rows/row_reads.h"
#include "cpu/rows/row_store.h"
#include "cpu/tree/priority_store.h"
#include "per.h"
#include "rows/fields.h"
#include "rules/beta_schedule.h"
#include "rules/window.h"

namespace per::cpu {

// Rows, lanes and priorities, the changes that keep them consistent, and the state of the draws. The rules are those of
// window.h.
struct ReplayState {
    // The options must have been resolved: capacity is a multiple of n_envs.
    ReplayState(const per_replay_options& options, const Fields& fields);

    const Fields& fields;
    WindowRules rules;
    const bool has_sequences;
    const int32_t max_times_sampled;  // 0: any number
    const int64_t max_age;            // in versions; -1: any
    int64_t version = 0;              // of rows that are added
    double gamma;
    RowStore rows;
    RowReads reads;
    PriorityStore priorities;
    std::vector<Lane> lanes;
    ReplayCounters counters;

    const uint64_t seed;
    int64_t batches = 0;  // drawn; with the seed this is the whole random state
    BetaSchedule beta;
    std::atomic<int64_t> n_ahead = 0;  // batches counted by beta.step that a loader has not handed out yet
    LastBatch last_batch;

    const Ring& ring() const { return rules.ring; }
    Lane& lane(int64_t env) { return lanes[static_cast<size_t>(env)]; }
    const Lane& lane(int64_t env) const { return lanes[static_cast<size_t>(env)]; }
    uint8_t flags(int64_t env, int64_t row) const { return rows.flags(ring().slot(env, row)); }
    // The row of the lane that is in the slot.
    int64_t row_in(int64_t env, int64_t slot) const { return ring().row_of_slot(env, slot, lane(env).head); }
    int64_t beta_step() const { return beta.step - n_ahead; }

    // These two calls are for rows that may lie on the disk. reserve() must be called before the lane's latest rows are
    // written; it throws like RowStore::reserve(). will_need() is a hint that for each slot, n rows will be read, at
    // most a lane, of which the first lies `before` rows before the slot. Slots below 0 are skipped.
    void reserve(int64_t env, RowRange range);
    void will_need(const std::vector<int64_t>& slots, int64_t before, int64_t n) const;

    // Makes those rows of a range live that can be (can_be_live()). A row that was given no priority gets `otherwise`.
    void make_live(int64_t env, RowRange range, float otherwise);
    void make_dead(int64_t env, RowRange range);

    // Applies the result of cut_episode() to rows.
    void apply(int64_t env, const Cut& cut, float largest);

    // Counts a draw of the rows in these slots. Call it only with keep_times_sampled. With max_times_sampled no slot
    // may come twice, and rows that reach the maximum stop being live.
    void count_draws(const std::vector<int64_t>& slots);
    // Gives the slots of new rows their version, and a count of draws of 0.
    void begin_rows(int64_t first, int64_t n);

    // Moves the lane's tail to where tail_of() says.
    void advance_tail(int64_t env);

    // A call remembers each lane once, before it changes it, and ends with commit_lanes(), which brings the changes to
    // the tree. None of this can fail.
    void remember_lane(int64_t env);
    void commit_lanes();

    // Whole calls. env_ids [count], each once; NULL: 0 .. count - 1.
    void cut(int64_t count, const int64_t* env_ids);
    void set_n_step(int64_t n_step);
    // With max_age, rows that are now too old stop being live.
    void set_version(int64_t version);
    void clear();

 private:
    void will_need(int64_t slot, int64_t before, int64_t n) const;
    void drop_rows(RaggedRows& dropped);

    // A lane before the call.
    struct LaneBefore {
        int64_t env;
        int64_t tail;
        int64_t complete_end;
    };
    std::vector<LaneBefore> remembered_;
};

}  // namespace per::cpu

// What a replay buffer in host memory holds.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/replay_statistics.h"
#include "cpu/replay/row_reads.h"
#include "cpu/replay/row_store.h"
#include "cpu/tree/priority_store.h"
#include "per.h"
#include "rows/fields.h"
#include "rules/beta_schedule.h"
#include "rules/window.h"

namespace per::cpu {

// Rows, their lanes and their priorities, and the changes that keep them together; what was drawn so far. The rules are
// those of window.h.
struct ReplayState {
    // `options` as resolved: capacity a multiple of n_envs.
    ReplayState(const per_replay_options& options, const Fields& fields);

    const Fields& fields;
    WindowRules rules;
    const bool has_sequences;
    const int32_t max_times_sampled;  // 0: any number
    double gamma;
    RowStore rows;
    RowReads reads;
    PriorityStore priorities;
    std::vector<Lane> lanes;
    ReplayCounters counters;

    const uint64_t seed;
    int64_t batches = 0;  // drawn; with the seed the whole random state
    BetaSchedule beta;
    std::atomic<int64_t> n_ahead = 0;  // of beta.step, batches of a loader that were not handed out yet
    LastBatch last_batch;

    const Ring& ring() const { return rules.ring; }
    Lane& lane(int64_t env) { return lanes[static_cast<size_t>(env)]; }
    const Lane& lane(int64_t env) const { return lanes[static_cast<size_t>(env)]; }
    uint8_t flags(int64_t env, int64_t row) const { return rows.flags(ring().slot(env, row)); }
    // Which row of the lane is there in the slot.
    int64_t row_in(int64_t env, int64_t slot) const { return ring().row_of_slot(env, slot, lane(env).head); }
    int64_t beta_step() const { return beta.step - n_ahead; }

    // For rows that may lie on the disk. reserve() is to be called before rows are written, of which the lane has those
    // that came last; it throws what RowStore::reserve() does. will_need() is a hint that of each slot n rows will be
    // read, the first of them `before` rows before that in the slot; they are no more than a lane has. Slots below 0 are
    // none.
    void reserve(int64_t env, RowRange range);
    void will_need(const std::vector<int64_t>& slots, int64_t before, int64_t n) const;

    // Rows become live where sequences start, `otherwise` being the priority of those that were given none.
    void make_live(int64_t env, RowRange range, float otherwise);
    void make_dead(int64_t env, RowRange range);

    // Does to rows what cut_episode() said.
    void apply(int64_t env, const Cut& cut, float largest);

    // With keep_times_sampled: counts a draw of the rows in these slots, none of which comes twice where there is a
    // most number of draws. Those that have reached it stop being live.
    void count_draws(const std::vector<int64_t>& slots);
    // Of rows that are written anew.
    void forget_draws(int64_t first, int64_t n);

    // Moves the lane's tail past rows that have been overwritten, or whose stack has.
    void advance_tail(int64_t env);

    // A call remembers each lane once, before it changes it, and ends with commit_lanes(), which brings what became of
    // their rows to the tree. None of this can fail.
    void remember_lane(int64_t env);
    void commit_lanes();

    // Whole calls. env_ids [count], each once; NULL: 0 .. count - 1.
    void cut(int64_t count, const int64_t* env_ids);
    void set_n_step(int64_t n_step);
    void clear();

 private:
    void will_need(int64_t slot, int64_t before, int64_t n) const;

    // What a lane was like before the call.
    struct LaneBefore {
        int64_t env;
        int64_t tail;
        int64_t complete_end;
    };
    std::vector<LaneBefore> remembered_;
};

}  // namespace per::cpu

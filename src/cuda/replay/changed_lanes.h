// Visits the slots of rows that a call made live or dead.
#pragma once

#include <cstdint>

#include "cuda/replay/replay_state.h"
#include "cuda/tree/sum_tree.h"

namespace per::cuda {

struct AllLanes {
    int64_t n_envs;

    __device__ __forceinline__ int64_t count() const { return n_envs; }
    __device__ __forceinline__ int64_t env(int64_t j) const { return j; }
};

// The slots of rows that died or were born, as recorded for each lane in replay.changes. threads_per_lane threads share
// the rows of a lane.
//
//   struct Lanes {
//       int64_t count() const;
//       int64_t env(int64_t j) const;
//   };
template <class Lanes>
struct ChangedLanes {
    static constexpr bool rows_stay = false;
    Lanes lanes;
    int64_t threads_per_lane;

    template <class Visit>
    __device__ __forceinline__ void for_each(const DeviceReplay& replay, const Visit& visit) const {
        for_each_row(replay, [&](int64_t slot, bool) { visit(slot); });
    }

    template <class Visit>
    __device__ __forceinline__ void for_each_group(const DeviceReplay& replay, const Visit& visit) const {
        for_each_row(replay, [&](int64_t slot, bool is_first) {
            if (is_first || slot % fan_out == 0) visit(slot);
        });
    }

    // Clears the records.
    __device__ __forceinline__ void end(const DeviceReplay& replay) const {
        const GridSpan span = grid_span();
        for (int64_t j = span.first; j < lanes.count(); j += span.step) replay.changes[lanes.env(j)] = {{0, 0}, {0, 0}};
    }

 private:
    // visit(slot, is_first): is_first is true for the first row of its range, and for the first slot of the lane.
    template <class Visit>
    __device__ __forceinline__ void for_each_row(const DeviceReplay& replay, const Visit& visit) const {
        const Ring ring = replay.state->rules.ring;
        const GridSpan span = grid_span();
        for (int64_t i = span.first; i < lanes.count() * threads_per_lane; i += span.step) {
            const int64_t env = lanes.env(i / threads_per_lane);
            const int64_t thread = i % threads_per_lane;
            const LaneChange change = replay.changes[env];
            const auto visit_rows = [&](const RowRange& rows) {
                // If several rows share a slot, it is enough to visit one of them.
                const int64_t most = rows.end - ring.rows;
                const int64_t first = rows.first > most ? rows.first : most;
                for (int64_t row = first + thread; row < rows.end; row += threads_per_lane) {
                    const int64_t slot = ring.slot(env, row);
                    visit(slot, row == first || slot == env * ring.rows);
                }
            };
            // Two calls: an array of the two ranges would lie in local memory.
            visit_rows(change.died);
            visit_rows(change.born);
        }
    }
};

}  // namespace per::cuda

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
    static constexpr bool is_one_each = false;
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
        // If several rows share a slot, it is enough to visit one of them.
        const auto last_rows = [&](const RowRange& rows) -> RowRange {
            return {larger(rows.first, rows.end - ring.rows), larger(rows.first, rows.end)};
        };
        const GridSpan span = grid_span();
        for (int64_t i = span.first; i < lanes.count() * threads_per_lane; i += span.step) {
            const int64_t env = lanes.env(i / threads_per_lane);
            const RowRange died = last_rows(replay.changes[env].died);
            const RowRange born = last_rows(replay.changes[env].born);
            const int64_t n_died = died.end - died.first;
            // One loop over both ranges: visit() is large.
            for (int64_t k = i % threads_per_lane; k < n_died + born.end - born.first; k += threads_per_lane) {
                const int64_t slot = ring.slot(env, k < n_died ? died.first + k : born.first + k - n_died);
                visit(slot, k == 0 || k == n_died || slot == env * ring.rows);
            }
        }
    }
};

}  // namespace per::cuda

// The birth of each row (freshness.h) in host memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu/kernels/kernels.h"
#include "cpu/memory/column.h"
#include "rules/freshness.h"
#include "rules/window.h"

namespace per::cpu {

class Births {
 public:
    // All arguments must outlive this object. Births are those of `versions` or, if it has none, row numbers.
    Births(const Ring& ring, const std::vector<Lane>& lanes, const RowColumn<int32_t>& versions)
        : ring_(ring), lanes_(lanes), versions_(versions), turns_(static_cast<size_t>(ring.n_envs)) {}

    // The birth of the row with this number in its lane, which is stored in this slot.
    int64_t of_row(int64_t row, int64_t slot) const {
        return versions_.first != nullptr ? versions_[slot] : birth_of_row(row);
    }
    // The birth of the live row in a slot. For a slot without one the result is any valid birth.
    int64_t of_slot(int64_t slot) const {
        if (versions_.first != nullptr) return versions_[slot];
        return birth_of_row(row_in(turn_of(ring_.env_of_slot(slot)), slot));
    }
    // The same for n slots. The result refers to `slots` or to `scratch` [n].
    GivenBirths of_slots(int64_t n, const int64_t* slots, int64_t* scratch) const {
        // Local copies, which the compiler knows not to change when `scratch` does.
        const Ring ring = ring_;
        const Column<const int32_t> versions = versions_;
        if (versions.first != nullptr) {
            for (int64_t i = 0; i < n; ++i) scratch[i] = versions[slots[i]];
            return {scratch};
        }
        if (ring.n_envs == 1 && turn_of(0).head <= max_birth) {
            const Turn& turn = turn_of(0);
            return {slots, turn.latest, turn.offsets[0], turn.offsets[1]};
        }
        // With few lanes all turns are brought up to date first, so that the loop only looks them up.
        int64_t latest_head = max_birth + 1;
        if (ring.n_envs <= n) {
            latest_head = 0;
            for (int64_t env = 0; env < ring.n_envs; ++env) latest_head = std::max(latest_head, turn_of(env).head);
        }
        const Turn* const turns = turns_.data();
        if (latest_head <= max_birth)
            for (int64_t i = 0; i < n; ++i) scratch[i] = row_in(turns[ring.env_of_slot(slots[i])], slots[i]);
        else
            for (int64_t i = 0; i < n; ++i)
                scratch[i] = birth_of_row(row_in(turn_of(ring.env_of_slot(slots[i])), slots[i]));
        return {scratch};
    }
    // The same for slots first .. first + n - 1, as runs: calls visit(n, birth, step) for rows whose births are
    // birth, birth + step, .., where step is 0 or 1.
    template <class Visit>
    void for_each_run(int64_t first, int64_t n, const Visit& visit) const {
        for (const int64_t end = first + n; first < end;) {
            int64_t n_rows = 1;
            if (versions_.first != nullptr) {
                const int32_t version = versions_[first];
                while (first + n_rows < end && versions_[first + n_rows] == version) ++n_rows;
                visit(n_rows, int64_t{version}, 0);
            } else {
                const int64_t env = ring_.env_of_slot(first);
                const Turn& turn = turn_of(env);
                const int64_t row = row_in(turn, first);
                // The row after the lane's latest one lies where its oldest one was.
                const int64_t end_of_part = first <= turn.latest ? turn.latest + 1 : (env + 1) * ring_.rows;
                const bool are_all_largest = row >= max_birth;
                n_rows = std::min(end, end_of_part) - first;
                if (!are_all_largest) n_rows = std::min(n_rows, max_birth - row);
                visit(n_rows, birth_of_row(row), are_all_largest ? 0 : 1);
            }
            first += n_rows;
        }
    }

 private:
    // A slot plus its offset is the number of the row in it. offsets[0] is for slots up to that of the lane's latest row,
    // offsets[1] for slots behind it. For slots that were never used, the sum is just not negative.
    struct Turn {
        int64_t head = 0;
        int64_t latest = -1;
        int64_t offsets[2] = {0, 0};
    };

    // Recomputed only if the lane has changed.
    const Turn& turn_of(int64_t env) const {
        Turn& turn = turns_[static_cast<size_t>(env)];
        const int64_t head = lanes_[static_cast<size_t>(env)].head;
        if (turn.head != head) {
            const int64_t row = std::max<int64_t>(head - 1, 0);
            const int64_t latest = ring_.slot(env, row), offset = row - latest;
            turn = {head, latest, {offset, std::max(offset - ring_.rows, -env * ring_.rows)}};
        }
        return turn;
    }
    // It has no branch, since one would be mispredicted for every other row.
    static int64_t row_in(const Turn& turn, int64_t slot) { return slot + turn.offsets[slot > turn.latest]; }
    static int64_t birth_of_row(int64_t row) { return std::min(row, max_birth); }

    const Ring& ring_;
    const std::vector<Lane>& lanes_;
    const RowColumn<int32_t>& versions_;
    mutable std::vector<Turn> turns_;  // by lane
};

}  // namespace per::cpu

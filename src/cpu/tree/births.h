// The birth of each row (freshness.h) in host memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu/memory/column.h"
#include "rules/freshness.h"
#include "rules/window.h"

namespace per::cpu {

class Births {
 public:
    // All arguments must outlive this object. Births are those of `versions` or, if it has none, row numbers.
    Births(const Ring& ring, const std::vector<Lane>& lanes, const RowColumn<int32_t>& versions)
        : ring_(ring), lanes_(lanes), versions_(versions) {}

    // The birth of the live row in a slot. For a slot without one the result is any valid birth.
    int64_t of_slot(int64_t slot) const {
        if (versions_.first != nullptr) return versions_[slot];
        return birth_of_row(row_in(slot));
    }
    void read(int64_t n, const int64_t* slots, int64_t* births_out) const {
        if (versions_.first == nullptr && ring_.n_envs == 1 && head(0) > 0) {
            const int64_t last = head(0) - 1, slot_of_last = ring_.slot(0, last);
            for (int64_t i = 0; i < n; ++i) {
                const int64_t behind = slot_of_last - slots[i];
                births_out[i] = birth_of_row(last - (behind < 0 ? behind + ring_.rows : behind));
            }
            return;
        }
        for (int64_t i = 0; i < n; ++i) births_out[i] = of_slot(slots[i]);
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
                const int64_t row = row_in(first);
                // The row after the lane's latest one lies where its oldest one was.
                n_rows = std::min({end - first, (env + 1) * ring_.rows - first, std::max<int64_t>(head(env) - row, 1)});
                const bool are_all_largest = row >= max_birth;
                if (!are_all_largest) n_rows = std::min(n_rows, max_birth - row);
                visit(n_rows, birth_of_row(row), are_all_largest ? 0 : 1);
            }
            first += n_rows;
        }
    }

 private:
    int64_t head(int64_t env) const { return lanes_[static_cast<size_t>(env)].head; }
    int64_t row_in(int64_t slot) const {
        const int64_t env = ring_.env_of_slot(slot);
        return head(env) == 0 ? 0 : ring_.row_of_slot(env, slot, head(env));
    }
    static int64_t birth_of_row(int64_t row) { return std::clamp<int64_t>(row, 0, max_birth); }

    const Ring& ring_;
    const std::vector<Lane>& lanes_;
    const RowColumn<int32_t>& versions_;
};

}  // namespace per::cpu

// What a file says of rows that later calls rely on without looking: the order of flags, which rows are live, and what
// their priorities weigh. Every device checks it here, before it works with any of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "file/checkpoint.h"
#include "file/saved_state.h"
#include "rules/mass.h"
#include "rules/rank.h"
#include "rules/window.h"

namespace per {

// Sees flags and priorities pass by on their way from a file. It keeps memory for rows that are in the file only.
// Whatever no buffer can have throws Error with CORRUPT_FILE.
class SavedRows {
 public:
    // The four must stay as long as this object.
    SavedRows(const CheckpointReader& reader, const WindowRules& rules, const std::vector<Lane>& lanes,
              const SavedNumbers& numbers, double alpha);

    // The next n elements of an array, or bytes that are parts of larger ones, in the order of the file.
    void see(const SlotArray& array, const std::byte* elements, int64_t n);
    // After the last of them.
    void check(const SlotArray& array);
    // After the arrays; NULL: the file has no ranks, which those of a buffer made with PER_RANK always has.
    void check_ranks(const SavedRanks* ranks, bool are_needed) const;

    // Once the flags were checked: lane by lane, in order of time.
    const std::vector<int64_t>& live_slots() const { return live_slots_; }

 private:
    // Of a row that is there, among those of all lanes that are in the file.
    size_t index(int64_t env, int64_t row) const;
    uint8_t flags(int64_t env, int64_t row) const { return flags_[index(env, row)]; }
    void check_flags() const;
    bool can_be(int64_t env) const;
    void find_live(int64_t env);
    void see_priorities(const float* priorities, int64_t n);
    void check_priorities() const;

    const CheckpointReader& reader_;
    const WindowRules& rules_;
    const std::vector<Lane>& lanes_;
    const SavedNumbers& numbers_;
    double alpha_;
    std::vector<size_t> first_;   // by environment: the index of its first slot
    std::vector<uint8_t> flags_;  // by index
    std::vector<bool> is_live_;   // by index
    std::vector<int64_t> live_slots_;
    size_t n_priorities_ = 0;  // that were seen
    bool are_priorities_ = true;
    BatchMass mass_ = {0.0, 0};                                                    // of the leaves of live rows
    std::vector<uint64_t> bucket_counts_ = std::vector<uint64_t>(n_rank_buckets);  // of live rows
};

}  // namespace per

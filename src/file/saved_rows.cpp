#include "file/saved_rows.h"

#include <algorithm>
#include <cstring>

#include "rules/priority.h"
#include "rules/td_error.h"

namespace per {
namespace {

constexpr float not_given = -1.0f;  // the priority of a row that has none

// Flags that a row may have, whatever is beside it.
bool can_be(uint8_t flags, const WindowRules& rules) {
    constexpr uint8_t all =
        row_is_step | row_starts_episode | row_ends_episode | row_final_unknown | row_starts_sequence;
    if (flags == 0) return true;
    if (!(flags & row_is_step) || flags & ~all) return false;
    if ((flags & row_ends_episode) == row_ends_episode) return false;
    if (flags & row_final_unknown && !(flags & row_ends_episode)) return false;
    if (rules.sequence.stride == 1) return !(flags & row_starts_sequence);
    return !(flags & row_starts_episode) || flags & row_starts_sequence;
}

// What a row can be by the row before it.
enum class Expected { anything, start, step, final_observation };

Expected expected_after(uint8_t flags, const WindowRules& rules) {
    if (!(flags & row_is_step)) return Expected::start;
    if (!(flags & row_ends_episode)) return Expected::step;
    return flags & row_final_unknown || !next_takes_row(rules) ? Expected::start : Expected::final_observation;
}

bool is(Expected expected, uint8_t flags) {
    switch (expected) {
        case Expected::anything:
            return true;
        case Expected::start:
            return flags & row_starts_episode;
        case Expected::step:
            return flags & row_is_step && !(flags & row_starts_episode);
        case Expected::final_observation:
            return flags == 0;
    }
    __builtin_unreachable();
}

// Sequences start at every stride-th step of an episode. Of one whose first steps are overwritten it is not known at
// which steps until one is marked.
class SequenceStarts {
 public:
    explicit SequenceStarts(int64_t stride) : stride_(stride) {}

    void know(int64_t steps_since_start) { since_ = steps_since_start % stride_; }
    void forget() {
        since_ = -1;
        n_unmarked_ = 0;
    }
    // Whether the next step may have these flags.
    bool allow(uint8_t flags) {
        if (stride_ == 1) return true;
        const bool is_marked = flags & row_starts_sequence;
        if (flags & row_starts_episode || (since_ < 0 && is_marked)) since_ = 0;
        if (since_ < 0) return ++n_unmarked_ < stride_;
        const bool is_due = since_ == 0;
        since_ = since_ + 1 == stride_ ? 0 : since_ + 1;
        return is_marked == is_due;
    }

 private:
    int64_t stride_;
    int64_t since_ = -1;  // steps since the latest start, the next step included; -1: not known
    int64_t n_unmarked_ = 0;
};

}  // namespace

SavedRows::SavedRows(const CheckpointReader& reader, const WindowRules& rules, const std::vector<Lane>& lanes,
                     const SavedNumbers& numbers, double alpha)
    : reader_(reader), rules_(rules), lanes_(lanes), numbers_(numbers), alpha_(alpha) {
    size_t n = 0;
    first_.reserve(lanes.size());
    for (const Lane& lane : lanes) {
        first_.push_back(n);
        n += static_cast<size_t>(used_slots(lane, rules));
    }
}

size_t SavedRows::index(int64_t env, int64_t row) const {
    return first_[static_cast<size_t>(env)] + static_cast<size_t>(rules_.ring.by_rows.remainder(row));
}

void SavedRows::see(const SlotArray& array, const std::byte* elements, int64_t n) {
    if (array.kind == SlotArray::Kind::flags) {
        const uint8_t* const flags = reinterpret_cast<const uint8_t*>(elements);
        flags_.insert(flags_.end(), flags, flags + n);
    }
    if (array.kind == SlotArray::Kind::priorities) see_priorities(reinterpret_cast<const float*>(elements), n);
}

void SavedRows::check(const SlotArray& array) {
    if (array.kind == SlotArray::Kind::flags) {
        check_flags();
        is_live_.resize(flags_.size());
        for (int64_t env = 0; env < rules_.ring.n_envs; ++env) find_live(env);
        flags_ = {};
    }
    if (array.kind == SlotArray::Kind::priorities) check_priorities();
}

// ------------------------------------------------------------------------------------------------------------ flags

void SavedRows::check_flags() const {
    for (const uint8_t flags : flags_)
        if (!per::can_be(flags, rules_)) reader_.refuse("a row in it has flags that no row has");
    for (int64_t env = 0; env < rules_.ring.n_envs; ++env)
        if (!can_be(env)) reader_.refuse("flags in it cannot follow each other");
}

// Whether the rows of a lane that are there follow each other as steps make them, and agree with the lane.
bool SavedRows::can_be(int64_t env) const {
    const Lane& lane = lanes_[static_cast<size_t>(env)];
    const int64_t oldest = oldest_row(lane, rules_);
    const auto flags_of = [&](int64_t row) { return flags(env, row); };
    Expected expected = oldest == lane.first ? Expected::start : Expected::anything;
    int64_t latest_start = -1;
    SequenceStarts starts(rules_.sequence.stride);
    if (lane.in_episode() && lane.episode < oldest) starts.know(oldest - lane.episode);
    for (int64_t row = oldest; row < lane.head; ++row) {
        const uint8_t flags = flags_of(row);
        if (!is(expected, flags)) return false;
        if (flags & row_starts_episode) latest_start = row;
        if (flags & row_is_step && !starts.allow(flags)) return false;
        expected = expected_after(flags, rules_);
        if (expected != Expected::step) starts.forget();
    }
    if (lane.in_episode()) {
        if (expected != Expected::step) return false;
        if (latest_start != (lane.episode >= oldest ? lane.episode : -1)) return false;
        if (used_end(lane, rules_) > lane.head && flags_of(lane.head) != 0) return false;
    } else if (lane.head > oldest && expected != Expected::start) {
        return false;
    }
    // The observation with which the episode ended is compared with the next one, also after a clear.
    if (lane.state == LaneState::ended) {
        const uint8_t last = flags_of(compared_row(lane));
        if (next_takes_row(rules_) ? last != 0 : !(last & row_ends_episode) || last & row_final_unknown) return false;
    }
    return lane.tail == first_with_stack(oldest, lane, rules_.stack, flags_of);
}

void SavedRows::find_live(int64_t env) {
    const Lane& lane = lanes_[static_cast<size_t>(env)];
    const int64_t needed = rules_.sequence.burn_in + 1;
    const auto flags_of = [&](int64_t row) { return flags(env, row); };
    for (int64_t row = lane.tail; row < complete_end(lane, rules_); ++row) {
        if (!(flags_of(row) & row_is_step && starts_sequence(rules_, flags_of(row)))) continue;
        if (transitions_from(lane, row, needed, flags_of) != needed) continue;
        is_live_[index(env, row)] = true;
        live_slots_.push_back(rules_.ring.slot(env, row));
    }
}

// ------------------------------------------------------------------------------------------------------- priorities

void SavedRows::see_priorities(const float* priorities, int64_t n) {
    const double factor = is_scale(numbers_.tree_scale) ? power_of_two(numbers_.tree_scale) : 1.0;
    for (int64_t i = 0; i < n; ++i) {
        const float priority = priorities[i];
        const bool is_live = is_live_[n_priorities_++];
        are_priorities_ &= is_priority(priority) || (priority == not_given && !is_live);
        if (!is_live || !are_priorities_) continue;
        mass_ = add_to_batch(mass_, leaf_priority(priority, alpha_), factor);
        ++bucket_counts_[static_cast<size_t>(rank_bucket(priority))];
    }
}

void SavedRows::check_priorities() const {
    if (!are_priorities_) reader_.refuse("a priority in it cannot be");
    if (!is_scale(numbers_.tree_scale) || breaks_limits(mass_, 0)) reader_.refuse("its priorities cannot be");
}

// Ranks that were never taken weigh nothing, and are due. Else every bucket weighs something, also an empty one.
void SavedRows::check_ranks(const SavedRanks* ranks, bool are_needed) const {
    if (ranks == nullptr) {
        if (are_needed) reader_.refuse("it has no ranks");
        return;
    }
    const auto is_zero = [](float weight) { return weight == 0.0f; };
    const auto n_zero = std::count_if(std::begin(ranks->weights), std::end(ranks->weights), is_zero);
    const bool are_taken = n_zero == 0;
    const bool were_never_taken = n_zero == n_rank_buckets && ranks->n_changes >= ranks_never_taken;
    if (!is_scale(ranks->tree_scale) || !(are_taken || were_never_taken)) reader_.refuse("its ranks cannot be");
    const double factor = power_of_two(ranks->tree_scale);
    float largest = 0.0f;
    unsigned __int128 sum = 0;
    for (size_t bucket = 0; bucket < bucket_counts_.size(); ++bucket) {
        if (bucket_counts_[bucket] == 0) continue;
        const float weight = ranks->weights[bucket];
        largest = std::max(largest, weight);
        sum += static_cast<unsigned __int128>(bucket_counts_[bucket]) * limited_mass_of(weight, factor);
    }
    const BatchMass mass = batch_mass(largest, factor, static_cast<uint64_t>(sum >> 64), static_cast<uint64_t>(sum));
    if (breaks_limits(mass, 0)) reader_.refuse("its ranks cannot be");
}

}  // namespace per

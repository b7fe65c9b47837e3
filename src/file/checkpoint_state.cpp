#include "file/checkpoint_state.h"

#include <bit>
#include <cstring>
#include <limits>
#include <numeric>

#include "rules/limits.h"
#include "rules/priority.h"
#include "rules/td_error.h"

namespace per {
namespace {

// The largest count of changes of a rank tree.
constexpr int64_t max_changes = ranks_never_taken + (int64_t{1} << 61);

constexpr float not_given = -1.0f;  // stands for the priority of a row without one

constexpr size_t max_seen = 1024;  // the most priorities that see_few_priorities() takes
static_assert(leaf_mass_limit <= uint64_t{1} << 53);

// Calls visit(number, least, most) for each number of the section "counters", in the order of the file. In a valid file
// the number is in least .. most.
template <class Numbers, class Visit>
void for_each_number(Numbers& numbers, const Visit& visit) {
    const auto visit_count = [&](auto& count) { visit(count, int64_t{0}, max_counter); };
    visit_count(numbers.beta_step);
    visit_count(numbers.batches);
    visit_count(numbers.counters.added);
    visit_count(numbers.counters.dropped);
    visit_count(numbers.counters.episodes);
    visit_count(numbers.counters.cuts);
    visit_count(numbers.counters.updates);
    visit_count(numbers.counters.stale_updates);
    visit_count(numbers.counters.rejected_updates);
    visit_count(numbers.counters.suspected_resets);
    visit(numbers.largest_priority, 1.0f, std::numeric_limits<float>::max());
    visit(numbers.tree_scale, INT32_MIN, INT32_MAX);
    visit(numbers.tree_rescales_below, uint64_t{0}, UINT64_MAX);
    visit_count(numbers.figures.size);
    visit_count(numbers.figures.max_age);
    visit(numbers.figures.mean_age, 0.0, static_cast<double>(numbers.figures.max_age));
    visit(numbers.figures.effective_size, 0.0, std::numeric_limits<double>::max());
    visit(numbers.figures.duplicates, 0.0, 1.0);
    visit(numbers.version, int64_t{0}, int64_t{INT32_MAX});
    visit(numbers.reference, int64_t{0}, int64_t{1} << 51);
}

bool is_possible(const Lane& lane, const WindowRules& rules) {
    const int64_t max_rows = max_counter / rules.ring.n_envs;
    if (!(0 <= lane.first && lane.first <= lane.tail && lane.tail <= lane.head && lane.head <= max_rows)) return false;
    if (lane.tail < oldest_row(lane, rules)) return false;
    if (!(0 <= lane.episode && lane.episode <= lane.head)) return false;
    if (lane.state == LaneState::running && rules.store_next_observation) return false;
    if (lane.in_episode()) return lane.first <= lane.episode && lane.episode < lane.head;
    return lane.state == LaneState::idle || lane.head > 0;
}

Lane read_lane(CheckpointReader& reader, const WindowRules& rules) {
    Lane lane;
    lane.head = reader.number<int64_t>();
    lane.first = reader.number<int64_t>();
    lane.tail = reader.number<int64_t>();
    lane.episode = reader.number<int64_t>();
    lane.state = static_cast<LaneState>(reader.number<uint8_t>(0, static_cast<uint8_t>(LaneState::ended)));
    if (!is_possible(lane, rules)) reader.refuse("a lane in it cannot be");
    return lane;
}

// Number of flags at the beginning that are just row_is_step. Most flags are, so they are compared eight at a time.
size_t n_plain(const uint8_t* flags, size_t n) {
    constexpr uint64_t eight = row_is_step * uint64_t{0x0101010101010101};
    size_t i = 0;
    for (uint64_t word; i + sizeof word <= n; i += sizeof word) {
        std::memcpy(&word, flags + i, sizeof word);
        if (word != eight) break;
    }
    while (i < n && flags[i] == row_is_step) ++i;
    return i;
}

// The kind of row that can follow another one.
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

// Sequences start at every stride-th step of an episode. If the first steps of an episode are overwritten, the starts
// are unknown up to the first step that is marked.
class SequenceStarts {
 public:
    explicit SequenceStarts(int64_t stride) : stride_(stride) {}

    void know(int64_t steps_since_start) { since_ = steps_since_start % stride_; }
    void forget() {
        since_ = -1;
        n_unmarked_ = 0;
    }
    // True if the next step may have these flags.
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
    int64_t since_ = -1;  // steps since the latest start, including the next step; -1: unknown
    int64_t n_unmarked_ = 0;
};

uint64_t sum_of(const std::vector<uint32_t>& sizes) {
    return std::accumulate(sizes.begin(), sizes.end(), uint64_t{0});
}

// Cuts are at the same slots whatever row a checkpoint begins with, so the bytes between two cuts stay the same until
// their rows are overwritten.
std::vector<uint64_t> cuts_of(const SlotArray& array, const std::vector<Lane>& lanes, const WindowRules& rules) {
    constexpr int64_t bytes_between_cuts = int64_t{1} << 16;
    std::vector<uint64_t> cuts;
    if (array.is_ragged()) {
        // A power of two, so that it rarely changes as the mean length does.
        const uint64_t n = array.sizes.size();
        const uint64_t rows = n * uint64_t{bytes_between_cuts} / std::max<uint64_t>(1, sum_of(array.sizes));
        const int64_t distance = static_cast<int64_t>(std::bit_floor(std::max<uint64_t>(1, rows)));
        uint64_t end = 0;
        std::size_t i = 0;
        for_each_saved_part(rules, lanes, [&](int64_t slot, int64_t n_slots) {
            for (int64_t next = slot + 1; next <= slot + n_slots; ++next) {
                end += array.sizes[i++];
                if (next == slot + n_slots || next % rules.ring.rows % distance == 0) cuts.push_back(end);
            }
        });
        return cuts;
    }
    const int64_t distance = std::max<int64_t>(1, bytes_between_cuts / array.bytes);
    int64_t before = 0;  // elements
    for_each_saved_part(rules, lanes, [&](int64_t slot, int64_t n) {
        const int64_t to_first = distance - slot % rules.ring.rows % distance;
        for (int64_t i = to_first; i < n; i += distance)
            cuts.push_back(static_cast<uint64_t>((before + i) * array.bytes));
        before += n;
        cuts.push_back(static_cast<uint64_t>(before * array.bytes));
    });
    return cuts;
}

}  // namespace

std::vector<SlotArray> slot_arrays(const Fields& fields, const WindowRules& rules, bool has_times_sampled,
                                   bool has_versions) {
    using Kind = SlotArray::Kind;
    std::vector<SlotArray> arrays = {{Kind::flags, -1, sizeof(uint8_t), "flags"}};
    if (has_versions) arrays.push_back({Kind::versions, -1, sizeof(int32_t), "versions"});
    arrays.push_back({Kind::rewards, -1, sizeof(float), "rewards"});
    arrays.push_back({Kind::priorities, -1, sizeof(float), "priorities"});
    if (has_times_sampled) arrays.push_back({Kind::times_sampled, -1, sizeof(int32_t), "times sampled"});
    for (int64_t i = 0; i < fields.count(); ++i) {
        const int64_t bytes = fields[i].is_ragged() ? 0 : fields[i].bytes;
        arrays.push_back({Kind::field, i, bytes, "field " + fields[i].name});
        if (rules.store_next_observation && fields[i].is_observation())
            arrays.push_back({Kind::next_field, i, bytes, "field " + fields[i].next_name});
    }
    return arrays;
}

int64_t bytes_of_array(const SlotArray& array, const WindowRules& rules, const std::vector<Lane>& lanes) {
    return array.is_ragged() ? static_cast<int64_t>(sum_of(array.sizes)) : n_saved_rows(lanes, rules) * array.bytes;
}

int64_t bytes_of_arrays(const std::vector<SlotArray>& arrays, const WindowRules& rules,
                        const std::vector<Lane>& lanes) {
    int64_t bytes = 0;
    for (const SlotArray& array : arrays) bytes += bytes_of_array(array, rules, lanes);
    return bytes;
}

// --------------------------------------------------------------------------------------------------------- writing

void write_numbers(CheckpointWriter& writer, const CheckpointNumbers& numbers, const std::vector<Lane>& lanes) {
    SectionContent counters;
    for_each_number(numbers, [&](auto number, auto, auto) { counters.number(number); });
    writer.write("counters", counters);
    SectionContent rows;
    for (const Lane& lane : lanes) {
        rows.number(lane.head);
        rows.number(lane.first);
        rows.number(lane.tail);
        rows.number(lane.episode);
        rows.number(static_cast<uint8_t>(lane.state));
    }
    writer.write("lanes", rows);
}

void begin_array(CheckpointWriter& writer, const SlotArray& array, const std::vector<Lane>& lanes,
                 const WindowRules& rules) {
    writer.begin(array.name, static_cast<uint64_t>(bytes_of_array(array, rules, lanes)));
    if (writer.takes_cuts()) writer.cut_at(cuts_of(array, lanes, rules));
}

void write_ranks(CheckpointWriter& writer, const CheckpointRanks* ranks) {
    SectionContent content;
    content.number(static_cast<uint8_t>(ranks != nullptr));
    if (ranks != nullptr) {
        content.number(ranks->n_changes);
        content.number(ranks->tree_scale);
        content.number(ranks->tree_rescales_below);
        content.bytes(ranks->weights, sizeof ranks->weights);
    }
    writer.write("ranks", content);
}

// --------------------------------------------------------------------------------------------------------- reading

void raise_one_by_one(int64_t count, const float* priorities, double alpha, float* powers_out) {
    for (int64_t i = 0; i < count; ++i) powers_out[i] = priority_to_alpha(priorities[i], alpha);
}

CheckpointState::CheckpointState(CheckpointReader& reader, const CheckpointRules& rules, Raise raise)
    : reader_(reader),
      rules_(rules.windows),
      alpha_(rules.alpha),
      max_times_sampled_(rules.max_times_sampled),
      freshness_(rules.freshness),
      has_versions_(rules.has_versions),
      max_age_(rules.max_age),
      lanes_(static_cast<size_t>(rules_.ring.n_envs)),
      stack_tails_(lanes_.size()),
      raise_(raise) {
    reader.begin("counters");
    for_each_number(numbers_, [&](auto& number, auto least, auto most) { number = reader.number(least, most); });
    reader.end();
    if (!is_reference(freshness_, numbers_.reference) || (numbers_.version != 0 && !has_versions_))
        reader.refuse("a number in it cannot be");
    freshness_.reference = numbers_.reference;
    reader.begin("lanes");
    size_t n_elements = 0;
    first_.reserve(lanes_.size());
    for (Lane& lane : lanes_) {
        lane = read_lane(reader, rules_);
        first_.push_back(n_elements);
        const RowRange saved = saved_rows(lane, rules_);
        n_elements += static_cast<size_t>(saved.end - saved.first);
    }
    reader.end();
}

size_t CheckpointState::index(int64_t env, int64_t row) const {
    const size_t lane = static_cast<size_t>(env);
    return first_[lane] + static_cast<size_t>(row - saved_rows(lanes_[lane], rules_).first);
}

void CheckpointState::begin(const SlotArray& array) {
    if (array.is_ragged()) return reader_.begin_any_size(array.name);
    reader_.begin(array.name, static_cast<uint64_t>(n_saved_rows(lanes_, rules_) * array.bytes));
    if (!reader_.is_in_rows()) return;
    using Kind = SlotArray::Kind;
    if (array.kind != Kind::rewards && array.kind != Kind::field && array.kind != Kind::next_field)
        reader_.refuse("it is in no file");
    const uint64_t record_bytes = reader_.folder_with_rows()->rows()->record_bytes;
    const uint64_t element_bytes = static_cast<uint64_t>(array.bytes);
    if (element_bytes > record_bytes || reader_.row_place() > record_bytes - element_bytes ||
        record_bytes > static_cast<uint64_t>(INT64_MAX / rules_.ring.capacity()))
        reader_.refuse("its place in the file cannot be");
    cursor_ = {};
    for_each_part([&](int64_t slot, int64_t n) { cursor_.slots.push_back({slot, slot + n}); });
    if (!cursor_.slots.empty()) cursor_.slot = cursor_.slots[0].first;
}

void CheckpointState::read_rows(int64_t element_bytes, std::byte* bytes, std::size_t size) {
    RowReader& rows = reader_.row_reader();
    const uint64_t record_bytes = reader_.folder_with_rows()->rows()->record_bytes;
    while (size > 0) {
        const std::size_t n = std::min(size, static_cast<std::size_t>(element_bytes - cursor_.offset));
        rows.read(static_cast<uint64_t>(cursor_.slot) * record_bytes + reader_.row_place() +
                      static_cast<uint64_t>(cursor_.offset),
                  bytes, n);
        bytes += n;
        size -= n;
        cursor_.offset += static_cast<int64_t>(n);
        if (cursor_.offset < element_bytes) continue;
        cursor_.offset = 0;
        if (++cursor_.slot == cursor_.slots[cursor_.part].end && ++cursor_.part < cursor_.slots.size())
            cursor_.slot = cursor_.slots[cursor_.part].first;
    }
}

void CheckpointState::read(const SlotArray& array, std::byte* bytes, std::size_t size) {
    if (reader_.is_in_rows()) return read_rows(array.bytes, bytes, size);
    reader_.bytes(bytes, size);
    if (array.kind == SlotArray::Kind::flags) {
        const uint8_t* const flags = reinterpret_cast<const uint8_t*>(bytes);
        flags_.insert(flags_.end(), flags, flags + size);
    }
    if (array.kind == SlotArray::Kind::versions) {
        const int32_t* const versions = reinterpret_cast<const int32_t*>(bytes);
        versions_.insert(versions_.end(), versions, versions + size / sizeof(int32_t));
    }
    if (array.kind == SlotArray::Kind::priorities)
        see_priorities(reinterpret_cast<const float*>(bytes), size / sizeof(float));
    if (array.kind == SlotArray::Kind::times_sampled)
        see_times_sampled(reinterpret_cast<const int32_t*>(bytes), size / sizeof(int32_t));
}

void CheckpointState::end(const SlotArray& array) {
    reader_.end();
    if (array.kind == SlotArray::Kind::flags) {
        check_flags();
        is_live_.resize(flags_.size());
        for (int64_t env = 0; env < rules_.ring.n_envs; ++env) find_live(env);
        for (size_t i = 0; max_times_sampled_ > 0 && i < flags_.size(); ++i)
            is_used_up_.push_back(flags_[i] & row_is_used_up);
        flags_ = {};
    }
    if (array.kind == SlotArray::Kind::versions) check_versions();
    if (array.kind == SlotArray::Kind::priorities) check_priorities();
    if (array.kind == SlotArray::Kind::times_sampled && !are_times_sampled_)
        reader_.refuse("a row in it was drawn as often as it cannot have been");
}

std::optional<CheckpointRanks> CheckpointState::read_ranks(bool are_required) {
    reader_.begin("ranks");
    std::optional<CheckpointRanks> ranks;
    if (reader_.number<uint8_t>(0, 1) == 1) {
        ranks.emplace();
        ranks->n_changes = reader_.number<int64_t>(0, max_changes);
        ranks->tree_scale = reader_.number<int32_t>();
        ranks->tree_rescales_below = reader_.number<uint64_t>();
        for (float& weight : ranks->weights) weight = reader_.number<float>(0.0f, 1.0f);
    }
    reader_.end();
    if (ranks) check_ranks(*ranks);
    if (!ranks && are_required) reader_.refuse("it has no ranks");
    return ranks;
}

// ------------------------------------------------------------------------------------------------------------ flags

// True if a row may have these flags, whatever the rows beside it.
bool CheckpointState::is_possible(uint8_t flags) const {
    constexpr uint8_t all =
        row_is_step | row_starts_episode | row_ends_episode | row_final_unknown | row_starts_sequence | row_is_used_up;
    if (flags == 0) return true;
    if (!(flags & row_is_step) || flags & ~all) return false;
    if ((flags & row_ends_episode) == row_ends_episode) return false;
    if (flags & row_final_unknown && !(flags & row_ends_episode)) return false;
    if (flags & row_is_used_up && max_times_sampled_ == 0 && max_age_ < 0) return false;
    if (rules_.sequence.stride == 1) return !(flags & row_starts_sequence);
    return !(flags & row_starts_episode) || flags & row_starts_sequence;
}

// Number of rows at the beginning whose flags are just row_is_step.
int64_t CheckpointState::n_plain_steps(int64_t env, RowRange rows) const {
    return static_cast<int64_t>(
        n_plain(flags_.data() + index(env, rows.first), static_cast<size_t>(rows.end - rows.first)));
}

void CheckpointState::check_flags() {
    for (size_t i = 0; i < flags_.size(); ++i) {
        i += n_plain(flags_.data() + i, flags_.size() - i);
        if (i < flags_.size() && !is_possible(flags_[i])) reader_.refuse("a row in it has flags that no row has");
    }
    for (int64_t env = 0; env < rules_.ring.n_envs; ++env)
        if (!is_order_possible(env)) reader_.refuse("flags in it cannot follow each other");
}

// True if steps can have written the rows of a lane in this order, and if they agree with the lane.
bool CheckpointState::is_order_possible(int64_t env) {
    const Lane& lane = lanes_[static_cast<size_t>(env)];
    const int64_t oldest = oldest_row(lane, rules_);
    const auto flags_of = [&](int64_t row) { return flags(env, row); };
    Expected expected = oldest == lane.first ? Expected::start : Expected::anything;
    int64_t latest_start = -1;
    SequenceStarts starts(rules_.sequence.stride);
    if (lane.in_episode() && lane.episode < oldest) starts.know(oldest - lane.episode);
    for (int64_t row = oldest; row < lane.head; ++row) {
        if (rules_.sequence.stride == 1 && is(expected, row_is_step)) {
            const int64_t n = n_plain_steps(env, {row, lane.head});
            if (n > 0) expected = Expected::step;
            row += n;
            if (row == lane.head) break;
        }
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
    // The final observation of the last episode is compared with the observation of the next step, even after a clear.
    if (lane.state == LaneState::ended) {
        const uint8_t last = flags_of(compared_row(lane));
        if (next_takes_row(rules_) ? last != 0 : !(last & row_ends_episode) || last & row_final_unknown) return false;
    }
    const int64_t tail = tail_of(lane, rules_, flags_of);
    stack_tails_[static_cast<size_t>(env)] = tail;
    // Rows between the two are too old, and marked.
    for (int64_t row = tail; max_age_ >= 0 && row < lane.tail; ++row)
        if (flags_of(row) & row_is_step && !(flags_of(row) & row_is_used_up)) return false;
    return max_age_ < 0 ? lane.tail == tail : lane.tail >= tail;
}

void CheckpointState::find_live(int64_t env) {
    const Lane& lane = lanes_[static_cast<size_t>(env)];
    const int64_t needed = rules_.sequence.burn_in + 1;
    const auto flags_of = [&](int64_t row) { return flags(env, row); };
    const auto is_live = [&](int64_t row) {
        return flags_of(row) & row_is_step && can_be_live(rules_, flags_of(row)) &&
               transitions_from(lane, row, needed, flags_of) == needed;
    };
    const bool are_plain_live = needed == 1 && can_be_live(rules_, row_is_step);
    const int64_t end = complete_end(lane, rules_);
    for (int64_t row = lane.tail; row < end; ++row) {
        const int64_t first = row;
        while (row < end && is_live(row)) row += 1 + (are_plain_live ? n_plain_steps(env, {row + 1, end}) : 0);
        add_live(env, {first, row});
    }
}

void CheckpointState::add_live(int64_t env, RowRange rows) {
    per::for_each_part(rules_.ring, env, rows, [&](int64_t slot, int64_t row, int64_t n) {
        std::fill_n(is_live_.begin() + static_cast<std::ptrdiff_t>(index(env, row)), n, uint8_t{1});
        live_slots_.push_back({slot, slot + n});
        n_live_ += n;
    });
}

// ------------------------------------------------------------------------------------------------------- priorities

void CheckpointState::see_priorities(const float* priorities, size_t n) {
    leaves_.resize(n);
    for (size_t first = 0; first < n; first += max_seen) {
        const size_t n_seen = std::min(n - first, max_seen);
        see_few_priorities(priorities + first, n_seen, leaves_.data() + first);
    }
}

// n is small enough for the priorities to fit the first-level cache, and for the sum of their masses to fit 64 bits.
// Rows that are not live have a leaf of 0. It is cleared separately if alpha is 0, as 0^0 is 1.
void CheckpointState::see_few_priorities(const float* priorities, size_t n, float* leaves_out) {
    const double factor = is_scale(numbers_.tree_scale) ? power_of_two(numbers_.tree_scale) : 1.0;
    const uint8_t* const is_live = is_live_.data() + n_priorities_;
    n_priorities_ += n;
    int32_t are_priorities = 1;
    for (size_t i = 0; i < n; ++i) {
        const uint32_t mask = 0u - is_live[i];
        leaves_out[i] = bit_cast<float>(bit_cast<uint32_t>(priorities[i]) & mask);
        const bool has_none = (priorities[i] == not_given) & !is_live[i];
        are_priorities &= int32_t{is_priority(priorities[i])} | int32_t{has_none};
    }
    are_priorities_ &= are_priorities != 0;
    if (!are_priorities_) return;
    for (size_t i = 0; i < n; ++i) bucket_counts_[static_cast<size_t>(rank_bucket(leaves_out[i]))] += is_live[i];
    if (freshness_.decays()) {
        for (size_t i = 0; i < n; ++i) {
            if (!is_live[i]) continue;
            const int64_t birth_of_row = birth(n_priorities_ - n + i);
            latest_birth_ = std::max(latest_birth_, birth_of_row);
            leaves_out[i] = decayed_leaf(leaves_out[i], alpha_, freshness_, birth_of_row);
        }
    } else {
        raise_(static_cast<int64_t>(n), leaves_out, alpha_, leaves_out);
    }
    for (size_t i = 0; alpha_ == 0.0 && i < n; ++i) leaves_out[i] *= is_live[i];
    uint64_t mass = 0;
    bool has_too_large = false;
    for (size_t i = 0; i < n; ++i) {
        mass += limited_mass_of(leaves_out[i], factor);
        has_too_large |= is_too_large(leaves_out[i], factor);
    }
    has_too_large_leaf_ |= has_too_large;
    mass_ = add_wide(mass_, {mass, 0});
}

void CheckpointState::check_priorities() const {
    if (!are_priorities_) reader_.refuse("a priority in it cannot be");
    const bool fits = !has_too_large_leaf_ && mass_.high == 0 && mass_.low < total_mass_limit;
    if (!is_scale(numbers_.tree_scale) || !fits) reader_.refuse("its priorities cannot be");
    if (freshness_.decays() && is_rebase_due(freshness_, latest_birth_)) reader_.refuse("its reference cannot be");
}

// Versions grow along a lane. A live row is young enough, and the tail is at most at the first row that is.
void CheckpointState::check_versions() const {
    const int64_t least = max_age_ < 0 ? 0 : numbers_.version - max_age_;
    for (size_t env = 0; env < lanes_.size(); ++env) {
        const RowRange rows = saved_rows(lanes_[env], rules_);
        int64_t before = 0;
        for (int64_t row = rows.first; row < rows.end; ++row) {
            const size_t i = first_[env] + static_cast<size_t>(row - rows.first);
            const int64_t version = versions_[i];
            const bool is_old_enough = row < stack_tails_[env] || row >= lanes_[env].tail || version < least;
            if (version < before || version > numbers_.version || !is_old_enough || (is_live_[i] && version < least))
                reader_.refuse("a version in it cannot be");
            before = version;
        }
    }
}

// Call it in the order of indices.
int64_t CheckpointState::birth(size_t index) {
    if (has_versions_) return versions_[index];
    while (lane_of_birth_ + 1 < first_.size() && index >= first_[lane_of_birth_ + 1]) ++lane_of_birth_;
    const int64_t row =
        saved_rows(lanes_[lane_of_birth_], rules_).first + static_cast<int64_t>(index - first_[lane_of_birth_]);
    return std::min(row, max_birth);
}

void CheckpointState::see_times_sampled(const int32_t* times_sampled, size_t n) {
    for (size_t i = 0; i < n; ++i, ++n_times_sampled_) {
        are_times_sampled_ &= times_sampled[i] >= 0;
        if (max_times_sampled_ == 0) continue;
        are_times_sampled_ &= times_sampled[i] <= max_times_sampled_;
        const bool is_at_most = times_sampled[i] == max_times_sampled_;
        // A row that became too old before it was live is marked as used up, too.
        are_times_sampled_ &= is_used_up_[n_times_sampled_] ? is_at_most || max_age_ >= 0 : !is_at_most;
    }
}

// Ranks that were never taken have no weights and are due. Otherwise every bucket has a weight, even an empty one.
void CheckpointState::check_ranks(const CheckpointRanks& ranks) const {
    const auto is_zero = [](float weight) { return weight == 0.0f; };
    const auto n_zero = std::count_if(std::begin(ranks.weights), std::end(ranks.weights), is_zero);
    const bool are_taken = n_zero == 0;
    const bool were_never_taken = n_zero == n_rank_buckets && ranks.n_changes >= ranks_never_taken;
    if (!is_scale(ranks.tree_scale) || !(are_taken || were_never_taken)) reader_.refuse("its ranks cannot be");
    const double factor = power_of_two(ranks.tree_scale);
    unsigned __int128 sum = 0;
    bool has_too_large = false;
    for (size_t bucket = 0; bucket < bucket_counts_.size(); ++bucket) {
        if (bucket_counts_[bucket] == 0) continue;
        const float weight = ranks.weights[bucket];
        has_too_large |= is_too_large(weight, factor);
        sum += static_cast<unsigned __int128>(bucket_counts_[bucket]) * limited_mass_of(weight, factor);
    }
    if (has_too_large || sum >= total_mass_limit) reader_.refuse("its ranks cannot be");
}

}  // namespace per

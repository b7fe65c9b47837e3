#include "file/saved_state.h"

#include <limits>

namespace per {
namespace {

// No counter of a buffer comes near these, from which each can count on for as long again. Ids count, too.
constexpr int64_t most = int64_t{1} << 62;
constexpr int64_t most_changes = ranks_never_taken + (int64_t{1} << 61);

// Calls visit(counter) for those that a file of a format keeps, in its order.
template <class Counters, class Visit>
void for_each_counter(Counters& counters, uint32_t version, Visit visit) {
    visit(counters.added);
    visit(counters.dropped);
    visit(counters.episodes);
    visit(counters.cuts);
    visit(counters.updates);
    visit(counters.stale_updates);
    visit(counters.rejected_updates);
    if (version < 2) return;
    visit(counters.suspected_resets);
}

void write_figures(CheckpointWriter& writer, const BatchFigures& figures) {
    writer.number(figures.size);
    writer.number(figures.max_age);
    writer.number(figures.mean_age);
    writer.number(figures.effective_size);
    writer.number(figures.duplicates);
}

BatchFigures read_figures(CheckpointReader& reader) {
    BatchFigures figures;
    figures.size = reader.number<int64_t>(0, most);
    figures.max_age = reader.number<int64_t>(0, most);
    figures.mean_age = reader.number<double>(0.0, static_cast<double>(figures.max_age));
    figures.effective_size = reader.number<double>(0.0, std::numeric_limits<double>::max());
    figures.duplicates = reader.number<double>(0.0, 1.0);
    return figures;
}

bool can_be(const Lane& lane, const WindowRules& rules) {
    const int64_t most_rows = most / rules.ring.n_envs;
    if (!(0 <= lane.first && lane.first <= lane.tail && lane.tail <= lane.head && lane.head <= most_rows)) return false;
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
    if (!can_be(lane, rules)) reader.refuse("a lane in it cannot be");
    return lane;
}

}  // namespace

void write_numbers(CheckpointWriter& writer, const SavedNumbers& numbers, const std::vector<Lane>& lanes) {
    writer.number(numbers.beta_step);
    writer.number(numbers.batches);
    for_each_counter(numbers.counters, checkpoint_version, [&](int64_t counter) { writer.number(counter); });
    writer.number(numbers.largest_priority);
    writer.number(numbers.tree_scale);
    writer.number(numbers.tree_rescales_below);
    write_figures(writer, numbers.figures);
    for (const Lane& lane : lanes) {
        writer.number(lane.head);
        writer.number(lane.first);
        writer.number(lane.tail);
        writer.number(lane.episode);
        writer.number(static_cast<uint8_t>(lane.state));
    }
    writer.seal();
}

SavedNumbers read_numbers(CheckpointReader& reader, const WindowRules& rules, std::vector<Lane>& lanes_out) {
    SavedNumbers numbers;
    numbers.beta_step = reader.number<int64_t>(0, most);
    numbers.batches = reader.number<int64_t>(0, most);
    for_each_counter(numbers.counters, reader.version(),
                     [&](int64_t& counter) { counter = reader.number<int64_t>(0, most); });
    numbers.largest_priority = reader.number<float>(1.0f, std::numeric_limits<float>::max());
    numbers.tree_scale = reader.number<int32_t>();
    numbers.tree_rescales_below = reader.number<uint64_t>();
    numbers.figures = read_figures(reader);
    for (Lane& lane : lanes_out) lane = read_lane(reader, rules);
    reader.check_seal();
    return numbers;
}

void write_ranks(CheckpointWriter& writer, const SavedRanks* ranks) {
    writer.number(static_cast<uint8_t>(ranks != nullptr));
    if (ranks != nullptr) {
        writer.number(ranks->n_changes);
        writer.number(ranks->tree_scale);
        writer.number(ranks->tree_rescales_below);
        writer.bytes(ranks->weights, sizeof ranks->weights);
    }
    writer.seal();
}

bool read_ranks(CheckpointReader& reader, SavedRanks& ranks_out) {
    const bool has_ranks = reader.number<uint8_t>(0, 1) == 1;
    if (has_ranks) {
        ranks_out.n_changes = reader.number<int64_t>(0, most_changes);
        ranks_out.tree_scale = reader.number<int32_t>();
        ranks_out.tree_rescales_below = reader.number<uint64_t>();
        for (float& weight : ranks_out.weights) weight = reader.number<float>(0.0f, 1.0f);
    }
    reader.check_seal();
    return has_ranks;
}

std::vector<SlotArray> slot_arrays(const Fields& fields, const WindowRules& rules) {
    using Kind = SlotArray::Kind;
    std::vector<SlotArray> arrays = {
        {Kind::flags, -1, sizeof(uint8_t)}, {Kind::rewards, -1, sizeof(float)}, {Kind::priorities, -1, sizeof(float)}};
    for (int64_t i = 0; i < fields.count(); ++i) {
        arrays.push_back({Kind::field, i, fields[i].bytes});
        if (rules.store_next_observation && fields[i].is_observation())
            arrays.push_back({Kind::next_field, i, fields[i].bytes});
    }
    return arrays;
}

}  // namespace per

#include "cpu/replay/checkpoint.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <vector>

#include "cpu/memory/column.h"
#include "cpu/memory/moves.h"
#include "cpu/rows/kept_rows.h"
#include "file/checkpoint_state.h"
#include "threads/handle_lock.h"

namespace per::cpu {
namespace {

RowColumn<std::byte> column_of(const ReplayState& state, const SlotArray& array) {
    switch (array.kind) {
        case SlotArray::Kind::flags:
            return state.rows.flags().as_bytes();
        case SlotArray::Kind::versions:
            return state.rows.versions().as_bytes();
        case SlotArray::Kind::rewards:
            return state.rows.rewards().as_bytes();
        case SlotArray::Kind::priorities:
            return state.priorities.by_slot().as_bytes();
        case SlotArray::Kind::times_sampled:
            return state.rows.times_sampled().as_bytes();
        case SlotArray::Kind::field:
            return state.rows.field(array.field);
        case SlotArray::Kind::next_field:
            return state.rows.next_field(array.field);
    }
    __builtin_unreachable();
}

// Flags are also stored side by side, 64 of them in a line of memory. There, reading or writing them all takes a 64th
// of the time.
RowColumn<std::byte> column_side_by_side(const ReplayState& state, const SlotArray& array) {
    if (array.kind != SlotArray::Kind::flags) return column_of(state, array);
    return state.rows.flags_side_by_side().as_bytes();
}

// A background save holds the lock for a part of this size.
constexpr int64_t small_part_bytes = int64_t{1} << 18;
// A save in turns takes each record once, and writes all of its values before it takes the next part of the records.
// Parts smaller than this would make writes of a few KiB each.
constexpr int64_t part_of_turns_bytes = int64_t{1} << 20;
// A load in turns reads parts of this size, which stay in the second-level cache until all of their values are read.
constexpr int64_t turn_of_load_bytes = int64_t{1} << 18;
// A load of many lanes that are shorter than this takes no turns: with 8192 lanes of 12 KiB that takes 0.86 of the
// time.
constexpr int64_t least_turn_bytes = int64_t{1} << 15;
constexpr int64_t many_lanes = 64;

// Calls visit(first slot, n) for n adjacent slots of `bytes` each, in parts of at most part_bytes.
template <class Visit>
void for_each_part(int64_t first, int64_t n, int64_t bytes, int64_t part_bytes, const Visit& visit) {
    const int64_t max_slots = std::max<int64_t>(1, part_bytes / bytes);
    for (int64_t i = 0; i < n; i += max_slots) visit(first + i, std::min(max_slots, n - i));
}

// The same for all slots that are saved.
template <class Visit>
void for_each_part(const WindowRules& rules, const std::vector<Lane>& lanes, int64_t bytes, int64_t part_bytes,
                   const Visit& visit) {
    for_each_saved_part(rules, lanes,
                        [&](int64_t first, int64_t n) { for_each_part(first, n, bytes, part_bytes, visit); });
}

// Finding a packed frame and its key takes about as long as copying this many bytes.
constexpr int64_t least_packed_bytes = 512;

// Bytes of an element, or the mean of rows of any length.
int64_t mean_bytes(const SlotArray& array) {
    return std::max<int64_t>(array.is_ragged() ? array.mean_size : array.bytes, 1);
}

// Bytes of memory, or of the disk, that are read for a value of a column: of rows in a file, the whole record.
int64_t bytes_of_slot(const ReplayState& state, const Column<const std::byte>& column, int64_t bytes) {
    return state.rows.are_stored() ? column.stride : bytes;
}

bool is_side_by_side(const ReplayState& state, const Column<const std::byte>& column, int64_t bytes) {
    return column.stride == bytes && state.rows.heap_of(column.first) == nullptr;
}

// Returns a buffer for values of any column. It only grows: a vector that shrinks and grows again clears the new part
// each time.
std::byte* room(std::vector<std::byte>& bytes, size_t size) {
    if (bytes.size() < size) bytes.resize(size);
    return bytes.data();
}

void read_values(const ReplayState& state, const Column<const std::byte>& column, int64_t bytes, int64_t slot,
                 int64_t n, std::byte* out) {
    const auto* const packed = dynamic_cast<const PackedFrames*>(state.rows.heap_of(column.first));
    if (packed == nullptr) return copy_frames(out, bytes, column.at(slot), column.stride, n, bytes);
    for (int64_t i = 0; i < n; ++i) packed->read(slot + i, out + i * bytes);
}

// Writes contiguous values to rows of a buffer that nobody reads yet.
void write_values(ReplayState& state, const RowColumn<std::byte>& column, int64_t bytes, int64_t slot, int64_t n,
                  const std::byte* values) {
    auto* const packed = dynamic_cast<PackedFrames*>(state.rows.heap_of(column.first));
    if (packed == nullptr) return copy_frames(column.to_write(slot, n).first, column.stride, values, bytes, n, bytes);
    for (int64_t i = 0; i < n; ++i) packed->prepare(state.ring().env_of_slot(slot), slot + i, values + i * bytes);
    packed->put_prepared();
}

// Prefetches a part of a column from the disk, and the part after it.
void will_need(const ReplayState& state, const Column<const std::byte>& column, int64_t slot, int64_t n) {
    if (state.rows.place_in_record(column.first) >= 0) state.rows.will_need(slot, 2 * n);
}

std::optional<CheckpointRanks> known_ranks(PriorityStore& priorities) {
    RankTree* const ranks = priorities.known_ranks();
    if (ranks == nullptr) return {};
    if (ranks->are_due()) return due_ranks(priorities.always_has_ranks());
    const RankTree::State state = ranks->state();
    CheckpointRanks known = {state.n_changes, state.tree_scale, state.tree_rescales_below, {}};
    std::copy_n(ranks->weights(), n_rank_buckets, known.weights);
    return known;
}

CheckpointMoment moment_of(ReplayState& state) {
    const PriorityScale scale = state.priorities.scale();
    return {{state.beta_step(), state.batches, state.counters, scale.largest_ever, scale.tree_scale,
             scale.tree_rescales_below, state.last_batch.figures(), state.version, scale.reference},
            state.lanes,
            known_ranks(state.priorities)};
}

RaggedRows* ragged_of(const ReplayState& state, const SlotArray& array) {
    if (!array.is_ragged()) return nullptr;
    const bool is_next = array.kind == SlotArray::Kind::next_field;
    return is_next ? state.rows.next_ragged(array.field) : state.rows.ragged(array.field);
}

std::vector<SlotArray> arrays_of(const ReplayState& state) {
    return slot_arrays(state.fields, state.rules, state.rows.has_times_sampled(), state.rows.has_versions());
}

// The same with the sizes of rows of any length.
std::vector<SlotArray> arrays_to_write(const ReplayState& state) {
    std::vector<SlotArray> arrays = arrays_of(state);
    for (SlotArray& array : arrays) {
        const RaggedRows* const ragged = ragged_of(state, array);
        if (ragged == nullptr) continue;
        int64_t sum = 0;
        for_each_saved_part(state.rules, state.lanes, [&](int64_t first, int64_t n) {
            for (int64_t slot = first; slot < first + n; ++slot) {
                array.sizes.push_back(static_cast<uint32_t>(sizeof(RaggedLength) + (*ragged)[slot].size()));
                sum += array.sizes.back();
            }
        });
        array.mean_size = sum / std::max<int64_t>(1, std::ssize(array.sizes));
    }
    return arrays;
}

std::vector<Column<const std::byte>> columns_of(const ReplayState& state, const std::vector<SlotArray>& arrays) {
    std::vector<Column<const std::byte>> columns;
    for (const SlotArray& array : arrays) columns.push_back(column_of(state, array));
    return columns;
}

// Rows stay in place until write() reads them. If a row is about to change before that, KeptRows keeps a copy of it.
class Snapshot final : public ReplaySnapshot {
 public:
    explicit Snapshot(ReplayState& state)
        : state_(state),
          rules_(state.rules),
          moment_(moment_of(state)),
          arrays_(arrays_to_write(state)),
          columns_(columns_of(state, arrays_)),
          kept_(std::make_unique<KeptRows>(state.rows, rules_, moment_.lanes, columns_)) {
        state.rows.set_listener(kept_.get());
    }
    ~Snapshot() override {
        if (kept_ != nullptr) state_.rows.set_listener(nullptr);
    }

    int64_t n_bytes() const override { return bytes_of_arrays(arrays_, rules_, moment_.lanes); }

    void write(CheckpointWriter& writer, HandleLock& lock, std::atomic<int64_t>* n_written_out) override {
        struct End {
            Snapshot& snapshot;
            HandleLock& lock;
            ~End() {
                const auto locked = [&](const auto& call) {
                    const std::lock_guard guard(lock);
                    return call();
                };
                locked([&] { return snapshot.state_.rows.set_listener(nullptr); });
                while (locked([&] { return snapshot.kept_->release_some(); })) {
                }
                snapshot.kept_ = nullptr;  // frees its memory while calls on the buffer go on
            }
        };
        const End at_end = {*this, lock};
        std::vector<std::byte> side_by_side;
        write_state(writer, moment_, rules_, arrays_, [&](std::size_t i) {
            const int64_t bytes = arrays_[i].bytes;
            const auto write_part = [&](int64_t slot, int64_t n) {
                side_by_side.resize(static_cast<size_t>(n * bytes));
                {
                    const std::lock_guard guard(lock);
                    will_need(state_, columns_[i], slot, n);
                    if (arrays_[i].is_ragged())
                        kept_->append_ragged(i, slot, n, side_by_side);
                    else
                        kept_->read(i, bytes, slot, n, side_by_side.data());
                }
                writer.bytes(side_by_side.data(), side_by_side.size());
                *n_written_out += std::ssize(side_by_side);
            };
            // A value in a record counts as the whole record, since its lines are read with it.
            const bool are_in_heap = state_.rows.heap_of(columns_[i].first) != nullptr;
            const int64_t read_bytes =
                std::max(are_in_heap ? least_packed_bytes : columns_[i].stride, mean_bytes(arrays_[i]));
            for_each_part(rules_, moment_.lanes, read_bytes, small_part_bytes, write_part);
        });
    }

 private:
    ReplayState& state_;
    const WindowRules rules_;
    const CheckpointMoment moment_;
    const std::vector<SlotArray> arrays_;
    const std::vector<Column<const std::byte>> columns_;
    std::unique_ptr<KeptRows> kept_;
};

// Makes the checkpoint's own file of rows the file of the state, if it fits. Returns true if it does: the rows are then
// not read.
bool adopts_rows(const CheckpointReader& reader, ReplayState& state) {
    const FolderReader* const folder = reader.folder_with_rows();
    if (folder == nullptr || !state.rows.are_stored()) return false;
    std::vector<uint64_t> places;
    for (const SlotArray& array : arrays_of(state))
        if (const int64_t place = state.rows.place_in_record(column_of(state, array).first); place >= 0)
            places.push_back(static_cast<uint64_t>(place));
    const RowTable& table = *folder->rows();
    return table.arrays == places && table.record_bytes == static_cast<uint64_t>(state.rows.records().stride) &&
           state.rows.file()->adopt(folder->folder(), table);
}

// Puts the arrays of a checkpoint into a buffer that nobody reads yet.
class RestoredArrays {
 public:
    // has_rows: the records are present already (see adopts_rows()).
    RestoredArrays(CheckpointReader& reader, CheckpointState& saved, ReplayState& state, bool has_rows)
        : reader_(reader), saved_(saved), state_(state), has_rows_(has_rows), arrays_(arrays_of(state)) {}

    void read_all() {
        read(arrays_[0]);  // flags, which decide what the others may hold
        if (reader_.takes_turns() && has_long_turns()) return read_in_turns();
        for (size_t i = 1; i < arrays_.size(); ++i) read(arrays_[i]);
        saved_.for_each_part([this](int64_t first, int64_t n) { state_.rows.spread_flags(first, n); });
    }

 private:
    void read(const SlotArray& array) {
        saved_.begin(array);
        if (has_rows_ && state_.rows.place_in_record(column_of(state_, array).first) >= 0) {
            if (!saved_.is_in_rows()) reader_.refuse("it is not in the file of the rows");
        } else {
            saved_.for_each_part([&](int64_t first, int64_t n) { read_slots(array, first, n); });
        }
        saved_.end(array);
    }

    // In a load in turns each part of an array is a system call. Many short lanes would make too many of them.
    bool has_long_turns() const {
        const int64_t n_envs = state_.ring().n_envs;
        const int64_t n_rows = n_saved_rows(state_.lanes, state_.rules) / n_envs;
        return n_envs < many_lanes || n_rows >= least_turn_bytes / state_.rows.records().stride;
    }

    // Writes each record once, and not once for each of its values.
    void read_in_turns() {
        for (size_t i = 1; i < arrays_.size(); ++i) {
            saved_.begin(arrays_[i]);
            reader_.put_off();
        }
        const auto take_turn = [this](int64_t first, int64_t n) {
            state_.rows.spread_flags(first, n);
            for (size_t i = 1; i < arrays_.size(); ++i) {
                reader_.take_up(i - 1);
                read_slots(arrays_[i], first, n);
            }
        };
        saved_.for_each_part([&](int64_t first, int64_t n) {
            for_each_part(first, n, state_.rows.records().stride, turn_of_load_bytes, take_turn);
        });
        for (size_t i = 1; i < arrays_.size(); ++i) {
            reader_.take_up(i - 1);
            saved_.end(arrays_[i]);
        }
    }

    void read_ragged(const SlotArray& array, RaggedRows& ragged, int64_t first, int64_t n) {
        const int64_t most = state_.fields[array.field].max_length;
        for (int64_t slot = first; slot < first + n; ++slot) {
            const auto length = reader_.number<RaggedLength>(0, static_cast<RaggedLength>(most));
            const int64_t bytes = length * ragged.value_bytes();
            reader_.require(static_cast<uint64_t>(bytes));  // before memory for them is allocated
            saved_.read(array, ragged.prepare(slot, bytes), static_cast<size_t>(bytes));
        }
        ragged.put_prepared();
    }

    void read_slots(const SlotArray& array, int64_t first, int64_t n_slots) {
        if (RaggedRows* const ragged = ragged_of(state_, array)) return read_ragged(array, *ragged, first, n_slots);
        const RowColumn<std::byte> column = column_side_by_side(state_, array);
        const int64_t slot_bytes = bytes_of_slot(state_, column, array.bytes);
        for_each_part(first, n_slots, slot_bytes, small_part_bytes, [&](int64_t slot, int64_t n) {
            const size_t size = static_cast<size_t>(n * array.bytes);
            will_need(state_, column, slot, n);
            if (is_side_by_side(state_, column, array.bytes)) {
                saved_.read(array, column.to_write(slot, n).first, size);
            } else {
                std::byte* const values = room(side_by_side_, size);
                saved_.read(array, values, size);
                write_values(state_, column, array.bytes, slot, n, values);
            }
            if (array.kind == SlotArray::Kind::priorities) state_.priorities.restore_leaves(slot, n, saved_.leaves());
        });
    }

    CheckpointReader& reader_;
    CheckpointState& saved_;
    ReplayState& state_;
    const bool has_rows_;
    const std::vector<SlotArray> arrays_;
    std::vector<std::byte> side_by_side_;
};

}  // namespace

void save_state(CheckpointWriter& writer, ReplayState& state) {
    const WindowRules& rules = state.rules;
    const CheckpointMoment moment = moment_of(state);
    const std::vector<SlotArray> arrays = arrays_to_write(state);
    std::vector<std::byte> side_by_side;
    // Calls write(bytes, size) for the elements of slots first .. first + n_slots - 1.
    const auto write_slots = [&](const SlotArray& array, int64_t first, int64_t n_slots, const auto& write) {
        const Column<const std::byte> column = column_side_by_side(state, array);
        const int64_t part_bytes = bytes_of_slot(state, column, mean_bytes(array));
        for_each_part(first, n_slots, part_bytes, small_part_bytes, [&](int64_t slot, int64_t n) {
            if (const RaggedRows* const ragged = ragged_of(state, array)) {
                side_by_side.clear();
                for (int64_t i = slot; i < slot + n; ++i) append_row((*ragged)[i], ragged->value_bytes(), side_by_side);
                return write(side_by_side.data(), side_by_side.size());
            }
            const size_t size = static_cast<size_t>(n * array.bytes);
            will_need(state, column, slot, n);
            if (is_side_by_side(state, column, array.bytes)) return write(column.at(slot), size);
            std::byte* const values = room(side_by_side, size);
            read_values(state, column, array.bytes, slot, n, values);
            write(values, size);
        });
    };
    const auto write_array = [&](const SlotArray& array) {
        for_each_saved_part(rules, state.lanes, [&](int64_t first, int64_t n) {
            write_slots(array, first, n, [&](const void* data, size_t size) { writer.bytes(data, size); });
        });
    };
    if (writer.leaves_rows()) {
        // Records stay in the file of the rows. Only the arrays that are not in it are written.
        write_numbers(writer, moment.numbers, moment.lanes);
        for (const SlotArray& array : arrays) {
            const int64_t place = state.rows.place_in_record(column_of(state, array).first);
            if (place >= 0) {
                const int64_t size = n_saved_rows(moment.lanes, rules) * array.bytes;
                writer.leave_in_rows(array.name, static_cast<uint64_t>(size), static_cast<uint64_t>(place),
                                     static_cast<uint64_t>(state.rows.records().stride));
                continue;
            }
            begin_array(writer, array, moment.lanes, rules);
            write_array(array);
            writer.end();
        }
        return write_ranks(writer, moment.ranks ? &*moment.ranks : nullptr);
    }
    if (!writer.takes_turns())
        return write_state(writer, moment, rules, arrays, [&](std::size_t i) { write_array(arrays[i]); });
    // Each record is read once, and not once for each of its values.
    write_numbers(writer, moment.numbers, moment.lanes);
    for (const SlotArray& array : arrays) {
        begin_array(writer, array, moment.lanes, rules);
        writer.put_off(static_cast<uint64_t>(bytes_of_array(array, rules, moment.lanes)));
    }
    const auto write_turns = [&](int64_t first, int64_t n) {
        for (size_t i = 0; i < arrays.size(); ++i)
            write_slots(arrays[i], first, n, [&](const void* data, size_t size) { writer.take_turn(i, data, size); });
    };
    for_each_part(rules, moment.lanes, state.rows.records().stride, part_of_turns_bytes, write_turns);
    writer.end_turns();
    write_ranks(writer, moment.ranks ? &*moment.ranks : nullptr);
}

std::unique_ptr<ReplaySnapshot> snapshot_of(ReplayState& state) {
    return std::make_unique<Snapshot>(state);
}

void restore_state(CheckpointReader& reader, ReplayState& state) {
    PriorityStore& priorities = state.priorities;
    CheckpointState saved(reader,
                          {state.rules, priorities.alpha(), state.max_times_sampled, priorities.freshness(),
                           state.rows.has_versions(), state.max_age},
                          priorities.tree().kernels().power.raise);
    const CheckpointNumbers& numbers = saved.numbers();
    state.lanes = saved.lanes();
    state.beta.step = numbers.beta_step;
    state.batches = numbers.batches;
    state.counters = numbers.counters;
    state.last_batch = LastBatch(numbers.figures);
    state.version = numbers.version;
    const bool has_rows = adopts_rows(reader, state);
    if (!has_rows && state.rows.are_stored()) state.rows.file()->create(false);
    saved.for_each_part([&](int64_t first, int64_t n) {
        if (!has_rows)
            state.rows.reserve(first, n);
        else if (!state.rows.holds(first, n))
            reader.refuse("rows are missing in its file");
    });
    RestoredArrays(reader, saved, state, has_rows).read_all();
    const std::optional<CheckpointRanks> ranks = saved.read_ranks(priorities.known_ranks() != nullptr);
    for (const SlotRange& live : saved.live_slots()) priorities.restore_live(live.first, live.end - live.first);
    priorities.restore({numbers.largest_priority, numbers.tree_scale, numbers.tree_rescales_below, numbers.reference});
    if (ranks)
        priorities.restore_ranks({ranks->n_changes, ranks->tree_scale, ranks->tree_rescales_below}, ranks->weights);
}

}  // namespace per::cpu

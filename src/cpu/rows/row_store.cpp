#include "cpu/rows/row_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "cpu/memory/moves.h"
#include "cpu/memory/prefetch.h"

namespace per::cpu {
namespace {

constexpr size_t record_part = 0;                       // index of the records in parts()
constexpr int64_t unit = alignof(float);                // alignment of records and of numbers in them
constexpr int64_t max_record_bytes = int64_t{1} << 62;  // can be rounded up or padded without overflow

int64_t round_up(int64_t bytes, int64_t to) {
    return (bytes + to - 1) / to * to;
}

// The number of cache lines that are touched if `reach` bytes are read from the beginning of each of line_bytes / unit
// records. After at most so many records, the places of records within lines repeat.
int64_t touched_lines(int64_t stride, int64_t reach) {
    int64_t lines = 0;
    for (int64_t slot = 0; slot < line_bytes / unit; ++slot)
        lines += (slot * stride % line_bytes + reach - 1) / line_bytes + 1;
    return lines;
}

// The distance between records of `bytes`, if a transition also reads the first `followers` bytes of the next record.
// Chooses the distance at which transitions touch the fewest lines, with at most a sixteenth of padding.
int64_t stride_of_records(int64_t bytes, int64_t followers) {
    int64_t best = round_up(bytes, unit);
    for (int64_t stride = best; stride <= bytes + bytes / 16; stride += unit) {
        const auto lines = [&](int64_t s) { return touched_lines(s, followers > 0 ? s + followers : bytes); };
        if (lines(stride) < lines(best)) best = stride;
    }
    return best;
}

// True if none of eight flags has one of the bits.
bool eight_lack(const uint8_t* flags, uint8_t bits) {
    uint64_t word;
    std::memcpy(&word, flags, sizeof word);
    return (word & bits * uint64_t{0x0101010101010101}) == 0;
}

}  // namespace

// The places of values in a record, in the order in which they are taken.
struct RowStore::RecordLayout {
    struct Placed {
        RowColumn<std::byte>& column;
        int64_t place;
    };
    int64_t bytes = 0;
    std::vector<Placed> columns;  // to be set once there are records

    int64_t take(int64_t n) {
        if (n > max_record_bytes - bytes) throw_out_of_memory(static_cast<uint64_t>(n));
        return std::exchange(bytes, bytes + n);
    }
};

template <class Heap>
Heap* RowStore::add_heap(RowColumn<std::byte>& column, std::unique_ptr<Heap> heap) {
    Heap* const added = heap.get();
    heaps_.push_back(std::move(heap));
    column = added->by_slot().as_bytes();
    parts_.push_back(column);
    return added;
}

// Puts the frames of a field into a heap, a separate array, or the records.
void RowStore::place(FieldColumn& placed, const Field& field, const per_replay_options& options, RecordLayout& layout) {
    RowColumn<std::byte>& column = placed.column;
    if (field.is_ragged()) {
        placed.ragged = add_heap(column, std::make_unique<RaggedRows>(field, place_of_heap()));
    } else if (field.is_compressed()) {
        placed.packed = add_heap(column, std::make_unique<PackedFrames>(field, options.n_envs, place_of_heap()));
    } else if (field.bytes >= large_frame_bytes && options.memory.storage == nullptr) {
        array_bytes(capacity_, field.bytes);  // throws before the rounding could overflow
        MemorySource source(options.memory, PER_MEMORY_ROWS);
        source.takes_pages = true;
        column = column_of_its_own<std::byte>(round_up(field.bytes, line_bytes), source);
    } else {
        layout.columns.push_back({column, layout.take(field.bytes)});
    }
}

RowStore::RowStore(const per_replay_options& options, const Fields& fields)
    : capacity_(options.capacity), heap_limit_(options.memory.max_heap_bytes) {
    const MemorySource source(options.memory, PER_MEMORY_ROWS);
    const size_t n_fields = static_cast<size_t>(fields.count());
    fields_.resize(n_fields);
    next_fields_.resize(n_fields);

    // Records are the first part. They are allocated once all columns have a place in them.
    const bool is_stored = options.memory.storage != nullptr;
    parts_.emplace_back();
    RecordLayout layout;
    const auto place_all = [&](std::vector<FieldColumn>& columns, bool are_observations) {
        for (size_t i = 0; i < n_fields; ++i)
            if (const Field& field = fields[static_cast<int64_t>(i)]; field.is_observation() == are_observations)
                place(columns[i], field, options, layout);
    };
    const bool stores_next = options.store_next_observation != 0;
    place_all(fields_, true);
    const int64_t observation_bytes = layout.bytes;
    if (stores_next) place_all(next_fields_, true);
    layout.bytes = round_up(layout.bytes, unit);
    const int64_t place_of_reward = layout.take(sizeof(float));
    // With PER_MAX_NOW each change searches neighbouring priorities for the largest, so they lie side by side.
    const bool are_priorities_apart = is_stored || options.max_priority == PER_MAX_NOW;
    const int64_t place_of_priority = are_priorities_apart ? -1 : layout.take(sizeof(float));
    const bool counts_draws = options.keep_times_sampled != 0;
    const int64_t place_of_count = counts_draws && !is_stored ? layout.take(sizeof(int32_t)) : -1;
    const bool has_versions = options.freshness.age == PER_AGE_VERSIONS;
    const int64_t place_of_version = has_versions && !is_stored ? layout.take(sizeof(int32_t)) : -1;
    place_all(fields_, false);
    const int64_t place_of_flags = is_stored ? -1 : layout.take(sizeof(uint8_t));

    if (is_stored) {
        records_.stride = round_up(layout.bytes, unit);
        file_.emplace(options.memory.storage, array_bytes(capacity_, records_.stride));
        records_.first = file_->data();
    } else {
        records_.stride = stride_of_records(layout.bytes, stores_next ? 0 : observation_bytes);
        records_.first = allocate(records_.stride, source);
    }
    parts_[record_part] = records_;
    for (const RecordLayout::Placed& placed : layout.columns)
        placed.column = column_of_records<std::byte>(placed.place);
    rewards_ = column_of_records<float>(place_of_reward);
    const auto column_of_counts = [&](int64_t place) {
        return is_stored ? column_of_its_own<int32_t>(sizeof(int32_t), source) : column_of_records<int32_t>(place);
    };
    if (counts_draws) times_sampled_ = column_of_counts(place_of_count);
    if (has_versions) versions_ = column_of_counts(place_of_version);
    priorities_ = are_priorities_apart
                      ? column_of_its_own<float>(sizeof(float), {options.memory, PER_MEMORY_PRIORITIES})
                      : column_of_records<float>(place_of_priority);
    if (is_stored) {
        flags_ = flags_side_by_side_ = column_of_its_own<uint8_t>(sizeof(uint8_t), source);
    } else {
        // An array with a copy of the flags of all records. Only an array in parts_ is preserved for a background save
        // when it changes. This one need not be: it changes together with the records, and saves read the flags there.
        flags_side_by_side_ = {{allocate(sizeof(uint8_t), source), sizeof(uint8_t)}, record_part, listener_};
        flags_ = column_of_records<uint8_t>(place_of_flags);
    }
}

template <class Value>
RowColumn<Value> RowStore::column_of_its_own(int64_t bytes_of_slot, const MemorySource& source) {
    const Column<Value> column = {allocate(bytes_of_slot, source), bytes_of_slot};
    parts_.push_back(column.as_bytes());
    return {column, parts_.size() - 1, listener_};
}

template <class Value>
RowColumn<Value> RowStore::column_of_records(int64_t place) const {
    return {{records_.first + place, records_.stride}, record_part, listener_};
}

void RowStore::prefetch_to_write(int64_t first, int64_t n) const noexcept {
    constexpr int64_t most_bytes = int64_t{1} << 15;
    if (are_stored()) return;
    const std::byte* const begin = records_.at(first);
    for (int64_t at = 0; at < std::min(n * records_.stride, most_bytes); at += line_bytes)
        cpu::prefetch_to_write(begin + at);
}

void RowStore::spread_flags(int64_t first, int64_t n) {
    const Column<uint8_t> flags = flags_.to_write(first, n);
    copy_frames(flags.first, flags.stride, flags_side_by_side_.from(first).first, 1, n, 1);
}

// Allocates an array with this many bytes for each slot.
std::byte* RowStore::allocate(int64_t bytes_of_slot, const MemorySource& source) {
    return memory_.emplace_back(array_bytes(capacity_, bytes_of_slot), source).data();
}

MemoryUse RowStore::memory_use() const {
    MemoryUse use;
    for (const Memory& memory : memory_) use += memory.use();
    for (const std::unique_ptr<FrameHeap>& heap : heaps_) use += heap->memory_use();
    return use;
}

FrameHeap* RowStore::heap_of(const std::byte* first) const {
    for (const std::unique_ptr<FrameHeap>& heap : heaps_)
        if (heap->by_slot().as_bytes().first == first) return heap.get();
    return nullptr;
}

void RowStore::put_prepared() noexcept {
    for (const std::unique_ptr<FrameHeap>& heap : heaps_) heap->put_prepared();
}

void RowStore::drop_prepared() noexcept {
    for (const std::unique_ptr<FrameHeap>& heap : heaps_) heap->drop_prepared();
}

FrameArrays RowStore::frame_arrays() const {
    FrameArrays arrays;
    const auto note = [&](const Column<const std::byte>& column, std::vector<FrameArray>& by_field) {
        by_field.emplace_back();
        if (column.first != nullptr && place_in_record(column.first) < 0 && heap_of(column.first) == nullptr)
            by_field.back() = {column.first, array_bytes(capacity_, column.stride)};
    };
    for (const FieldColumn& field : fields_) note(field.column, arrays.fields);
    for (const FieldColumn& field : next_fields_) note(field.column, arrays.next_fields);
    return arrays;
}

size_t RowStore::part_of(const std::byte* first) const {
    if (place_in_record(first) >= 0) return record_part;
    size_t part = 1;
    while (parts_[part].first != first) ++part;
    return part;
}

// Reads eight rows at a time, as episodes may be long.
int64_t front_without(const uint8_t* flags, int64_t n, uint8_t bits) {
    int64_t i = 0;
    while (i + 8 <= n && eight_lack(flags + i, bits)) i += 8;
    while (i < n && !(flags[i] & bits)) ++i;
    return i;
}

int64_t back_without(const uint8_t* flags, int64_t n, uint8_t bits) {
    int64_t i = 0;
    while (i + 8 <= n && eight_lack(flags + n - i - 8, bits)) i += 8;
    while (i < n && !(flags[n - 1 - i] & bits)) ++i;
    return i;
}

}  // namespace per::cpu

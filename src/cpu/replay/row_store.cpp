#include "cpu/replay/row_store.h"

#include <algorithm>
#include <cstring>

#include "cpu/memory/moves.h"
#include "cpu/memory/prefetch.h"
#include "cpu/replay/kept_rows.h"
#include "rows/error.h"

namespace per::cpu {
namespace {

constexpr int64_t unit = alignof(float);                // of records and of what must be aligned in them
constexpr int64_t max_record_bytes = int64_t{1} << 62;  // rounded up, or padded, it is no overflow

int64_t round_up(int64_t bytes, int64_t to) {
    return (bytes + to - 1) / to * to;
}

// How many lines some records touch, each with the `reach` bytes after its beginning. After so many records, or sooner,
// where they lie in lines repeats itself.
int64_t touched_lines(int64_t stride, int64_t reach) {
    int64_t lines = 0;
    for (int64_t slot = 0; slot < line_bytes / unit; ++slot)
        lines += (slot * stride % line_bytes + reach - 1) / line_bytes + 1;
    return lines;
}

// The distance of records of `bytes`, of which a transition also reads the first `followers` of the next one: that with
// which it touches the fewest lines, for at most a sixteenth of padding.
int64_t stride_of_records(int64_t bytes, int64_t followers) {
    int64_t best = round_up(bytes, unit);
    for (int64_t stride = best; stride <= bytes + bytes / 16; stride += unit) {
        const auto lines = [&](int64_t s) { return touched_lines(s, followers > 0 ? s + followers : bytes); };
        if (lines(stride) < lines(best)) best = stride;
    }
    return best;
}

// Whether none of eight flags has one of the bits.
bool eight_lack(const uint8_t* flags, uint8_t bits) {
    uint64_t word;
    std::memcpy(&word, flags, sizeof word);
    return (word & bits * uint64_t{0x0101010101010101}) == 0;
}

}  // namespace

RowStore::RowStore(const per_replay_options& options, const Fields& fields) : capacity_(options.capacity) {
    const MemorySource source(options, PER_MEMORY_ROWS);
    MemorySource source_of_frames = source;
    source_of_frames.takes_pages = true;
    const size_t n_fields = static_cast<size_t>(fields.count());
    fields_.resize(n_fields);
    next_fields_.resize(n_fields);

    // Columns of the record, with their places in it until the record has one.
    const bool is_stored = options.storage != nullptr;
    int64_t record_bytes = 0;
    const auto take = [&](auto& column, int64_t bytes) {
        column.stride = record_bytes;
        if (bytes > max_record_bytes - record_bytes) throw_out_of_memory(static_cast<uint64_t>(bytes));
        record_bytes += bytes;
    };
    std::vector<Column<std::byte>*> placed;
    const auto place = [&](Column<std::byte>& column, const Field& field) {
        const int64_t bytes = field.bytes;
        if (field.is_compressed()) {
            packed_.push_back(std::make_unique<PackedFrames>(field, capacity_, options.n_envs));
            column = packed_.back()->by_slot().as_bytes();
            parts_.push_back(column);
        } else if (bytes >= large_frame_bytes && !is_stored) {
            array_bytes(capacity_, bytes);  // throws before the rounding could overflow
            column.stride = round_up(bytes, line_bytes);
            column.first = allocate(column.stride, source_of_frames);
            parts_.push_back(column);
        } else {
            take(column, bytes);
            placed.push_back(&column);
        }
    };
    const bool stores_next = options.store_next_observation != 0;
    for (size_t i = 0; i < n_fields; ++i)
        if (fields[static_cast<int64_t>(i)].is_observation()) place(fields_[i], fields[static_cast<int64_t>(i)]);
    const int64_t observation_bytes = record_bytes;
    for (size_t i = 0; i < n_fields && stores_next; ++i)
        if (fields[static_cast<int64_t>(i)].is_observation()) place(next_fields_[i], fields[static_cast<int64_t>(i)]);
    record_bytes = round_up(record_bytes, unit);
    take(rewards_, sizeof(float));
    // The largest of neighbouring priorities is looked for at every change.
    const bool are_priorities_apart = is_stored || options.max_priority == PER_MAX_NOW;
    if (!are_priorities_apart) take(priorities_, sizeof(float));
    const bool counts_draws = options.keep_times_sampled != 0;
    if (counts_draws && !is_stored) take(times_sampled_, sizeof(int32_t));
    for (size_t i = 0; i < n_fields; ++i)
        if (!fields[static_cast<int64_t>(i)].is_observation()) place(fields_[i], fields[static_cast<int64_t>(i)]);
    if (!is_stored) take(flags_, sizeof(uint8_t));

    if (is_stored) {
        records_.stride = round_up(record_bytes, unit);
        file_.emplace(options.storage, array_bytes(capacity_, records_.stride), options.storage_preallocated != 0);
        records_.first = file_->data();
    } else {
        records_.stride = stride_of_records(record_bytes, stores_next ? 0 : observation_bytes);
        records_.first = allocate(records_.stride, source);
    }
    parts_.insert(parts_.begin(), records_);
    const auto settle = [&](auto& column) {
        column.first = records_.first + column.stride;
        column.stride = records_.stride;
    };
    for (Column<std::byte>* const column : placed) settle(*column);
    settle(rewards_);
    if (counts_draws && is_stored) {
        times_sampled_ = {allocate(sizeof(int32_t), source), sizeof(int32_t)};
        parts_.push_back(times_sampled_.as_bytes());
    } else if (counts_draws) {
        settle(times_sampled_);
    }
    if (are_priorities_apart) {
        priorities_ = {allocate(sizeof(float), {options, PER_MEMORY_PRIORITIES}), sizeof(float)};
        parts_.push_back(priorities_.as_bytes());
    } else {
        settle(priorities_);
    }
    for (const Column<std::byte>& column : fields_) packed_fields_.push_back(packed_of(column.first));
    for (const Column<std::byte>& column : next_fields_) packed_next_fields_.push_back(packed_of(column.first));
    flags_side_by_side_ = reinterpret_cast<uint8_t*>(allocate(sizeof(uint8_t), source));
    if (is_stored) {
        flags_ = {reinterpret_cast<std::byte*>(flags_side_by_side_), sizeof(uint8_t)};
        parts_.push_back(flags_.as_bytes());
    } else {
        settle(flags_);
    }
}

void RowStore::prefetch_to_write(int64_t first, int64_t n) const noexcept {
    constexpr int64_t most_bytes = int64_t{1} << 15;
    if (are_stored()) return;
    const std::byte* const begin = records_.at(first);
    for (int64_t at = 0; at < std::min(n * records_.stride, most_bytes); at += line_bytes)
        cpu::prefetch_to_write(begin + at);
}

void RowStore::spread_flags(int64_t first, int64_t n) {
    copy_frames(flags_.as_bytes().at(first), flags_.stride, reinterpret_cast<std::byte*>(flags_side_by_side_ + first),
                1, n, 1);
}

// An array of so many bytes for each slot.
std::byte* RowStore::allocate(int64_t bytes_of_slot, const MemorySource& source) {
    return memory_.emplace_back(array_bytes(capacity_, bytes_of_slot), source).data();
}

MemoryUse RowStore::memory_use() const {
    MemoryUse use;
    for (const Memory& memory : memory_) use += memory.use();
    for (const std::unique_ptr<PackedFrames>& packed : packed_) use += packed->memory_use();
    return use;
}

PackedFrames* RowStore::packed_of(const std::byte* first) const {
    for (const std::unique_ptr<PackedFrames>& packed : packed_)
        if (packed->by_slot().first == first) return packed.get();
    return nullptr;
}

void RowStore::put_prepared() noexcept {
    for (const std::unique_ptr<PackedFrames>& packed : packed_) packed->put_prepared();
}

void RowStore::drop_prepared() noexcept {
    for (const std::unique_ptr<PackedFrames>& packed : packed_) packed->drop_prepared();
}

FrameArrays RowStore::frame_arrays() const {
    FrameArrays arrays;
    const auto note = [&](const Column<std::byte>& column, std::vector<FrameArray>& by_field) {
        by_field.emplace_back();
        if (column.first != nullptr && place_in_record(column.first) < 0 && packed_of(column.first) == nullptr)
            by_field.back() = {column.first, array_bytes(capacity_, column.stride)};
    };
    for (const Column<std::byte>& column : fields_) note(column, arrays.fields);
    for (const Column<std::byte>& column : next_fields_) note(column, arrays.next_fields);
    return arrays;
}

size_t RowStore::part_of(const std::byte* first) const {
    if (place_in_record(first) >= 0) return 0;
    size_t part = 1;
    while (parts_[part].first != first) ++part;
    return part;
}

void RowStore::keep(int64_t first, int64_t n) {
    for (size_t part = 0; part < parts_.size(); ++part) kept_->keep(part, first, n);
}

void RowStore::keep(const std::byte* column, int64_t first, int64_t n) {
    kept_->keep(part_of(column), first, n);
}

// Episodes may be long: eight rows at a time.
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

// The rows of a replay buffer in host memory. Only this class knows the places of their values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "backend/frame_gather.h"
#include "cpu/memory/column.h"
#include "cpu/memory/memory.h"
#include "cpu/rows/frame_heap.h"
#include "cpu/rows/packed_frames.h"
#include "cpu/rows/ragged_rows.h"
#include "file/row_file.h"
#include "per.h"
#include "rows/fields.h"

namespace per::cpu {

// The values of a row form a record, and the record of the next slot follows it. If the next observation of a
// transition is that of the following row, both are thus one run of lines on one page. A record begins with the
// observations, which keeps this run short. Frames of at least large_frame_bytes have an array of their own, aligned to
// cache lines. Flags are stored in the record, for draws, and also side by side, for searches through whole episodes.
//
// Records may lie in a file. They then hold all fields and the reward, so that a transition is one run of bytes on the
// disk. Flags are only side by side, and priorities and counts of draws are in memory, too: draws, updates and cuts do
// not touch the disk for them.
//
// Frames of compressed fields and rows of any length lie elsewhere (frame_heap.h), and their column holds pointers to
// them.
//
// Ring assigns lanes and ids.
class RowStore {
 public:
    static constexpr int64_t large_frame_bytes = 1024;

    // The options must have been resolved.
    RowStore(const per_replay_options& options, const Fields& fields);

    // The frames of a field, or FrameHeap::by_slot() if packed() or ragged() is not NULL.
    const RowColumn<std::byte>& field(int64_t i) const { return fields_[static_cast<size_t>(i)].column; }
    PackedFrames* packed(int64_t i) const { return fields_[static_cast<size_t>(i)].packed; }
    RaggedRows* ragged(int64_t i) const { return fields_[static_cast<size_t>(i)].ragged; }
    // Next observations, with store_next_observation, by slot of the step before them.
    const RowColumn<std::byte>& next_field(int64_t i) const { return next_fields_[static_cast<size_t>(i)].column; }
    PackedFrames* next_packed(int64_t i) const { return next_fields_[static_cast<size_t>(i)].packed; }
    RaggedRows* next_ragged(int64_t i) const { return next_fields_[static_cast<size_t>(i)].ragged; }
    // The heap of the column with this first value; NULL: the column holds the frames.
    FrameHeap* heap_of(const std::byte* first) const;
    bool has_heaps() const { return !heaps_.empty(); }
    // FrameHeap::put_prepared() and drop_prepared() of all fields.
    void put_prepared() noexcept;
    void drop_prepared() noexcept;
    const RowColumn<float>& rewards() const { return rewards_; }
    // The priorities that rows were given. PriorityStore defines the value that stands for none.
    const RowColumn<float>& priorities() const { return priorities_; }
    // The number of draws of each row, with keep_times_sampled.
    bool has_times_sampled() const { return times_sampled_.first != nullptr; }
    const RowColumn<int32_t>& times_sampled() const { return times_sampled_; }
    // The version under which each row was added, with PER_AGE_VERSIONS.
    bool has_versions() const { return versions_.first != nullptr; }
    const RowColumn<int32_t>& versions() const { return versions_; }

    // RowFlags.
    const RowColumn<uint8_t>& flags() const { return flags_; }
    uint8_t flags(int64_t slot) const { return flags_[slot]; }
    const RowColumn<uint8_t>& flags_side_by_side() const { return flags_side_by_side_; }
    void set_flags(int64_t slot, uint8_t flags) {
        flags_.to_write(slot) = flags;
        flags_side_by_side_.to_write(slot) = flags;
    }
    // Copies flags that were written side by side into the records.
    void spread_flags(int64_t first, int64_t n);
    void set_flags(int64_t first, int64_t n, uint8_t flags) {
        std::fill_n(flags_side_by_side_.to_write(first, n).at(0), n, flags);
        const Column<uint8_t> column = flags_.to_write(first, n);
        for (int64_t i = 0; i < n; ++i) column[i] = flags;
    }

    Column<const std::byte> records() const { return records_; }
    // True if the records lie in a file.
    bool are_stored() const { return file_.has_value(); }
    // Must be called before records of slots first .. first + n - 1 are written. Throws Error with IO if the disk has
    // no room for them; nothing has changed then.
    void reserve(int64_t first, int64_t n) {
        if (are_stored()) file_->reserve(bytes_of_records(first), bytes_of_records(n));
    }
    // The file of the records; NULL if they lie in memory.
    RowFile* file() { return are_stored() ? &*file_ : nullptr; }
    // True if all records of these slots were ever reserved.
    bool holds(int64_t first, int64_t n) const { return file_->holds(bytes_of_records(first), bytes_of_records(n)); }
    // Prefetches records from the disk. May reach beyond the last slot.
    void will_need(int64_t first, int64_t n) const noexcept {
        if (are_stored()) file_->will_need(bytes_of_records(first), bytes_of_records(n));
    }
    // Prefetches records in memory that will be written, at most the first 32 KiB of them.
    void prefetch_to_write(int64_t first, int64_t n) const noexcept;
    // The offset of a column's values in their records, given the first value; -1: the column is a separate array.
    int64_t place_in_record(const std::byte* first) const {
        const uintptr_t place = reinterpret_cast<uintptr_t>(first) - reinterpret_cast<uintptr_t>(records_.first);
        return place < static_cast<uintptr_t>(records_.stride) ? static_cast<int64_t>(place) : -1;
    }

    // The columns of frames that are arrays of their own.
    FrameArrays frame_arrays() const;

    // The arrays that hold the values of rows: first the records, then each column with an array of its own.
    const std::vector<Column<const std::byte>>& parts() const { return parts_; }
    // The part that holds the column with this first value.
    size_t part_of(const std::byte* first) const;

    // Calls `listener` before each change from here on, with indices of parts(). NULL: none.
    void set_listener(ChangeListener* listener) { listener_ = listener; }

    MemoryUse memory_use() const;

 private:
    struct RecordLayout;

    struct FieldColumn {
        RowColumn<std::byte> column;
        PackedFrames* packed = nullptr;
        RaggedRows* ragged = nullptr;
    };

    void place(FieldColumn& column, const Field& field, const per_replay_options& options, RecordLayout& layout);
    FrameHeap::Place place_of_heap() { return {capacity_, parts_.size(), listener_, heap_limit_}; }
    template <class Heap>
    Heap* add_heap(RowColumn<std::byte>& column, std::unique_ptr<Heap> heap);
    std::byte* allocate(int64_t bytes_of_slot, const MemorySource& source);
    std::size_t bytes_of_records(int64_t n) const { return static_cast<std::size_t>(n * records_.stride); }
    template <class Value>
    RowColumn<Value> column_of_its_own(int64_t bytes_of_slot, const MemorySource& source);
    template <class Value>
    RowColumn<Value> column_of_records(int64_t place) const;

    const int64_t capacity_;
    std::optional<RowFile> file_;
    std::vector<Memory> memory_;
    HeapLimit heap_limit_;
    std::vector<std::unique_ptr<FrameHeap>> heaps_;
    std::vector<Column<const std::byte>> parts_;
    ChangeListener* listener_ = nullptr;
    Column<std::byte> records_;
    std::vector<FieldColumn> fields_;
    std::vector<FieldColumn> next_fields_;
    RowColumn<float> rewards_;
    RowColumn<float> priorities_;
    RowColumn<int32_t> times_sampled_;
    RowColumn<int32_t> versions_;
    RowColumn<uint8_t> flags_;
    RowColumn<uint8_t> flags_side_by_side_;
};

// Both search n adjacent flags, from the front or from the back, for the first that has some of `bits`. They return the
// number of flags passed before it: n if there is none.
int64_t front_without(const uint8_t* flags, int64_t n, uint8_t bits);
int64_t back_without(const uint8_t* flags, int64_t n, uint8_t bits);

}  // namespace per::cpu

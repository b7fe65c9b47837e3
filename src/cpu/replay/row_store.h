// The rows of a replay buffer in host memory. Where a value of a row lies is known here and nowhere else.
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
#include "cpu/replay/packed_frames.h"
#include "file/row_file.h"
#include "per.h"
#include "rows/fields.h"

namespace per::cpu {

// What a row holds lies side by side, as a record, and the record of the next slot lies behind it: a transition whose
// next observation is that of the following row is one run of lines on one page. A record begins with the observations,
// so that this run is short. Frames of at least large_frame_bytes have an array of their own, each on lines of its own.
// Flags stand in the record, for draws, and once more side by side, for searches through whole episodes.
//
// Records may lie in a file. They then hold all fields and the reward, so that a transition is one run of bytes on the
// disk. Flags are only side by side, and priorities and counts of draws are in memory, too: draws, updates and cuts do
// not touch the disk for them.
//
// Frames of a compressed field lie elsewhere (packed_frames.h), and their column has pointers to them.
//
// Lanes and ids are Ring's matter.
class RowStore {
 public:
    static constexpr int64_t large_frame_bytes = 1024;

    // `options` as resolved.
    RowStore(const per_replay_options& options, const Fields& fields);

    // Frames of a field, or, where packed() is not NULL, PackedFrames::by_slot().
    const RowColumn<std::byte>& field(int64_t i) const { return fields_[static_cast<size_t>(i)]; }
    PackedFrames* packed(int64_t i) const { return packed_fields_[static_cast<size_t>(i)]; }
    // Next observations, with store_next_observation: by slot of the step that they were made after.
    const RowColumn<std::byte>& next_field(int64_t i) const { return next_fields_[static_cast<size_t>(i)]; }
    PackedFrames* next_packed(int64_t i) const { return packed_next_fields_[static_cast<size_t>(i)]; }
    // Of a column, whose first value is given. NULL: the frames are in the column.
    PackedFrames* packed_of(const std::byte* first) const;
    bool has_packed() const { return !packed_.empty(); }
    // What any of them has prepared.
    void put_prepared() noexcept;
    void drop_prepared() noexcept;
    const RowColumn<float>& rewards() const { return rewards_; }
    // Priorities as rows were given them: what is there is PriorityStore's matter.
    const RowColumn<float>& priorities() const { return priorities_; }
    // How often rows were drawn, with keep_times_sampled.
    bool has_times_sampled() const { return times_sampled_.first != nullptr; }
    const RowColumn<int32_t>& times_sampled() const { return times_sampled_; }

    // RowFlags.
    const RowColumn<uint8_t>& flags() const { return flags_; }
    uint8_t flags(int64_t slot) const { return flags_[slot]; }
    const RowColumn<uint8_t>& flags_side_by_side() const { return flags_side_by_side_; }
    void set_flags(int64_t slot, uint8_t flags) {
        flags_.to_write(slot) = flags;
        flags_side_by_side_.to_write(slot) = flags;
    }
    // Flags that were written side by side are put into the records.
    void spread_flags(int64_t first, int64_t n);
    void set_flags(int64_t first, int64_t n, uint8_t flags) {
        std::fill_n(flags_side_by_side_.to_write(first, n).at(0), n, flags);
        const Column<uint8_t> column = flags_.to_write(first, n);
        for (int64_t i = 0; i < n; ++i) column[i] = flags;
    }

    Column<const std::byte> records() const { return records_; }
    // Whether they lie in a file.
    bool are_stored() const { return file_.has_value(); }
    // To be called before records of slots first .. first + n - 1 are written. Throws Error with IO where the disk has
    // no room for them; nothing has changed then.
    void reserve(int64_t first, int64_t n) {
        if (are_stored()) file_->reserve(bytes_of_records(first), bytes_of_records(n));
    }
    // The file that they lie in; NULL: memory.
    RowFile* file() { return are_stored() ? &*file_ : nullptr; }
    // Whether all records of these slots were ever reserved.
    bool holds(int64_t first, int64_t n) const { return file_->holds(bytes_of_records(first), bytes_of_records(n)); }
    // Has records fetched from the disk that are read a little later. May reach beyond the last slot.
    void will_need(int64_t first, int64_t n) const noexcept {
        if (are_stored()) file_->will_need(bytes_of_records(first), bytes_of_records(n));
    }
    // Has records in memory fetched that are written a little later, but no more than the first 32 KiB of them.
    void prefetch_to_write(int64_t first, int64_t n) const noexcept;
    // How far a column's values, whose first is given, lie from the beginnings of their records; -1: the column is an
    // array of its own.
    int64_t place_in_record(const std::byte* first) const {
        const uintptr_t place = reinterpret_cast<uintptr_t>(first) - reinterpret_cast<uintptr_t>(records_.first);
        return place < static_cast<uintptr_t>(records_.stride) ? static_cast<int64_t>(place) : -1;
    }

    // Of the columns of frames those that are an array of their own.
    FrameArrays frame_arrays() const;

    // The arrays that the values of a row lie in: records first, then those of a column of its own.
    const std::vector<Column<const std::byte>>& parts() const { return parts_; }
    // The part that a column, whose first value is given, lies in.
    size_t part_of(const std::byte* first) const;

    // `listener` is called before each change from here on, with indices of parts(). NULL: nobody is.
    void set_listener(ChangeListener* listener) { listener_ = listener; }

    MemoryUse memory_use() const;

 private:
    struct RecordLayout;

    void place(RowColumn<std::byte>& column, const Field& field, const per_replay_options& options,
               RecordLayout& layout);
    std::byte* allocate(int64_t bytes_of_slot, const MemorySource& source);
    std::size_t bytes_of_records(int64_t n) const { return static_cast<std::size_t>(n * records_.stride); }
    template <class Value>
    RowColumn<Value> column_of_its_own(int64_t bytes_of_slot, const MemorySource& source);
    template <class Value>
    RowColumn<Value> column_of_records(int64_t place) const;

    const int64_t capacity_;
    std::optional<RowFile> file_;
    std::vector<Memory> memory_;
    std::vector<std::unique_ptr<PackedFrames>> packed_;
    std::vector<Column<const std::byte>> parts_;
    ChangeListener* listener_ = nullptr;
    Column<std::byte> records_;
    std::vector<RowColumn<std::byte>> fields_;
    std::vector<RowColumn<std::byte>> next_fields_;
    std::vector<PackedFrames*> packed_fields_;  // as packed() gives them
    std::vector<PackedFrames*> packed_next_fields_;
    RowColumn<float> rewards_;
    RowColumn<float> priorities_;
    RowColumn<int32_t> times_sampled_;
    RowColumn<uint8_t> flags_;
    RowColumn<uint8_t> flags_side_by_side_;
};

// How many of n flags side by side, counted from the front or from the back, lack `bits`.
int64_t front_without(const uint8_t* flags, int64_t n, uint8_t bits);
int64_t back_without(const uint8_t* flags, int64_t n, uint8_t bits);

}  // namespace per::cpu

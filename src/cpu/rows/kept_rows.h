// Rows as they were when a save began, kept until the save has read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cpu/memory/column.h"
#include "cpu/memory/memory.h"
#include "cpu/rows/row_store.h"
#include "rules/window.h"
#include "threads/process_mark.h"

namespace per::cpu {

// Rows as they were when this object was made. They stay in place, and are read column by column. If a row is about to
// change before it has been read, the part of it that changes (its record, or one of its large frames) is copied once.
// A frame in a heap is held instead of copied. All calls need the lock of the buffer, and so does the destructor while
// frames are held.
class KeptRows final : public ChangeListener {
 public:
    // Keeps the rows that a checkpoint of `lanes` holds. `columns` are in the order in which they will be read.
    KeptRows(const RowStore& rows, const WindowRules& rules, const std::vector<Lane>& lanes,
             const std::vector<Column<const std::byte>>& columns);
    ~KeptRows();
    KeptRows(const KeptRows&) = delete;
    KeptRows& operator=(const KeptRows&) = delete;

    // Copies the values that have not been read yet. If memory runs out, later calls of read() throw.
    void will_change(std::size_t part, int64_t first, int64_t n) noexcept override;

    // Copies n values of the i-th column, of `bytes` each, side by side. Each value may be read only once. Compressed
    // frames are unpacked and released. Throws Error with OUT_OF_MEMORY if any row that has changed could not be kept.
    void read(std::size_t i, int64_t bytes, int64_t first, int64_t n, std::byte* out);
    // The same for a column of rows of any length, which are appended as a checkpoint has them.
    void append_ragged(std::size_t i, int64_t first, int64_t n, std::vector<std::byte>& out);

    // Releases some of the frames that are held, which a save that failed has not read. Call it only when will_change()
    // is not called any more. Returns true if more may be held.
    bool release_some() noexcept;

 private:
    // A copy of a row's part, whose bytes follow it.
    struct Copy {
        Copy* next;
        int64_t slot;

        std::byte* bytes() { return reinterpret_cast<std::byte*>(this + 1); }
    };
    // 64 slots.
    struct Group {
        uint64_t done;  // a bit for each slot that was copied, or will not be read again
        Copy* copies;
    };
    struct Part {
        Column<const std::byte> column;
        FrameHeap* heap;  // NULL: the column holds values
        Memory groups;
        std::size_t last_column = 0;  // index of the last column that lies in this part

        Group* group(int64_t slot) const { return reinterpret_cast<Group*>(groups.data()) + slot / 64; }
    };
    struct Place {
        Column<const std::byte> column;
        std::size_t part;
        int64_t offset;  // of the column's values within the values of the part
    };

    void check_kept() const;
    void keep(Part& part, int64_t slot);
    void read_frames(std::size_t i, int64_t first, int64_t n);
    void release(const Part& part, int64_t first, int64_t n) noexcept;
    void read_column(std::size_t i, int64_t bytes, int64_t first, int64_t n, std::byte* out);
    std::byte* allocate(std::size_t bytes);

    const Ring ring_;
    std::vector<RowRange> saved_;            // by environment
    std::vector<Part> parts_;                // of RowStore::parts()
    std::vector<Place> places_;              // by column
    std::vector<FrameHeap::Block*> frames_;  // scratch
    std::size_t part_to_release_ = 0;        // release_some() goes on here, with the slot below
    int64_t slot_to_release_ = 0;

    std::vector<std::unique_ptr<std::byte[]>> chunks_;
    std::byte* free_ = nullptr;  // in the last chunk
    std::size_t n_free_ = 0;
    bool has_failed_ = false;
    const ProcessMark process_;  // a forked child reads and keeps nothing
};

}  // namespace per::cpu

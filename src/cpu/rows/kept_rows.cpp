#include "cpu/rows/kept_rows.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/error.h"
#include "cpu/memory/moves.h"
#include "file/checkpoint_state.h"

namespace per::cpu {
namespace {

constexpr std::size_t chunk_bytes = std::size_t{1} << 18;
// Releasing this many frames takes no longer than reading one part of the rows, for which a save holds the lock, too.
constexpr int64_t slots_released_at_once = 512;

// Returns the pointer that is stored in a column of pointers to a heap.
FrameHeap::Block* frame_in(const std::byte* value) {
    FrameHeap::Block* frame;
    std::memcpy(&frame, value, sizeof frame);
    return frame;
}

}  // namespace

KeptRows::KeptRows(const RowStore& rows, const WindowRules& rules, const std::vector<Lane>& lanes,
                   const std::vector<Column<const std::byte>>& columns)
    : ring_(rules.ring) {
    for (const Lane& lane : lanes) saved_.push_back(saved_rows(lane, rules));
    for (const Column<const std::byte>& column : rows.parts())
        parts_.push_back(
            {column, rows.heap_of(column.first), Memory(array_bytes((ring_.capacity() + 63) / 64, sizeof(Group)))});
    for (std::size_t i = 0; i < columns.size(); ++i) {
        const std::size_t part = rows.part_of(columns[i].first);
        places_.push_back({columns[i], part, columns[i].first - parts_[part].column.first});
        parts_[part].last_column = i;
    }
}

KeptRows::~KeptRows() {
    while (release_some()) {
    }
}

bool KeptRows::release_some() noexcept {
    if (part_to_release_ == parts_.size()) return false;
    const Part& part = parts_[part_to_release_];
    const int64_t first = slot_to_release_;
    const int64_t n = part.heap != nullptr ? std::min(slots_released_at_once, ring_.capacity() - first) : 0;
    release(part, first, n);
    slot_to_release_ = first + n;
    if (n == 0 || slot_to_release_ == ring_.capacity()) {
        ++part_to_release_;
        slot_to_release_ = 0;
    }
    return true;
}

// Releases the frames of these slots that are held.
void KeptRows::release(const Part& part, int64_t first, int64_t n) noexcept {
    for (int64_t slot = first; slot < first + n; slot = slot / 64 * 64 + 64)
        for (Copy** place = &part.group(slot)->copies; *place != nullptr;) {
            Copy& copy = **place;
            if (first <= copy.slot && copy.slot < first + n) {
                part.heap->release(frame_in(copy.bytes()));
                *place = copy.next;
            } else {
                place = &copy.next;
            }
        }
}

void KeptRows::will_change(std::size_t part, int64_t first, int64_t n) noexcept {
    if (has_failed_ || !process_.is_here()) return;
    try {
        for (int64_t slot = first; slot < first + n; ++slot) keep(parts_[part], slot);
    } catch (const std::bad_alloc&) {
        has_failed_ = true;
    }
}

void KeptRows::keep(Part& part, int64_t slot) {
    Group& group = *part.group(slot);
    const uint64_t bit = uint64_t{1} << (slot % 64);
    if (group.done & bit) return;
    const int64_t env = ring_.env_of_slot(slot);
    const RowRange saved = saved_[static_cast<std::size_t>(env)];
    if (saved.first == saved.end || ring_.row_of_slot(env, slot, saved.end) < saved.first) return;
    const std::size_t bytes = static_cast<std::size_t>(part.column.stride);
    Copy* const copy = new (allocate(sizeof(Copy) + bytes)) Copy{group.copies, slot};
    std::memcpy(copy->bytes(), part.column.at(slot), bytes);
    if (part.heap != nullptr) FrameHeap::hold(frame_in(copy->bytes()));
    group.copies = copy;
    group.done |= bit;
}

std::byte* KeptRows::allocate(std::size_t bytes) {
    constexpr std::size_t unit = alignof(Copy);
    const std::size_t size = (bytes + unit - 1) / unit * unit;
    if (size > n_free_) {
        const std::size_t n = std::max(size, chunk_bytes);
        chunks_.push_back(std::make_unique_for_overwrite<std::byte[]>(n));
        free_ = chunks_.back().get();
        n_free_ = n;
    }
    n_free_ -= size;
    return std::exchange(free_, free_ + size);
}

void KeptRows::read(std::size_t i, int64_t bytes, int64_t first, int64_t n, std::byte* out) {
    check_kept();
    const Part& part = parts_[places_[i].part];
    if (part.heap == nullptr) return read_column(i, bytes, first, n, out);
    read_frames(i, first, n);
    const auto& packed = dynamic_cast<const PackedFrames&>(*part.heap);
    for (const FrameHeap::Block* const frame : frames_) {
        packed.read(frame, out);
        out += bytes;
    }
    release(part, first, n);
}

void KeptRows::append_ragged(std::size_t i, int64_t first, int64_t n, std::vector<std::byte>& out) {
    check_kept();
    const Part& part = parts_[places_[i].part];
    read_frames(i, first, n);
    const auto& rows = dynamic_cast<const RaggedRows&>(*part.heap);
    for (const FrameHeap::Block* const row : frames_) append_row(RaggedRows::bytes_of(row), rows.value_bytes(), out);
    release(part, first, n);
}

void KeptRows::check_kept() const {
    if (has_failed_)
        throw Error(PER_ERROR_OUT_OF_MEMORY, "out of memory for rows that were changed before they were saved");
}

void KeptRows::read_frames(std::size_t i, int64_t first, int64_t n) {
    frames_.resize(static_cast<std::size_t>(n));
    read_column(i, sizeof(FrameHeap::Block*), first, n, reinterpret_cast<std::byte*>(frames_.data()));
}

void KeptRows::read_column(std::size_t i, int64_t bytes, int64_t first, int64_t n, std::byte* out) {
    const Place& place = places_[i];
    const Part& part = parts_[place.part];
    copy_frames(out, bytes, place.column.at(first), place.column.stride, n, bytes);
    for (int64_t slot = first; slot < first + n;) {
        Group& group = *part.group(slot);
        const int64_t end = std::min(first + n, slot / 64 * 64 + 64);
        for (Copy* copy = group.copies; copy != nullptr; copy = copy->next)
            if (slot <= copy->slot && copy->slot < end)
                std::memcpy(out + (copy->slot - first) * bytes, copy->bytes() + place.offset,
                            static_cast<std::size_t>(bytes));
        if (i == part.last_column) group.done |= ~uint64_t{0} >> (64 - (end - slot)) << (slot % 64);
        slot = end;
    }
}

}  // namespace per::cpu

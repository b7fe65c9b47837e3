// The ring of a channel in shared memory: its layout, and how its two ends wake each other.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cpu/memory/column.h"
#include "per.h"
#include "process/labelled_memory.h"
#include "rows/fields.h"
#include "system/shared_bell.h"

namespace per {

// The kind of a slot, in bits.
inline constexpr uint32_t slot_cuts = 1;  // no step: cuts the episodes of the environments whose mask is not 0
inline constexpr uint32_t slot_has_next = 2;
inline constexpr uint32_t slot_has_mask = 4;
inline constexpr uint32_t slot_has_next_mask = 8;
inline constexpr uint32_t slot_has_priorities = 16;
inline constexpr uint32_t slot_kinds = 32;  // all kinds are less

// The header of the shared memory. Slots are numbered in the order of their steps; the numbers grow without limit. A
// slot is complete once `written` exceeds its number. The writer fills a slot first and stores `written` last, so a
// writer that dies in between leaves no incomplete slot for the channel to read.
struct RingHeader {
    MemoryLabel label;
    Untrusted<uint64_t> n_slots;
    Untrusted<int32_t> when_full;  // a per_when_full
    Untrusted<int32_t> moved_by;   // a per_moved_by

    // Stored by the writer; room_at by both ends, see wake_at().
    alignas(64) Untrusted<uint64_t> written;
    std::atomic<uint64_t> room_at;  // the writer sleeps until that many slots are taken
    Untrusted<uint64_t> n_dropped;
    Untrusted<uint64_t> n_waits;
    Untrusted<uint64_t> n_writers;
    Untrusted<uint32_t> process;  // of the latest writer
    SharedBell written_bell;

    // Stored by the channel; wake_at by both ends.
    alignas(64) Untrusted<uint64_t> taken;
    std::atomic<uint64_t> wake_at;  // the channel sleeps until that many slots are written
    Untrusted<uint32_t> is_closed;
    SharedBell taken_bell;
};

// Bytes of the file that serve as locks: the process of each end locks its own.
enum RingLock : int { writer_lock = 0, channel_lock = 1 };

// Offsets of the arrays of the slots in the shared memory. In each array, environment j of slot s has entry
// s * n_envs + j. The writer and the channel each compute the offsets from options that they have checked: no offset is
// read from the shared memory.
class RingArrays {
 public:
    // Throws Error with OUT_OF_MEMORY for sizes that no memory holds.
    RingArrays(const Fields& fields, int64_t n_slots, int64_t n_envs, std::size_t first_byte);

    // Both include what precedes the arrays. Values of rows of any length are not allocated at creation.
    std::size_t n_bytes() const { return n_bytes_; }
    std::size_t n_allocated() const { return n_allocated_; }

    std::size_t kinds;
    std::size_t mask;
    std::size_t next_mask;
    std::size_t terminated;
    std::size_t truncated;
    std::size_t reward;
    std::size_t priorities;
    // If rows have any length, each slot has addresses for rows of max_length, and its actual rows are packed.
    std::vector<std::size_t> fields;
    std::vector<std::size_t> next_fields;  // of observations
    // The offsets of those rows, n_envs + 1 int64_t a slot; 0 for other fields.
    std::vector<std::size_t> offsets;
    std::vector<std::size_t> next_offsets;

 private:
    std::size_t place(int64_t count, int64_t bytes);

    std::size_t n_bytes_;
    std::size_t n_allocated_;
};

// One end of a ring.
class StepRing {
 public:
    static constexpr uint64_t never = UINT64_MAX;  // larger than any number of slots

    // The channel's end, for the environments of `options`; the other parameters are those of per_channel_options.
    // `fields` must outlive it.
    StepRing(const per_replay_options& options, const Fields& fields, int64_t slots, int32_t when_full,
             int32_t moved_by);
    // The writer's end. Throws the Errors of per_writer_attach().
    StepRing(const char* path, int descriptor);

    RingHeader& header() const { return *reinterpret_cast<RingHeader*>(memory_.data()); }
    const LabelledMemory& memory() const { return memory_; }
    const Fields& fields() const { return memory_.fields(); }
    const per_replay_options& options() const { return memory_.options(); }
    const RingArrays& arrays() const { return *arrays_; }
    int64_t n_slots() const { return n_slots_; }
    int64_t n_envs() const { return options().n_envs; }

    // The first entry of a slot in an array of RingArrays.
    std::byte* at(std::size_t array, int64_t slot, int64_t bytes) const {
        return memory_.data() + array + slot * n_envs() * bytes;
    }
    // The offsets of a slot in an array of them.
    int64_t* offsets_at(std::size_t array, int64_t slot) const {
        return reinterpret_cast<int64_t*>(memory_.data() + array) + slot * (n_envs() + 1);
    }
    cpu::Column<std::byte> column(std::size_t array, int64_t bytes) const { return {memory_.data() + array, bytes}; }
    Untrusted<uint32_t>& kind(int64_t slot) const {
        return reinterpret_cast<Untrusted<uint32_t>*>(memory_.data() + arrays_->kinds)[slot];
    }

 private:
    int64_t n_slots_;
    std::unique_ptr<RingArrays> arrays_;
    LabelledMemory memory_;
};

// Rings the bell, once, if the other end wants to be woken at `reached` or a smaller number.
inline void wake_at(std::atomic<uint64_t>& wanted, uint64_t reached, SharedBell& bell) noexcept {
    uint64_t at = wanted;
    while (at <= reached) {
        // If the other end has gone back to sleep meanwhile, its number is read again.
        if (!wanted.compare_exchange_weak(at, StepRing::never)) continue;
        bell.ring();
        return;
    }
}

}  // namespace per

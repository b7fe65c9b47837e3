// The ring of a channel in shared memory: what lies where, and how its two ends wake each other.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cpu/memory/column.h"
#include "per.h"
#include "process/labelled_memory.h"
#include "rows/fields.h"
#include "threads/shared_bell.h"

namespace per {

// What a slot of the ring brings, in bits.
inline constexpr uint32_t slot_cuts = 1;  // no step: the episodes of the environments whose mask is not 0 are cut
inline constexpr uint32_t slot_has_next = 2;
inline constexpr uint32_t slot_has_mask = 4;
inline constexpr uint32_t slot_has_next_mask = 8;
inline constexpr uint32_t slot_has_priorities = 16;
inline constexpr uint32_t slot_kinds = 32;  // all kinds are below

// What the shared memory begins with. Slots are counted from the first on, for ever. A slot is complete once `written`
// counts it, which is stored last: whoever dies before has not written it.
struct RingHeader {
    MemoryLabel label;
    Untrusted<uint64_t> n_slots;
    Untrusted<int32_t> when_full;  // a per_when_full
    Untrusted<int32_t> moved_by;   // a per_moved_by

    // The writer's. Where a bell is to ring is no number to rely on: see wake_at().
    alignas(64) Untrusted<uint64_t> written;
    std::atomic<uint64_t> room_at;  // the writer sleeps until as many slots were taken
    Untrusted<uint64_t> n_dropped;
    Untrusted<uint64_t> n_waits;
    Untrusted<uint64_t> n_writers;
    Untrusted<uint32_t> process;  // of the latest writer
    SharedBell written_bell;

    // The channel's.
    alignas(64) Untrusted<uint64_t> taken;
    std::atomic<uint64_t> wake_at;  // the channel sleeps until as many slots are written
    Untrusted<uint32_t> is_closed;
    SharedBell taken_bell;
};

// Bytes of the file that are locked by the process at either end.
enum RingLock : int { writer_lock = 0, channel_lock = 1 };

// Where the arrays of the slots lie. The entry of environment j in slot s is s * n_envs + j. Both ends work that out,
// each from options that it has checked: no place is read from the shared memory.
class RingArrays {
 public:
    // Throws Error with OUT_OF_MEMORY for what no memory holds.
    RingArrays(const Fields& fields, int64_t n_slots, int64_t n_envs, std::size_t first_byte);

    std::size_t n_bytes() const { return n_bytes_; }  // with those before the first

    std::size_t kinds;
    std::size_t mask;
    std::size_t next_mask;
    std::size_t terminated;
    std::size_t truncated;
    std::size_t reward;
    std::size_t priorities;
    std::vector<std::size_t> fields;
    std::vector<std::size_t> next_fields;  // of observations

 private:
    std::size_t place(int64_t count, int64_t bytes);

    std::size_t n_bytes_;
};

// One end of a ring: its memory, and what it was made for.
class StepRing {
 public:
    static constexpr uint64_t never = UINT64_MAX;  // no number of slots is as large

    // The channel's end, for the environments that `options` have; the others as in per_channel_options. `fields` must
    // outlive it.
    StepRing(const per_replay_options& options, const Fields& fields, int64_t slots, int32_t when_full,
             int32_t moved_by);
    // The writer's end. Throws Error for what per_writer_attach() says.
    StepRing(const char* path, int descriptor);

    RingHeader& header() const { return *reinterpret_cast<RingHeader*>(memory_->data()); }
    const LabelledMemory& memory() const { return *memory_; }
    const ProcessFile& locks() const { return memory_->locks(); }
    const Fields& fields() const { return *fields_; }
    const per_replay_options& options() const { return options_; }
    const RingArrays& arrays() const { return *arrays_; }
    int64_t n_slots() const { return n_slots_; }
    int64_t n_envs() const { return options_.n_envs; }

    // The array at that place, from the first entry of a slot on.
    std::byte* at(std::size_t array, int64_t slot, int64_t bytes) const {
        return memory_->data() + array + slot * n_envs() * bytes;
    }
    cpu::Column<std::byte> column(std::size_t array, int64_t bytes) const { return {memory_->data() + array, bytes}; }
    Untrusted<uint32_t>& kind(int64_t slot) const {
        return reinterpret_cast<Untrusted<uint32_t>*>(memory_->data() + arrays_->kinds)[slot];
    }

 private:
    std::unique_ptr<LabelledMemory> memory_;
    const Fields* fields_;
    per_replay_options options_;
    int64_t n_slots_;
    std::unique_ptr<RingArrays> arrays_;
};

// Rings the bell once `reached` is where the other end wants to be woken, and no second time.
inline void wake_at(std::atomic<uint64_t>& wanted, uint64_t reached, SharedBell& bell) noexcept {
    uint64_t at = wanted;
    while (at <= reached) {
        // Where the other end has gone to sleep anew meanwhile, it is looked at once more.
        if (!wanted.compare_exchange_weak(at, StepRing::never)) continue;
        bell.ring();
        return;
    }
}

}  // namespace per

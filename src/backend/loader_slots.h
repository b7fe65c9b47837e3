// The memory that a loader draws batches into and hands them out in.
#pragma once

#include <cstddef>
#include <vector>

#include "backend/batch.h"
#include "backend/draw_outcome.h"
#include "backend/frame_gather.h"
#include "per.h"
#include "rows/fields.h"

namespace per {

// Where the next batch of a slot is drawn.
struct OpenSlot {
    const per_batch& batch;
    // Where a device draws into the slot itself; else NULL. See ReplayBackend::sample().
    DrawOutcome* outcome;
    void* stream;
    // Where the device copies frames out of the rows; else NULL. See ReplayBackend::sample().
    FrameGather* gather = nullptr;
};

// Slots go round: open() and send(), by the thread that draws, then hand_out() to a consumer, release() from it.
// Batches are on their way between them, and nobody but that thread waits for anything.
class LoaderSlots {
 public:
    virtual ~LoaderSlots() = default;

    // NULL, unless the device copies frames out of the rows. The loader begins and ends it.
    virtual FrameGather* gather() { return nullptr; }

    // Waits until nothing reads what was drawn there before, or lets the stream wait.
    virtual OpenSlot open(std::size_t slot) = 0;
    // The draw was made or, on a stream, queued. Throws Error if it turns out to have failed. Copies that fail here are
    // made by hand_out().
    virtual void send(std::size_t slot) = 0;

    // What the consumer gets: work that is queued on `stream` from here on sees the whole batch. Where this throws, the
    // slot is as it was, and may be handed out later.
    virtual const per_batch& hand_out(std::size_t slot, void* stream) = 0;
    // Nothing is written to the slot until the work that is on `stream` now is done. Where this throws, the slot is the
    // consumer's still.
    virtual void release(std::size_t slot, void* stream) = 0;
};

// Where the consumer reads host memory, batches are drawn where they are handed out.
class HostSlots final : public LoaderSlots {
 public:
    // Throws Error with OUT_OF_MEMORY.
    HostSlots(const Fields& fields, const BatchShape& shape, std::size_t n_slots) {
        slots_.reserve(n_slots);
        for (std::size_t i = 0; i < n_slots; ++i) slots_.emplace_back(fields, shape);
    }

    OpenSlot open(std::size_t slot) override { return {slots_[slot].batch(), nullptr, nullptr}; }
    void send(std::size_t) override {}
    const per_batch& hand_out(std::size_t slot, void*) override { return slots_[slot].batch(); }
    void release(std::size_t, void*) override {}

 private:
    std::vector<BatchMemory> slots_;
};

}  // namespace per

// The memory in which a loader draws batches and hands them out.
#pragma once

#include <cstddef>
#include <vector>

#include "backend/batch.h"
#include "backend/draw_outcome.h"
#include "backend/frame_gather.h"
#include "per.h"
#include "rows/fields.h"

namespace per {

// A slot that takes its next batch. `outcome` is NULL unless a device draws into the slot itself, and `gather` unless
// the device copies frames out of the rows: see DrawAhead.
struct OpenSlot {
    const per_batch& batch;
    DrawOutcome* outcome;
    void* stream;
    FrameGather* gather = nullptr;
};

// The thread that draws calls open() and send() for a slot. hand_out() then gives the slot to a consumer, who ends with
// release(). Between send() and hand_out() the copies of a batch may still be under way; only the drawing thread ever
// waits.
class LoaderSlots {
 public:
    virtual ~LoaderSlots() = default;

    // The gather by which the device copies frames out of the rows; NULL if the draw itself copies them. The loader
    // calls its begin() and end().
    virtual FrameGather* gather() { return nullptr; }

    // Waits until nothing reads the slot's previous batch, or makes the stream of the result wait for that.
    virtual OpenSlot open(std::size_t slot) = 0;
    // Makes room for the rows of any length that the draw has found, if it was PER_ERROR_FULL. Returns false if that
    // was not the reason. Throws Error with OUT_OF_MEMORY.
    virtual bool make_room(std::size_t) { return false; }
    // Call it once the draw is made or, on a stream, queued. Throws Error if the draw turns out to have failed. Copies
    // that fail here are made by hand_out().
    virtual void send(std::size_t slot) = 0;

    // Gives the batch to the consumer: work queued on `stream` after this call sees all of it. If this throws, the slot
    // is unchanged, and may be handed out later.
    virtual const per_batch& hand_out(std::size_t slot, void* stream) = 0;
    // Takes the slot back. The slot is not written before the work already queued on `stream` is done. If this throws,
    // the slot still belongs to the consumer.
    virtual void release(std::size_t slot, void* stream) = 0;
};

// Slots for a consumer that reads host memory: batches are drawn in place.
class HostSlots final : public LoaderSlots {
 public:
    // `fields` must outlive it. Throws Error with OUT_OF_MEMORY.
    HostSlots(const Fields& fields, const BatchShape& shape, std::size_t n_slots) : fields_(fields), shape_(shape) {
        slots_.reserve(n_slots);
        for (std::size_t i = 0; i < n_slots; ++i) slots_.emplace_back(fields, shape);
    }

    OpenSlot open(std::size_t slot) override { return {slots_[slot].batch(), nullptr, nullptr}; }
    bool make_room(std::size_t slot) override { return slots_[slot].make_room(fields_, shape_); }
    void send(std::size_t) override {}
    const per_batch& hand_out(std::size_t slot, void*) override { return slots_[slot].batch(); }
    void release(std::size_t, void*) override {}

 private:
    const Fields& fields_;
    const BatchShape shape_;
    std::vector<BatchMemory> slots_;
};

}  // namespace per

// The memory that a loader draws batches into and hands them out in.
#pragma once

#include <cstddef>

#include "per.h"

namespace per {

// Slots go round: open(), by the thread that draws, then send(), hand_out() to a consumer, take_back() from it. Batches
// are on their way between them, and nobody but open() waits for anything.
class LoaderSlots {
 public:
    virtual ~LoaderSlots() = default;

    // Where the slot's next batch is drawn. Waits until nothing reads what was drawn there before.
    virtual const per_batch& open(std::size_t slot) = 0;
    // The batch is drawn. What fails here fails in hand_out(), which tries again.
    virtual void send(std::size_t slot) = 0;

    // What the consumer gets: work that is queued on `stream` from here on sees the whole batch. Where this throws, the
    // slot is as it was, and may be handed out later.
    virtual const per_batch& hand_out(std::size_t slot, void* stream) = 0;
    // Nothing is written to the slot until the work that is on `stream` now is done. Where this throws, the slot is the
    // consumer's still.
    virtual void take_back(std::size_t slot, void* stream) = 0;
};

}  // namespace per

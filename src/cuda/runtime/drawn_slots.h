// Slots of a loader whose buffer lies on a CUDA device, as its consumer does.
#pragma once

#include "cuda/runtime/device_slots.h"

namespace per::cuda {

// Batches are drawn where they are handed out, on the loader's stream, once the slot was released. Whether a draw could
// be made the device knows: the thread that draws waits for it, so that a batch that is handed out is there.
class DrawnSlots final : public DeviceSlots {
 public:
    // As that of DeviceSlots.
    DrawnSlots(int device, const Fields& fields, const BatchShape& shape, std::size_t n_slots);
    ~DrawnSlots() override;

    OpenSlot open(std::size_t slot) override;
    void send(std::size_t slot) override;
    const per_batch& hand_out(std::size_t slot, void* stream) override;

 private:
    DrawOutcome& outcome(std::size_t slot) const { return reinterpret_cast<DrawOutcome*>(outcomes_.data())[slot]; }

    const int64_t batch_size_;
    const bool of_sequences_;
    PinnedMemory outcomes_;  // by slot; the device writes them
};

}  // namespace per::cuda

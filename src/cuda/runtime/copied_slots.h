// Slots of a loader whose buffer lies in host memory, and whose consumer reads that of a CUDA device.
#pragma once

#include <vector>

#include "cuda/runtime/device_slots.h"

namespace per::cuda {

// Each slot has as much pinned memory of the host as it has of the device. A batch is drawn into the former and copied
// on the loader's stream. Three fences keep the two sides apart, in both directions:
//
//   hand_out()   the consumer's stream waits until the copy was sent
//   send()       the copy waits until the slot was released
//   open()       the thread that draws waits until what it drew there before was sent
//
// The first two wait on the device. The third is the only wait of the host, and not on the consumer's thread.
class CopiedSlots final : public DeviceSlots {
 public:
    // As that of DeviceSlots.
    CopiedSlots(int device, const Fields& fields, const BatchShape& shape, std::size_t n_slots);
    ~CopiedSlots() override;

    OpenSlot open(std::size_t slot) override;
    void send(std::size_t slot) override;
    const per_batch& hand_out(std::size_t slot, void* stream) override;

 private:
    struct Copy {
        BatchArrays from;
        bool is_sent;  // what was drawn there last
    };

    void copy(std::size_t slot);

    PinnedMemory host_;
    std::vector<Copy> copies_;  // by slot
};

}  // namespace per::cuda

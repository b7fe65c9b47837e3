#include "cuda/runtime/drawn_slots.h"

#include "cuda/runtime/check.h"
#include "cuda/runtime/create.h"

namespace per::cuda {

DrawnSlots::DrawnSlots(int device, const Fields& fields, const BatchShape& shape, std::size_t n_slots)
    : DeviceSlots(device, fields, shape, n_slots),
      batch_size_(shape.batch_size),
      of_sequences_(shape.steps > 0),
      outcomes_(n_slots * sizeof(DrawOutcome)) {}

DrawnSlots::~DrawnSlots() {
    if (!leave()) outcomes_.abandon();
}

OpenSlot DrawnSlots::open(std::size_t slot) {
    const CurrentDevice current(device());
    await_release(slot);
    return {batch(slot), &outcome(slot), stream()};
}

void DrawnSlots::send(std::size_t slot) {
    const CurrentDevice current(device());
    record_sent(slot);
    wait_until_sent(slot);
    require_drawn(batch_size_, outcome(slot), of_sequences_);
}

const per_batch& DrawnSlots::hand_out(std::size_t slot, void* stream) {
    const CurrentDevice current(device());
    refuse_capture_of_loader(static_cast<cudaStream_t>(stream));
    return batch(slot);
}

std::unique_ptr<LoaderSlots> create_drawn_slots(int32_t device_index, const Fields& fields, const BatchShape& shape,
                                                std::size_t n_slots) {
    const CurrentDevice current(device_index);
    return std::make_unique<DrawnSlots>(device_index, fields, shape, n_slots);
}

}  // namespace per::cuda

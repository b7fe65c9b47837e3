#include "cuda/runtime/copied_slots.h"

#include "cuda/runtime/check.h"
#include "cuda/runtime/create.h"
#include "rows/error.h"

namespace per::cuda {

CopiedSlots::CopiedSlots(int device, const Fields& fields, const BatchShape& shape, std::size_t n_slots)
    : DeviceSlots(device, fields, shape, n_slots), host_(bytes_of_slots(slot_bytes(), n_slots)) {
    copies_.reserve(n_slots);
    for (std::size_t i = 0; i < n_slots; ++i)
        copies_.push_back({BatchArrays(fields, shape, host_.data() + i * slot_bytes()), false});
}

CopiedSlots::~CopiedSlots() {
    if (!leave()) host_.abandon();
}

OpenSlot CopiedSlots::open(std::size_t slot) {
    const CurrentDevice current(device());
    wait_until_sent(slot);
    copies_[slot].is_sent = false;
    return {copies_[slot].from.batch(), nullptr, nullptr};
}

void CopiedSlots::send(std::size_t slot) {
    try {
        const CurrentDevice current(device());
        copy(slot);
    } catch (const Error&) {
    }
}

void CopiedSlots::copy(std::size_t slot) {
    await_release(slot);
    check(cudaMemcpyAsync(memory(slot), host_.data() + slot * slot_bytes(), slot_bytes(), cudaMemcpyHostToDevice,
                          stream()),
          "copying a batch");
    record_sent(slot);
    copies_[slot].is_sent = true;
}

const per_batch& CopiedSlots::hand_out(std::size_t slot, void* stream) {
    const CurrentDevice current(device());
    const auto target = static_cast<cudaStream_t>(stream);
    refuse_capture_of_loader(target);
    if (!copies_[slot].is_sent) copy(slot);
    let_wait_until_sent(slot, target);
    return batch(slot);
}

std::unique_ptr<LoaderSlots> create_copied_slots(int32_t device_index, const Fields& fields, const BatchShape& shape,
                                                 std::size_t n_slots) {
    require_device(device_index);
    const CurrentDevice current(device_index);
    return std::make_unique<CopiedSlots>(device_index, fields, shape, n_slots);
}

}  // namespace per::cuda

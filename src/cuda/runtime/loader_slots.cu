// Slots of a buffer on the device, and functions that all slots share.
#include "backend/loader_slots.h"

#include "backend/create.h"
#include "cuda/runtime/device_slots.h"

namespace per::cuda {
namespace {

// Slots of a buffer on the device itself. Batches are drawn directly into the slot that is opened, on the loader's
// stream, once the slot was released. Only the device knows whether a draw succeeded: the drawing thread waits for the
// outcome, which the device writes to the slot's pinned memory.
class DrawnSlots final : public DeviceSlots {
 public:
    DrawnSlots(int device, const Fields& fields, const BatchShape& shape, std::size_t n_slots)
        : DeviceSlots(device, fields, shape, n_slots, bytes_of_slot(fields, shape), sizeof(DrawOutcome)),
          batch_size_(shape.batch_size),
          of_sequences_(shape.steps > 0) {}

    OpenSlot open(std::size_t slot) override {
        const CurrentDevice current(device_);
        await_release(slot);
        return {batch(slot), &outcome(slot), stream_.get()};
    }

    void send(std::size_t slot) override {
        const CurrentDevice current(device_);
        record_sent(slot);
        wait_until_sent(slot);
        require_drawn(batch_size_, outcome(slot), of_sequences_);
    }

    const per_batch& hand_out(std::size_t slot, void* stream) override {
        const CurrentDevice current(device_);
        require_no_capture(stream);
        return batch(slot);
    }

 private:
    DrawOutcome& outcome(std::size_t slot) const { return *reinterpret_cast<DrawOutcome*>(host(slot)); }

    const int64_t batch_size_;
    const bool of_sequences_;
};

}  // namespace

std::size_t bytes_of_slot(const Fields& fields, const BatchShape& shape) {
    return whole_rows(BatchArrays::n_bytes(fields, shape));
}

std::size_t bytes_of_slots(std::size_t bytes_each, std::size_t n_slots) {
    std::size_t bytes;
    if (!__builtin_mul_overflow(bytes_each, n_slots, &bytes) && bytes <= PTRDIFF_MAX) return bytes;
    throw Error(PER_ERROR_OUT_OF_MEMORY, "out of memory: the bytes of the slots are beyond 63 bits");
}

cudaStream_t require_no_capture(void* stream) {
    const auto target = static_cast<cudaStream_t>(stream);
    if (!is_captured(target)) return target;
    throw Error(PER_ERROR_INVALID_ARGUMENT,
                "stream is %p: it is being captured, and batches of a loader cannot be handed out or released there",
                stream);
}

std::unique_ptr<LoaderSlots> create_copied_slots(int32_t device_index, const Fields& fields, const BatchShape& shape,
                                                 std::size_t n_slots) {
    require_device(device_index);
    const CurrentDevice current(device_index);
    return std::make_unique<CopiedSlots>(device_index, fields, shape, n_slots);
}

std::unique_ptr<LoaderSlots> create_drawn_slots(int32_t device_index, const Fields& fields, const BatchShape& shape,
                                                std::size_t n_slots) {
    const CurrentDevice current(device_index);
    return std::make_unique<DrawnSlots>(device_index, fields, shape, n_slots);
}

}  // namespace per::cuda

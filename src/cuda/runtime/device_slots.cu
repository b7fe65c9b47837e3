#include "cuda/runtime/device_slots.h"

#include <unistd.h>

#include <new>

#include "cuda/runtime/check.h"
#include "rows/error.h"

namespace per::cuda {
namespace {

// Whole rows of the device's memory, so that the arrays of every slot begin on one.
constexpr std::size_t slot_alignment = 256;

std::size_t bytes_of_slot(const Fields& fields, const BatchShape& shape) {
    return (BatchArrays::n_bytes(fields, shape) + slot_alignment - 1) / slot_alignment * slot_alignment;
}

}  // namespace

std::size_t bytes_of_slots(std::size_t slot_bytes, std::size_t n_slots) {
    std::size_t bytes;
    if (!__builtin_mul_overflow(slot_bytes, n_slots, &bytes) && bytes <= PTRDIFF_MAX) return bytes;
    throw Error(PER_ERROR_OUT_OF_MEMORY, "out of memory: the bytes of the slots are beyond 63 bits");
}

void refuse_capture_of_loader(cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long capture = 0;
    check(cudaStreamGetCaptureInfo(stream, &status, &capture), "asking whether the stream is captured");
    if (status != cudaStreamCaptureStatusNone)
        throw Error(
            PER_ERROR_INVALID_ARGUMENT,
            "stream is %p: it is being captured, and batches of a loader cannot be handed out or released there",
            static_cast<void*>(stream));
}

DeviceSlots::DeviceSlots(int device, const Fields& fields, const BatchShape& shape, std::size_t n_slots)
    : device_(device),
      process_(getpid()),
      slot_bytes_(bytes_of_slot(fields, shape)),
      memory_(bytes_of_slots(slot_bytes_, n_slots)),
      stream_(new_stream()) {
    slots_.reserve(n_slots);
    for (std::size_t i = 0; i < n_slots; ++i)
        slots_.push_back({BatchArrays(fields, shape, memory(i)), new_event(), new_event()});
}

bool DeviceSlots::leave() {
    if (getpid() == process_) {
        const CurrentDevice current(device_, std::nothrow);
        const ApartFromCaptures apart(std::nothrow);
        // After a fault of the device these waits fail at once.
        for (const Slot& slot : slots_) static_cast<void>(cudaEventSynchronize(slot.released.get()));
        static_cast<void>(cudaStreamSynchronize(stream_.get()));
        return true;
    }
    memory_.abandon();
    stream_.abandon();
    for (Slot& slot : slots_) {
        slot.sent.abandon();
        slot.released.abandon();
    }
    return false;
}

void DeviceSlots::await_release(std::size_t slot) {
    check(cudaStreamWaitEvent(stream_.get(), slots_[slot].released.get(), 0), "waiting for a release");
}

void DeviceSlots::record_sent(std::size_t slot) {
    check(cudaEventRecord(slots_[slot].sent.get(), stream_.get()), "recording an event");
}

void DeviceSlots::wait_until_sent(std::size_t slot) const {
    const ApartFromCaptures apart;
    check(cudaEventSynchronize(slots_[slot].sent.get()), "waiting for a batch");
}

void DeviceSlots::let_wait_until_sent(std::size_t slot, cudaStream_t stream) {
    check(cudaStreamWaitEvent(stream, slots_[slot].sent.get(), 0), "waiting for a batch");
}

void DeviceSlots::take_back(std::size_t slot, void* stream) {
    const CurrentDevice device(device_);
    const auto target = static_cast<cudaStream_t>(stream);
    refuse_capture_of_loader(target);
    check(cudaEventRecord(slots_[slot].released.get(), target), "recording an event");
}

}  // namespace per::cuda

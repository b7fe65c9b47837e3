#include "cuda/device_slots.h"

#include <unistd.h>

#include "cuda/check.h"
#include "cuda/create.h"
#include "error.h"

namespace per::cuda {
namespace {

// Whole rows of the device's memory, so that the arrays of every slot begin on one.
constexpr std::size_t slot_alignment = 256;

std::size_t bytes_of_slot(const Fields& fields, const BatchShape& shape) {
    return (BatchArrays::n_bytes(fields, shape) + slot_alignment - 1) / slot_alignment * slot_alignment;
}

std::size_t bytes_of_slots(std::size_t slot_bytes, std::size_t n_slots) {
    std::size_t bytes;
    if (!__builtin_mul_overflow(slot_bytes, n_slots, &bytes) && bytes <= PTRDIFF_MAX) return bytes;
    throw Error(PER_ERROR_OUT_OF_MEMORY, "out of memory: the bytes of the slots are beyond 63 bits");
}

// What is captured happens when its graph is launched, which a loader does not hear of.
void refuse_capture(cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long capture = 0;
    check(cudaStreamGetCaptureInfo(stream, &status, &capture), "asking whether the stream is captured");
    if (status != cudaStreamCaptureStatusNone)
        throw Error(
            PER_ERROR_INVALID_ARGUMENT,
            "stream is %p: it is being captured, and batches of a loader cannot be handed out or released there",
            static_cast<void*>(stream));
}

}  // namespace

DeviceSlots::DeviceSlots(int device, const Fields& fields, const BatchShape& shape, std::size_t n_slots)
    : device_(device),
      process_(getpid()),
      slot_bytes_(bytes_of_slot(fields, shape)),
      host_(bytes_of_slots(slot_bytes_, n_slots)),
      memory_(bytes_of_slots(slot_bytes_, n_slots)) {
    cudaStream_t stream;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
    stream_.reset(stream);
    slots_.reserve(n_slots);
    for (std::size_t i = 0; i < n_slots; ++i)
        slots_.emplace_back(fields, shape, host_.data() + i * slot_bytes_, memory_.data() + i * slot_bytes_);
}

DeviceSlots::Slot::Slot(const Fields& fields, const BatchShape& shape, std::byte* host_block, std::byte* device_block)
    : host(fields, shape, host_block), device(fields, shape, device_block), sent(new_event()), released(new_event()) {}

DeviceSlots::Event DeviceSlots::new_event() {
    cudaEvent_t event;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
    return Event(event);
}

DeviceSlots::~DeviceSlots() {
    if (getpid() != process_) {
        abandon();
        return;
    }
    // The memory is in use until then. After a fault of the device these waits fail at once.
    for (const Slot& slot : slots_) static_cast<void>(cudaEventSynchronize(slot.released.get()));
    static_cast<void>(cudaStreamSynchronize(stream_.get()));
}

// In a forked child nothing of CUDA may be called.
void DeviceSlots::abandon() {
    host_.abandon();
    memory_.abandon();
    static_cast<void>(stream_.release());
    for (Slot& slot : slots_) {
        static_cast<void>(slot.sent.release());
        static_cast<void>(slot.released.release());
    }
}

const per_batch& DeviceSlots::open(std::size_t slot) {
    const CurrentDevice device(device_);
    const ApartFromCaptures apart;
    check(cudaEventSynchronize(slots_[slot].sent.get()), "waiting for a batch to be copied");
    slots_[slot].is_sent = false;
    return slots_[slot].host.batch();
}

void DeviceSlots::send(std::size_t slot) {
    const CurrentDevice device(device_);
    check(cudaStreamWaitEvent(stream_.get(), slots_[slot].released.get(), 0), "waiting for a release");
    const std::size_t offset = slot * slot_bytes_;
    check(cudaMemcpyAsync(memory_.data() + offset, host_.data() + offset, slot_bytes_, cudaMemcpyHostToDevice,
                          stream_.get()),
          "copying a batch");
    check(cudaEventRecord(slots_[slot].sent.get(), stream_.get()), "recording an event");
    slots_[slot].is_sent = true;
}

const per_batch& DeviceSlots::hand_out(std::size_t slot, void* stream) {
    const CurrentDevice device(device_);
    const auto target = static_cast<cudaStream_t>(stream);
    refuse_capture(target);
    if (!slots_[slot].is_sent) send(slot);
    check(cudaStreamWaitEvent(target, slots_[slot].sent.get(), 0), "waiting for a batch");
    return slots_[slot].device.batch();
}

void DeviceSlots::take_back(std::size_t slot, void* stream) {
    const CurrentDevice device(device_);
    const auto target = static_cast<cudaStream_t>(stream);
    refuse_capture(target);
    check(cudaEventRecord(slots_[slot].released.get(), target), "recording an event");
}

std::unique_ptr<LoaderSlots> create_loader_slots(int32_t device_index, const Fields& fields, const BatchShape& shape,
                                                 std::size_t n_slots) {
    require_device(device_index);
    const CurrentDevice device(device_index);
    return std::make_unique<DeviceSlots>(device_index, fields, shape, n_slots);
}

}  // namespace per::cuda

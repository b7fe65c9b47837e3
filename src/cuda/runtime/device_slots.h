// Slots of a loader whose consumer reads the memory of a CUDA device.
#pragma once

#include <cstddef>
#include <new>
#include <utility>
#include <vector>

#include "backend/batch.h"
#include "backend/loader_slots.h"
#include "base/error.h"
#include "cuda/runtime/device.h"
#include "rows/fields.h"
#include "system/process_number.h"

namespace per::cuda {

// Rounds up to whole rows of the device's memory, so that the arrays of every slot begin at the start of a row.
constexpr std::size_t whole_rows(std::size_t bytes) {
    constexpr std::size_t row_bytes = 256;
    return (bytes + row_bytes - 1) / row_bytes * row_bytes;
}

// Bytes of a batch, in whole rows.
std::size_t bytes_of_slot(const Fields& fields, const BatchShape& shape);
// Throws Error with OUT_OF_MEMORY if the number does not fit.
std::size_t bytes_of_slots(std::size_t bytes_each, std::size_t n_slots);

// Throws if the stream is captured: a loader would not learn of the launches of the graph.
cudaStream_t require_no_capture(void* stream);

// Each slot has device memory and pinned host memory. Batches come to the device on a stream of the loader. Two events
// of each slot make the streams of the loader and of consumers wait for each other:
//
//   sent       on the loader's stream, behind the batch
//   released   on the stream of the consumer, behind its use of the batch
class DeviceSlots : public LoaderSlots {
 public:
    // Waits until the slots are no longer used. A forked child may not call CUDA.
    ~DeviceSlots() override {
        if (process_number() != process_) return;
        const CurrentDevice current(device_, std::nothrow);
        // The loader's stream waits for consumers, and this thread for the stream. After a fault of the device these
        // calls fail at once.
        for (const Slot& slot : slots_) {
            static_cast<void>(cudaStreamWaitEvent(stream_.get(), slot.released.get(), 0));
            static_cast<void>(cudaEventRecord(slot.sent.get(), stream_.get()));
            wait_for(slot.sent, std::nothrow);
        }
        wait_for(stream_.get(), std::nothrow);
    }

    void release(std::size_t slot, void* stream) override {
        const CurrentDevice current(device_);
        check(cudaEventRecord(slots_[slot].released.get(), require_no_capture(stream)), "recording an event");
    }

 protected:
    // The device must be current. Each slot has slot_bytes of device memory, with its batch at the beginning, and
    // host_bytes of host memory. Throws Error with OUT_OF_MEMORY or CUDA.
    DeviceSlots(int device, const Fields& fields, const BatchShape& shape, std::size_t n_slots, std::size_t slot_bytes,
                std::size_t host_bytes)
        : device_(device),
          slot_bytes_(slot_bytes),
          host_bytes_(host_bytes),
          memory_(bytes_of_slots(slot_bytes_, n_slots)),
          host_(bytes_of_slots(host_bytes_, n_slots)),
          stream_(new_stream()) {
        slots_.reserve(n_slots);
        for (std::size_t i = 0; i < n_slots; ++i) {
            // Separate variables, as g++ forgets a member of a braced list if the next one throws.
            HostEvent sent = new_host_event();
            Event released = new_event();
            slots_.push_back({BatchArrays(fields, shape, memory(i)), std::move(sent), std::move(released)});
        }
    }

    std::byte* memory(std::size_t slot) const { return memory_.data() + slot * slot_bytes_; }
    std::byte* host(std::size_t slot) const { return host_.data() + slot * host_bytes_; }
    const per_batch& batch(std::size_t slot) const { return slots_[slot].batch.batch(); }

    // The loader's stream waits for the consumer that had the slot last.
    void await_release(std::size_t slot) {
        check(cudaStreamWaitEvent(stream_.get(), slots_[slot].released.get(), 0), "waiting for a release");
    }
    void record_sent(std::size_t slot) {
        check(cudaEventRecord(slots_[slot].sent.get(), stream_.get()), "recording an event");
    }
    // The host waits until the last batch of the slot was sent.
    void wait_until_sent(std::size_t slot) const { wait_for(slots_[slot].sent, "waiting for a batch"); }

    struct Slot {
        BatchArrays batch;
        HostEvent sent;
        Event released;
    };

    const int device_;
    const uint32_t process_ = process_number();
    const std::size_t slot_bytes_;
    const std::size_t host_bytes_;  // of a slot
    DeviceMemory memory_;
    PinnedMemory host_;
    Stream stream_;
    std::vector<Slot> slots_;
};

// Slots of a buffer in host memory. A batch is drawn into the slot's pinned memory and copied on the loader's stream.
// Three waits keep the loader and the consumer from using a slot at the same time:
//
//   hand_out()   the consumer's stream waits until the copy was sent
//   send()       the copy waits until the slot was released
//   open()       the drawing thread waits until the previous batch of the slot was sent
//
// In the first two a stream waits, on the device. Only in the third the host waits, and there the thread that draws,
// not the consumer's.
class CopiedSlots : public DeviceSlots {
 public:
    // Each batch is followed by `more_bytes` in both memories.
    CopiedSlots(int device, const Fields& fields, const BatchShape& shape, std::size_t n_slots,
                std::size_t more_bytes = 0)
        : DeviceSlots(device, fields, shape, n_slots, bytes_of_slot(fields, shape) + more_bytes,
                      bytes_of_slot(fields, shape) + more_bytes) {
        copies_.reserve(n_slots);
        for (std::size_t i = 0; i < n_slots; ++i) copies_.push_back({BatchArrays(fields, shape, host(i)), false});
    }

    OpenSlot open(std::size_t slot) override {
        const CurrentDevice current(device_);
        wait_until_sent(slot);
        copies_[slot].is_sent = false;
        return {copies_[slot].from.batch(), nullptr, nullptr};
    }

    void send(std::size_t slot) override {
        try {
            const CurrentDevice current(device_);
            copy(slot);
        } catch (const Error&) {
        }
    }

    const per_batch& hand_out(std::size_t slot, void* stream) override {
        const CurrentDevice current(device_);
        const cudaStream_t target = require_no_capture(stream);
        if (!copies_[slot].is_sent) copy(slot);
        check(cudaStreamWaitEvent(target, slots_[slot].sent.get(), 0), "waiting for a batch");
        return batch(slot);
    }

 protected:
    struct Copy {
        BatchArrays from;
        bool is_sent;  // whether the batch drawn there last was sent
    };

    void copy(std::size_t slot) {
        await_release(slot);
        check(cudaMemcpyAsync(memory(slot), host(slot), slot_bytes_, cudaMemcpyHostToDevice, stream_.get()),
              "copying a batch");
        record_sent(slot);
        copies_[slot].is_sent = true;
    }

    std::vector<Copy> copies_;  // by slot
};

}  // namespace per::cuda

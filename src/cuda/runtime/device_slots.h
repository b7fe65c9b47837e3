// Slots of a loader whose consumer reads the memory of a CUDA device: what all kinds of them share.
#pragma once

#include <cuda_runtime.h>
#include <sys/types.h>

#include <vector>

#include "backend/batch_memory.h"
#include "backend/loader_slots.h"
#include "cuda/runtime/device.h"
#include "rows/fields.h"

namespace per::cuda {

// Memory of the device for each slot, a stream of the loader's own on which batches come there, and two events by which
// the streams of the loader and of consumers wait for each other:
//
//   sent       on the loader's stream, behind the batch
//   released   on the consumer's, behind what it did with the batch
class DeviceSlots : public LoaderSlots {
 public:
    void take_back(std::size_t slot, void* stream) override;

 protected:
    // The device must be current. Throws Error with OUT_OF_MEMORY or CUDA.
    DeviceSlots(int device, const Fields& fields, const BatchShape& shape, std::size_t n_slots);

    // To be called before anything of the slots is freed: waits until nobody uses them. False in a forked child, where
    // nothing of CUDA may be called, and what a class of its own has is left alone as this one's is.
    bool leave();

    int device() const { return device_; }
    cudaStream_t stream() const { return stream_.get(); }
    std::size_t slot_bytes() const { return slot_bytes_; }
    std::size_t n_slots() const { return slots_.size(); }
    std::byte* memory(std::size_t slot) const { return memory_.data() + slot * slot_bytes_; }
    const per_batch& batch(std::size_t slot) const { return slots_[slot].batch.batch(); }

    // The loader's stream waits for the consumer that had the slot last.
    void await_release(std::size_t slot);
    void record_sent(std::size_t slot);
    // The host waits for what was sent last, whatever other threads capture.
    void wait_until_sent(std::size_t slot) const;
    void let_wait_until_sent(std::size_t slot, cudaStream_t stream);

 private:
    struct Slot {
        BatchArrays batch;
        Event sent;
        Event released;
    };

    const int device_;
    const pid_t process_;
    const std::size_t slot_bytes_;
    DeviceMemory memory_;
    Stream stream_;
    std::vector<Slot> slots_;
};

// What is captured happens when its graph is launched, which a loader does not hear of.
void refuse_capture_of_loader(cudaStream_t stream);

// Of so many slots. Throws Error with OUT_OF_MEMORY beyond 63 bits.
std::size_t bytes_of_slots(std::size_t slot_bytes, std::size_t n_slots);

}  // namespace per::cuda

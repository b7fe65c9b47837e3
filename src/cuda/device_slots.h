// Slots of a loader whose consumer reads the memory of a CUDA device.
#pragma once

#include <cuda_runtime.h>
#include <sys/types.h>

#include <memory>
#include <type_traits>
#include <vector>

#include "batch_memory.h"
#include "cuda/device.h"
#include "fields.h"
#include "loader_slots.h"

namespace per::cuda {

// Each slot has memory of the device and as much pinned memory of the host. A batch is drawn into the latter, and copied
// on a stream of the loader's own. Three fences keep the two sides apart, in both directions:
//
//   hand_out()   the consumer's stream waits for the copy: an event `sent` behind it
//   send()       the copy waits for what the consumer did with the slot's batch before: `released`, on its stream
//   open()       the thread that draws waits for the copy of what it drew there before: `sent` again
//
// The first two wait on the device. The third is the only wait of the host, and not on the consumer's thread.
class DeviceSlots final : public LoaderSlots {
 public:
    // The device must be current. Throws Error with OUT_OF_MEMORY or CUDA.
    DeviceSlots(int device, const Fields& fields, const BatchShape& shape, std::size_t n_slots);
    ~DeviceSlots() override;

    const per_batch& open(std::size_t slot) override;
    void send(std::size_t slot) override;
    const per_batch& hand_out(std::size_t slot, void* stream) override;
    void take_back(std::size_t slot, void* stream) override;

 private:
    struct DestroyStream {
        void operator()(cudaStream_t stream) const { static_cast<void>(cudaStreamDestroy(stream)); }
    };
    struct DestroyEvent {
        void operator()(cudaEvent_t event) const { static_cast<void>(cudaEventDestroy(event)); }
    };
    using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, DestroyStream>;
    using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, DestroyEvent>;

    struct Slot {
        Slot(const Fields& fields, const BatchShape& shape, std::byte* host_block, std::byte* device_block);

        BatchArrays host;
        BatchArrays device;
        Event sent;
        Event released;
        bool is_sent = false;  // what was drawn there last
    };

    static Event new_event();
    void abandon();

    const int device_;
    const pid_t process_;
    const std::size_t slot_bytes_;
    PinnedMemory host_;
    DeviceMemory memory_;
    Stream stream_;  // of the copies
    std::vector<Slot> slots_;
};

}  // namespace per::cuda

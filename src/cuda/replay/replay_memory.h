// The memory of a replay buffer on a device.
#pragma once

#include <cstddef>
#include <vector>

#include "cuda/replay/replay_state.h"
#include "cuda/runtime/device.h"
#include "cuda/runtime/stream_order.h"
#include "per.h"
#include "rows/fields.h"

namespace per::cuda {

// All memory is allocated at creation, on the current device, except that of ranks and smallest leaves, which the first
// call that needs them may add.
class ReplayMemory {
 public:
    // `options` must have been resolved. The buffer is empty, and ready once the work queued on `stream` is done.
    ReplayMemory(const per_replay_options& options, const Fields& fields, cudaStream_t stream);

    const DeviceReplay& device() const { return device_; }
    // The host's copy of device().fields.
    const std::vector<DeviceField>& fields() const { return fields_; }
    // The default of a field: a frame in device memory, or NULL if the field has no default.
    const std::byte* default_value(int64_t field) const { return defaults_[static_cast<std::size_t>(field)]; }

    // Allocate memory that a call needs and that the options did not ask for. They throw Error with INVALID_ARGUMENT if
    // a call was captured before, and with OUT_OF_MEMORY.
    void add_ranks(const StreamOrder::Call& call);
    void add_smallest_leaf(const StreamOrder::Call& call);

    std::size_t n_bytes() const { return n_bytes_; }

 private:
    std::byte* allocate(std::size_t n_bytes, cudaStream_t stream);
    void allocate_ranks(cudaStream_t stream);

    DeviceReplay device_ = {};
    std::vector<DeviceField> fields_;
    std::vector<std::byte*> defaults_;
    std::vector<DeviceMemory> blocks_;
    std::size_t n_bytes_ = 0;
};

}  // namespace per::cuda

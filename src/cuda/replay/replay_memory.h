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

// All of it is allocated at creation, on the current device, but for ranks and smallest leaves: the first call that
// asks for them may add them.
class ReplayMemory {
 public:
    // `options` are resolved. Once `stream` has got there, it holds an empty buffer.
    ReplayMemory(const per_replay_options& options, const Fields& fields, cudaStream_t stream);

    const DeviceReplay& device() const { return device_; }
    // What device().fields points to, for the host.
    const std::vector<DeviceField>& fields() const { return fields_; }
    // A frame in the memory of the device; NULL for a field that has no default.
    const std::byte* default_value(int64_t field) const { return defaults_[static_cast<std::size_t>(field)]; }

    // For calls that ask for what the options did not. Throws Error while a stream is captured, OUT_OF_MEMORY.
    void add_ranks(const StreamOrder::Call& call);
    void add_smallest_leaf(const StreamOrder::Call& call);

    std::size_t n_bytes() const { return n_bytes_; }

 private:
    std::byte* allocate(std::size_t n_bytes, cudaStream_t stream);

    DeviceReplay device_ = {};
    std::vector<DeviceField> fields_;
    std::vector<std::byte*> defaults_;
    std::vector<DeviceMemory> blocks_;
    std::size_t n_bytes_ = 0;
};

}  // namespace per::cuda

// The way of the caller's host memory to the device.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <vector>

#include "cuda/runtime/device.h"

namespace per::cuda {

// A ring of pinned buffers, and one of the device which each in turn is copied to. The host fills the next while the
// device still reads those before; it waits only when it has gone once around.
class Staging {
 public:
    // On the current device.
    explicit Staging(std::size_t buffer_bytes);
    Staging(const Staging&) = delete;
    Staging& operator=(const Staging&) = delete;

    std::size_t buffer_bytes() const { return buffer_bytes_; }
    // The buffer to be filled.
    std::byte* host();
    // Queues a copy of its beginning; not to be captured. The next buffer is then to be filled.
    void send(std::byte* to, std::size_t n_bytes, cudaStream_t stream);
    // The one of the device.
    std::byte* device() const { return device_.data(); }

    std::size_t n_bytes() const { return buffer_bytes_; }  // of the device
    // In a forked child the memory is not this process's to free.
    void abandon();

 private:
    static constexpr std::size_t n_buffers = 4;

    std::size_t buffer_bytes_;
    PinnedMemory host_;
    DeviceMemory device_;
    std::vector<Event> events_;  // by buffer: the device has read it
    bool is_sent_[n_buffers] = {};
    std::size_t next_ = 0;
};

}  // namespace per::cuda

// The way of the caller's host memory to the device.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "cuda/runtime/device.h"

namespace per::cuda {

// Whether memory is the host's, pinned or not, so that it is copied during the call: by the time that the device gets
// there it may be the caller's again.
bool is_host_memory(const void* memory);

// A ring of pinned buffers, and one of the device which each in turn is copied to. The host fills the next while the
// device still reads those before; it waits only when it has gone once around.
class Staging {
 public:
    // On the current device.
    explicit Staging(std::size_t buffer_bytes);
    ~Staging();
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
    static constexpr int n_buffers = 4;

    std::size_t buffer_bytes_;
    PinnedMemory host_;
    DeviceMemory device_;
    cudaEvent_t events_[n_buffers] = {};  // the device has read the buffer
    bool is_sent_[n_buffers] = {};
    int next_ = 0;
    bool is_abandoned_ = false;
};

}  // namespace per::cuda

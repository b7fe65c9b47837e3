#include "cuda/runtime/staging.h"

#include "cuda/runtime/device.h"

namespace per::cuda {

Staging::Staging(std::size_t buffer_bytes)
    : buffer_bytes_(buffer_bytes), host_(n_buffers * buffer_bytes), device_(buffer_bytes) {
    events_.reserve(n_buffers);
    for (std::size_t i = 0; i < n_buffers; ++i) events_.push_back(new_host_event());
}

std::byte* Staging::host() {
    if (is_sent_[next_]) wait_for(events_[next_], "waiting for a copy to the device");
    is_sent_[next_] = false;
    return host_.data() + next_ * buffer_bytes_;
}

void Staging::send(std::byte* to, std::size_t n_bytes, cudaStream_t stream) {
    const std::byte* const buffer = host_.data() + next_ * buffer_bytes_;
    check(cudaMemcpyAsync(to, buffer, n_bytes, cudaMemcpyHostToDevice, stream), "copying to the device");
    const cudaError_t error = cudaEventRecord(events_[next_].get(), stream);
    if (error != cudaSuccess) wait_for(stream, std::nothrow);  // no event tells when the buffer can be filled again
    check(error, "recording an event");
    is_sent_[next_] = true;
    next_ = (next_ + 1) % n_buffers;
}

}  // namespace per::cuda

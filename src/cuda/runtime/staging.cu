#include "cuda/runtime/staging.h"

#include "cuda/runtime/check.h"

namespace per::cuda {

bool is_host_memory(const void* memory) {
    cudaPointerAttributes attributes;
    check(cudaPointerGetAttributes(&attributes, memory), "asking where an array lies");
    return attributes.type == cudaMemoryTypeUnregistered || attributes.type == cudaMemoryTypeHost;
}

Staging::Staging(std::size_t buffer_bytes)
    : buffer_bytes_(buffer_bytes), host_(n_buffers * buffer_bytes), device_(buffer_bytes) {
    for (cudaEvent_t& event : events_) {
        const cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
        if (error == cudaSuccess) continue;
        event = nullptr;
        for (const cudaEvent_t made : events_)
            if (made != nullptr) static_cast<void>(cudaEventDestroy(made));
        check(error, "making an event");
    }
}

Staging::~Staging() {
    if (is_abandoned_) return;
    for (const cudaEvent_t event : events_) static_cast<void>(cudaEventDestroy(event));
}

std::byte* Staging::host() {
    if (is_sent_[next_]) {
        const ApartFromCaptures apart;
        check(cudaEventSynchronize(events_[next_]), "waiting for a copy to the device");
    }
    is_sent_[next_] = false;
    return host_.data() + static_cast<std::size_t>(next_) * buffer_bytes_;
}

void Staging::send(std::byte* to, std::size_t n_bytes, cudaStream_t stream) {
    const std::byte* const buffer = host_.data() + static_cast<std::size_t>(next_) * buffer_bytes_;
    check(cudaMemcpyAsync(to, buffer, n_bytes, cudaMemcpyHostToDevice, stream), "copying to the device");
    check(cudaEventRecord(events_[next_], stream), "recording an event");
    is_sent_[next_] = true;
    next_ = (next_ + 1) % n_buffers;
}

void Staging::abandon() {
    is_abandoned_ = true;
    host_.abandon();
    device_.abandon();
}

}  // namespace per::cuda

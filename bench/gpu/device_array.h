// Memory of the device for the benchmark.
#pragma once

#include <cstdint>
#include <vector>

#include "timing.h"

template <class Element>
class DeviceArray {
 public:
    explicit DeviceArray(int64_t n) {
        void* memory = nullptr;
        REQUIRE_CUDA(cudaMalloc(&memory, static_cast<std::size_t>(n) * sizeof(Element)));
        data_ = static_cast<Element*>(memory);
    }
    // Has these elements once `stream` has been synchronised.
    DeviceArray(const std::vector<Element>& elements, cudaStream_t stream)
        : DeviceArray(static_cast<int64_t>(elements.size())) {
        REQUIRE_CUDA(
            cudaMemcpyAsync(data_, elements.data(), elements.size() * sizeof(Element), cudaMemcpyHostToDevice, stream));
        REQUIRE_CUDA(cudaStreamSynchronize(stream));
    }
    ~DeviceArray() { static_cast<void>(cudaFree(data_)); }
    DeviceArray(const DeviceArray&) = delete;
    DeviceArray& operator=(const DeviceArray&) = delete;

    Element* data() const { return data_; }
    std::vector<Element> read(int64_t n, cudaStream_t stream) const {
        std::vector<Element> elements(static_cast<std::size_t>(n));
        REQUIRE_CUDA(
            cudaMemcpyAsync(elements.data(), data_, elements.size() * sizeof(Element), cudaMemcpyDeviceToHost, stream));
        REQUIRE_CUDA(cudaStreamSynchronize(stream));
        return elements;
    }

 private:
    Element* data_;
};

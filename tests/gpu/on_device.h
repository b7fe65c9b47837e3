// Arrays of programs that run on a real device.
#pragma once

#include <cuda_runtime.h>

#include <vector>

#include "require.h"

// An array in device memory.
template <class Element>
class OnDevice {
 public:
    explicit OnDevice(std::size_t n) : n_(n) {
        void* memory = nullptr;
        REQUIRE(cudaMalloc(&memory, n * sizeof(Element)) == cudaSuccess);
        data_ = static_cast<Element*>(memory);
    }
    ~OnDevice() { static_cast<void>(cudaFree(data_)); }
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;

    Element* data() { return data_; }
    void write(const std::vector<Element>& from, cudaStream_t stream) {
        REQUIRE(from.size() <= n_);
        REQUIRE(cudaMemcpyAsync(data_, from.data(), from.size() * sizeof(Element), cudaMemcpyHostToDevice, stream) ==
                cudaSuccess);
        REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    }
    std::vector<Element> read(std::size_t n, cudaStream_t stream) {
        std::vector<Element> to(n);
        REQUIRE(cudaMemcpyAsync(to.data(), data_, n * sizeof(Element), cudaMemcpyDeviceToHost, stream) == cudaSuccess);
        REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
        return to;
    }

 private:
    std::size_t n_;
    Element* data_;
};

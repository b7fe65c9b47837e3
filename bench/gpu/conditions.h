// The state of a device before a timed call.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

class Conditions {
 public:
    explicit Conditions(cudaStream_t stream);
    ~Conditions();
    Conditions(const Conditions&) = delete;
    Conditions& operator=(const Conditions&) = delete;

    // Each enqueues some 100 us of work. The host enqueues the call meanwhile, so the time between two events is the
    // device's time alone.

    // Leaves the caches unchanged.
    void busy() const;
    // Fills the L2 with other memory, and the instruction caches with another kernel.
    void cold() const;

 private:
    cudaStream_t stream_;
    int n_multiprocessors_ = 0;
    std::size_t n_bytes_;  // more than the L2 holds
    void* memory_ = nullptr;
    void* results_ = nullptr;  // of kernels
};

// An empty kernel: the cost of any launch.
cudaError_t launch_empty_kernel(cudaStream_t stream);

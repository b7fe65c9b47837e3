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

    // busy() and cold() enqueue some 100 us of work, during which the host enqueues the timed call. So the time between
    // two events around the call is the device's time alone.

    // Leaves the caches unchanged.
    void busy() const;
    // Fills the L2 with other memory, and the instruction caches with another kernel.
    void cold() const;

 private:
    cudaStream_t stream_;
    int n_multiprocessors_ = 0;
    std::size_t n_bytes_;  // more than the L2 holds
    void* memory_ = nullptr;
    void* results_ = nullptr;  // written by kernels
};

// An empty kernel: the cost of any launch.
cudaError_t launch_empty_kernel(cudaStream_t stream);

// What a device is like before a call that is timed.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

class Conditions {
 public:
    explicit Conditions(cudaStream_t stream);
    ~Conditions();
    Conditions(const Conditions&) = delete;
    Conditions& operator=(const Conditions&) = delete;

    // Each queues work of some 100 us, so that by the time it is done the host has queued the call, and what is timed
    // between two events is the device's time alone.

    // The caches hold what they held.
    void busy() const;
    // The L2 holds other memory, and the caches of instructions another kernel.
    void cold() const;

 private:
    cudaStream_t stream_;
    int n_multiprocessors_ = 0;
    std::size_t n_bytes_;  // more than the L2 holds
    void* memory_ = nullptr;
    void* results_ = nullptr;  // of kernels
};

// One that does nothing: what any launch takes.
cudaError_t launch_empty_kernel(cudaStream_t stream);

// Where kernels meet the CUDA language. They are ordinary CUDA C++; only what is written here has a second form in the
// test builds that run kernels on the host.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/runtime/device.h"

// A variable in the shared memory of the block.
#if !defined(PER_SHARED)
#define PER_SHARED(type, name) __shared__ type name
#endif

namespace per::cuda {

inline constexpr unsigned warp_size = 32;
inline constexpr unsigned all_lanes = ~0u;

// The block of most kernels, and their largest grid. A grid with more work than threads goes over it in steps.
inline constexpr int n_threads = 256;
inline constexpr int64_t n_warps = n_threads / warp_size;
inline constexpr int64_t max_blocks = 1024;

// Blocks for n units of work, at least one; a block does n_each at a time.
inline int64_t blocks_for(int64_t n, int64_t n_each = n_threads, int64_t most = max_blocks) {
    const int64_t n_blocks = (n + n_each - 1) / n_each;
    return n_blocks < 1 ? 1 : n_blocks < most ? n_blocks : most;
}

__device__ __forceinline__ unsigned lane_of_thread() {
    return threadIdx.x % warp_size;
}

// The language has atomics for unsigned long long, which on Linux is another type than uint64_t.
__device__ __forceinline__ uint64_t atomic_add(uint64_t* at, uint64_t value) {
    return atomicAdd(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(value));
}

__device__ __forceinline__ void atomic_add(int64_t* at, int64_t value) {
    atomic_add(reinterpret_cast<uint64_t*>(at), static_cast<uint64_t>(value));
}

// Counts a block, and returns how many were before it. What these wrote can be read from then on.
__device__ __forceinline__ uint32_t arrive(uint32_t* n_arrived) {
    return __nv_atomic_fetch_add(n_arrived, 1u, __NV_ATOMIC_ACQ_REL, __NV_THREAD_SCOPE_DEVICE);
}

// Queues a kernel: the only place that does.
template <class... Parameters, class... Arguments>
void launch(cudaStream_t stream, int64_t n_blocks, int n_threads, void (*kernel)(Parameters...),
            const Arguments&... arguments) {
    // Grid, block, bytes of dynamic shared memory, stream, attributes. The names of the first two members are those of
    // built-in variables.
    const cudaLaunchConfig_t config = {
        dim3(static_cast<unsigned>(n_blocks)), dim3(static_cast<unsigned>(n_threads)), 0, stream, nullptr, 0};
    check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), "launching a kernel");
}

// Loads kernels, as loading them at their first launch could synchronise.
template <class... Kernels>
void load_kernels(Kernels... kernels) {
    cudaFuncAttributes attributes;
    (check(cudaFuncGetAttributes(&attributes, kernels), "loading a kernel"), ...);
}

}  // namespace per::cuda

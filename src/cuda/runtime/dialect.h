// The parts of the CUDA language that have a second form in the test builds, which run kernels on the host. All else in
// kernels is ordinary CUDA C++.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/runtime/device.h"
#include "rules/host_device.h"

// A variable in the shared memory of the block.
#if !defined(PER_SHARED)
#define PER_SHARED(type, name) __shared__ type name
#endif

// A device function that kernels call rather than inline: code that they rarely need, or large code with several
// callers. Small kernels wait less, since code that is not in the cache must be loaded from memory. An argument that is
// passed by reference must lie in memory. So a kernel passes its own variables, which are in registers, by value.
#if !defined(PER_OUT_OF_LINE)
#define PER_OUT_OF_LINE inline __device__ __noinline__
#endif

// Keeps a loop from being unrolled. It is for loops that mostly run once or twice and whose rounds wait for each other.
#if !defined(PER_ROLLED)
#define PER_ROLLED _Pragma("unroll 1")
#endif

// A block that waits for others gives up after this many polls: about half a minute, at some 0.4 us each (estimated). A
// grid does not poll while it is preempted by another program.
#if !defined(PER_MAX_POLLS)
#define PER_MAX_POLLS (1u << 26)
#endif

// Tells the compiler that the condition holds.
#if !defined(PER_ASSUME)
#define PER_ASSUME(condition) __builtin_assume(condition)
#endif

namespace per::cuda {

inline constexpr unsigned warp_size = 32;
inline constexpr unsigned all_lanes = ~0u;

// Block size of most kernels, and the largest grid. Grids with more work than threads loop over it.
inline constexpr int n_threads = 256;
inline constexpr int64_t n_warps = n_threads / warp_size;
inline constexpr int64_t max_blocks = 1024;

// A grid of one dimension.
struct Grid {
    int64_t n_blocks;
    int block_size = n_threads;
};

// The number of blocks for n units of work, at least one; a block does n_each at a time.
inline int64_t blocks_for(int64_t n, int64_t n_each = n_threads, int64_t most = max_blocks) {
    const int64_t n_blocks = (n + n_each - 1) / n_each;
    return n_blocks < 1 ? 1 : n_blocks < most ? n_blocks : most;
}

__device__ __forceinline__ unsigned lane_of_thread() {
    return threadIdx.x % warp_size;
}

// The sum of the values of the lanes up to this one. The whole warp calls it.
__device__ __forceinline__ uint64_t prefix_sum(uint64_t value) {
#if defined(__CUDACC__)
    // A shuffle also tells whether there is a lane to take from, and the sum of the lower halves carries.
    asm volatile("{ .reg .pred p; .reg .b32 l; .reg .b32 h; .reg .b32 m; .reg .b32 n; mov.b64 {l, h}, %0;"
#define PER_SCAN_STEP(distance)                                                        \
    "shfl.sync.up.b32 m|p, l, " #distance ", 0, -1; shfl.sync.up.b32 n, h, " #distance \
    ", 0, -1;"                                                                         \
    "@p add.cc.u32 l, l, m; @p addc.u32 h, h, n;"
                 PER_SCAN_STEP(1) PER_SCAN_STEP(2) PER_SCAN_STEP(4) PER_SCAN_STEP(8) PER_SCAN_STEP(16)
#undef PER_SCAN_STEP
                     "mov.b64 %0, {l, h}; }"
                 : "+l"(value));
#else
    for (unsigned distance = 1; distance < warp_size; distance *= 2) {
        const uint64_t before = __shfl_up_sync(all_lanes, value, distance);
        if (lane_of_thread() >= distance) value += before;
    }
#endif
    return value;
}

// Adds to a number in global memory. In shared memory this would be a loop of compare-and-exchange, in which threads
// that add to the same number wait for each other; use SharedSum there. CUDA has atomics for unsigned long long, which
// on Linux is another type than uint64_t.
__device__ __forceinline__ uint64_t atomic_add(uint64_t* at, uint64_t value) {
    PER_ASSUME(__isGlobal(at));
    return atomicAdd(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(value));
}

__device__ __forceinline__ void atomic_add(int64_t* at, int64_t value) {
    atomic_add(reinterpret_cast<uint64_t*>(at), static_cast<uint64_t>(value));
}

__device__ __forceinline__ void atomic_max(int64_t* at, int64_t value) {
    atomicMax(reinterpret_cast<unsigned long long*>(at),
              static_cast<unsigned long long>(value));  // neither is negative
}

// Adds unless there is nothing to add.
template <class Number, class Value>
__device__ __forceinline__ void add_if_any(Number* at, Value value) {
    if (value != 0) atomic_add(at, static_cast<Number>(value));
}

template <class Number>
__device__ __forceinline__ Number smaller(Number a, Number b) {
    return b < a ? b : a;
}
template <class Number>
__device__ __forceinline__ Number larger(Number a, Number b) {
    return a > b ? a : b;
}

// A sum modulo 2^64 in shared memory, where only 32 bits can be added without a loop.
struct SharedSum {
    uint32_t low;
    uint32_t high;

    // Valid once a barrier has followed the last addition.
    __device__ __forceinline__ uint64_t value() const { return uint64_t{high} << 32 | low; }
};

// The sum is exact in any order, as each addition to the lower half that wraps carries.
__device__ __forceinline__ void atomic_add(SharedSum& sum, uint64_t value) {
    const uint32_t low = static_cast<uint32_t>(value);
    const uint32_t before = low == 0 ? 0 : atomicAdd(&sum.low, low);
    const uint32_t carry = before + low < before;
    const uint32_t high = static_cast<uint32_t>(value >> 32) + carry;
    if (high != 0) atomicAdd(&sum.high, high);
}

// Adds n to the number of blocks (or other things) that have arrived, and returns the number before. The caller can
// then read what those that arrived earlier had written.
__device__ __forceinline__ uint32_t arrive(uint32_t* n_arrived, uint32_t n = 1) {
    return __nv_atomic_fetch_add(n_arrived, n, __NV_ATOMIC_ACQ_REL, __NV_THREAD_SCOPE_DEVICE);
}

// The same in two halves, with time for other work in between. Only the last block to arrive calls end_arrival(), which
// resets the number; the block can then read what the others had written.
__device__ __forceinline__ uint32_t begin_arrival(uint32_t* n_arrived) {
    return __nv_atomic_fetch_add(n_arrived, 1, __NV_ATOMIC_RELEASE, __NV_THREAD_SCOPE_DEVICE);
}
__device__ __forceinline__ void end_arrival(uint32_t* n_arrived) {
    static_cast<void>(__nv_atomic_exchange_n(n_arrived, 0u, __NV_ATOMIC_ACQUIRE, __NV_THREAD_SCOPE_DEVICE));
}

// A barrier for the blocks of a grid. If two grids use it at the same time, such as a graph launched beside a call of
// the same handle, they count each other's blocks, and some would wait forever. So a block that counts too many, or has
// waited for PER_MAX_POLLS, marks the meeting as broken: no block waits there from then on, the content of the handle is
// undefined, and require_ordered() throws.
struct Meeting {
    static constexpr uint32_t turn = 1u << 31;          // changes when a meeting ends
    static constexpr uint32_t broken = 1u << 30;        // stays set
    static constexpr uint32_t n_arrived = broken - 1u;  // blocks; 0 where none waits

    uint32_t bits;

    PER_HOST_DEVICE bool is_broken() const { return (bits & broken) != 0; }
};

// A block arrives, and waits until the meeting has ended. Returns true at once to the last block, which then ends it.
// Both functions are out of line, as a block that is alone needs neither.
PER_OUT_OF_LINE bool is_last_to_arrive(Meeting& meeting) {
    const uint32_t before = arrive(&meeting.bits);
    if ((before & Meeting::n_arrived) == gridDim.x - 1) return true;
    const auto goes_on = [&] {
        const uint32_t now = __nv_atomic_load_n(&meeting.bits, __NV_ATOMIC_ACQUIRE, __NV_THREAD_SCOPE_DEVICE);
        return ((now ^ before) & (Meeting::turn | Meeting::broken)) == 0;
    };
    for (uint32_t n_polls = 1; (before & Meeting::broken) == 0 && goes_on(); ++n_polls)
        if (n_polls == PER_MAX_POLLS) atomicOr(&meeting.bits, Meeting::broken);
    return false;
}

// The last block to arrive calls it. If blocks of another grid have changed the number, the subtraction may clear the
// bits above it, so the meeting is then marked as broken, even if it was before.
PER_OUT_OF_LINE void end_meeting(Meeting& meeting) {
    const uint32_t before = arrive(&meeting.bits, Meeting::turn - gridDim.x);
    if ((before & Meeting::n_arrived) != gridDim.x) atomicOr(&meeting.bits, Meeting::broken);
}

// No thread of the grid continues before all have arrived and one of them has called at_end(). Writes before the
// meeting are visible after it. The kernel must be launched by launch_together().
template <class AtEnd>
__device__ __forceinline__ void meet(Meeting& meeting, const AtEnd& at_end) {
    __syncthreads();
    if (threadIdx.x == 0) {
        const bool is_alone = gridDim.x == 1;
        if (is_alone || is_last_to_arrive(meeting)) {
            at_end();
            if (!is_alone) end_meeting(meeting);
        }
    }
    __syncthreads();
}

__device__ __forceinline__ void meet(Meeting& meeting) {
    meet(meeting, [] {});
}

// ---- launches

// Queues a kernel; the attribute may be NULL. All launches go through this function.
template <class... Parameters, class... Arguments>
void launch_with(cudaLaunchAttribute* attribute, cudaStream_t stream, int64_t n_blocks, int n_threads,
                 void (*kernel)(Parameters...), const Arguments&... arguments) {
    // The members are grid, block, bytes of dynamic shared memory, stream and attributes. The first two have the names
    // of built-in variables, so that designators cannot be used.
    const cudaLaunchConfig_t config = {
        dim3(static_cast<unsigned>(n_blocks)), dim3(static_cast<unsigned>(n_threads)), 0, stream, attribute,
        attribute == nullptr ? 0u : 1u};
    check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), "launching a kernel");
}

template <class... Parameters, class... Arguments>
void launch(cudaStream_t stream, int64_t n_blocks, int n_threads, void (*kernel)(Parameters...),
            const Arguments&... arguments) {
    launch_with(nullptr, stream, n_blocks, n_threads, kernel, arguments...);
}

// Queues a kernel that calls meet(). Its blocks must all run at the same time, so there must be no more of them than the
// device has multiprocessors.
template <class... Parameters, class... Arguments>
void launch_together(cudaStream_t stream, const Grid& grid, void (*kernel)(Parameters...),
                     const Arguments&... arguments) {
    if (grid.n_blocks == 1) return launch(stream, 1, grid.block_size, kernel, arguments...);
    cudaLaunchAttribute together = {};
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    launch_with(&together, stream, grid.n_blocks, grid.block_size, kernel, arguments...);
}

// Loads kernels now, as loading one at its first launch could synchronise.
template <class... Kernels>
void load_kernels(Kernels... kernels) {
    cudaFuncAttributes attributes;
    (check(cudaFuncGetAttributes(&attributes, kernels), "loading a kernel"), ...);
}

}  // namespace per::cuda

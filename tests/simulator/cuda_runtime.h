// Replaces NVIDIA's header of this name if kernels are compiled by g++ or clang++: the parts of the language and of the
// runtime that libper and its tests use. Test builds only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "grid.h"
#include "translation.h"

// ---------------------------------------------------------------------------------------------------- language
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define threadIdx (::simulator::place->thread)
#define blockIdx (::simulator::place->block)
#define blockDim (::simulator::place->block_size)
#define gridDim (::simulator::place->grid_size)

#define PER_OUT_OF_LINE inline __attribute__((noinline))
#define PER_ROLLED
#define PER_MAX_POLLS (1u << 21)

#define PER_ASSUME(condition) \
    (static_cast<bool>(condition) ? void() : ::simulator::fail("does not hold, though it is assumed: " #condition))

// Each block has a separate copy, of exact size on the heap, so that ASan checks its ends.
#define PER_SHARED(type, name) \
    static char name##_key;    \
    type& name = *static_cast<type*>(::simulator::shared_memory(&name##_key, sizeof(type)))

namespace simulator {

template <class T>
uint64_t to_bits(T value) {
    static_assert(sizeof(T) <= 8, "a lane hands on 8 bytes at most");
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    return bits;
}

template <class T>
T from_bits(uint64_t bits) {
    T value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

template <class T>
T shuffle(const char* kind, unsigned mask, T value, unsigned source) {
    uint64_t values[32];
    exchange(kind, mask, to_bits(value), values);
    if ((mask >> source & 1) == 0) fail("shuffle: the lane read from is not in the mask");
    return from_bits<T>(values[source]);
}

template <class T, class Reduce>
T reduce(const char* kind, unsigned mask, T value, Reduce reduce) {
    uint64_t values[32];
    exchange(kind, mask, to_bits(value), values);
    T reduced = value;
    for (unsigned i = 0; i < 32; ++i)
        if ((mask >> i & 1) != 0 && i != place->lane) reduced = reduce(reduced, from_bits<T>(values[i]));
    return reduced;
}

// CUDA's atomics do not order other memory. They are relaxed here, so that TSan assumes no such order.
template <class T, class Combine>
T atomic_update(T* at, T value, Combine combine) {
    T old;
    __atomic_load(at, &old, __ATOMIC_RELAXED);
    T wanted = combine(old, value);
    while (!__atomic_compare_exchange(at, &old, &wanted, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        wanted = combine(old, value);
    return old;
}

}  // namespace simulator

inline void __syncthreads() {
    simulator::block_barrier();
}
inline void __syncwarp(unsigned mask = ~0u) {
    uint64_t values[32];
    simulator::exchange("__syncwarp", mask, 0, values);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int source) {
    return simulator::shuffle("__shfl_sync", mask, value, static_cast<unsigned>(source) & 31);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance) {
    const unsigned lane = simulator::place->lane;
    return simulator::shuffle("__shfl_up_sync", mask, value, lane < distance ? lane : lane - distance);
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
    uint64_t values[32];
    simulator::exchange("__ballot_sync", mask, predicate != 0, values);
    unsigned ballot = 0;
    for (unsigned i = 0; i < 32; ++i)
        if ((mask >> i & 1) != 0 && values[i] != 0) ballot |= 1u << i;
    return ballot;
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned value) {
    return simulator::reduce("__reduce_add_sync", mask, value, [](unsigned a, unsigned b) { return a + b; });
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value) {
    return simulator::reduce("__reduce_max_sync", mask, value, [](unsigned a, unsigned b) { return a > b ? a : b; });
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned value) {
    return simulator::reduce("__reduce_min_sync", mask, value, [](unsigned a, unsigned b) { return a < b ? a : b; });
}

// The memory of other blocks is not checked.
inline bool __isGlobal(const void* memory) {
    return !simulator::is_shared_memory(memory);
}

inline int __ffs(int value) {
    return __builtin_ffs(value);
}
inline int __popc(unsigned value) {
    return __builtin_popcount(value);
}
inline unsigned __float_as_uint(float value) {
    return static_cast<unsigned>(simulator::to_bits(value));
}
inline float __uint_as_float(unsigned bits) {
    return simulator::from_bits<float>(bits);
}

template <class T>
T atomicAdd(T* at, std::type_identity_t<T> value) {
    return simulator::atomic_update(at, value, [](T a, T b) { return static_cast<T>(a + b); });
}
template <class T>
T atomicMax(T* at, std::type_identity_t<T> value) {
    return simulator::atomic_update(at, value, [](T a, T b) { return a > b ? a : b; });
}
template <class T>
T atomicMin(T* at, std::type_identity_t<T> value) {
    return simulator::atomic_update(at, value, [](T a, T b) { return a < b ? a : b; });
}
template <class T>
T atomicExch(T* at, std::type_identity_t<T> value) {
    return simulator::atomic_update(at, value, [](T, T b) { return b; });
}
template <class T>
T atomicOr(T* at, std::type_identity_t<T> value) {
    return simulator::atomic_update(at, value, [](T a, T b) { return a | b; });
}
template <class T>
T atomicAnd(T* at, std::type_identity_t<T> value) {
    return simulator::atomic_update(at, value, [](T a, T b) { return a & b; });
}
template <class T>
T atomicCAS(T* at, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
    __atomic_compare_exchange(at, &expected, &value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}

// The atomics that also order other memory.
enum {
    __NV_ATOMIC_ACQ_REL = __ATOMIC_ACQ_REL,
    __NV_ATOMIC_ACQUIRE = __ATOMIC_ACQUIRE,
    __NV_ATOMIC_RELEASE = __ATOMIC_RELEASE
};
enum { __NV_THREAD_SCOPE_DEVICE };
template <class T>
T __nv_atomic_fetch_add(T* at, std::type_identity_t<T> value, int order, int) {
    return __atomic_fetch_add(at, value, order);
}
template <class T>
T __nv_atomic_exchange_n(T* at, std::type_identity_t<T> value, int order, int) {
    return __atomic_exchange_n(at, value, order);
}
// A thread that reads this way waits for another block.
template <class T>
T __nv_atomic_load_n(const T* at, int order, int) {
    simulator::wait_for_others();
    return __atomic_load_n(at, order);
}

// ----------------------------------------------------------------------------------------------------- runtime
#define CUDART_VERSION 13000

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidMemcpyDirection = 21,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorIllegalAddress = 700,
    cudaErrorHostMemoryAlreadyRegistered = 712,
    cudaErrorHostMemoryNotRegistered = 713,
    cudaErrorCooperativeLaunchTooLarge = 720,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901,
    cudaErrorStreamCaptureUnjoined = 904,
    cudaErrorStreamCaptureIsolation = 905,
    cudaErrorStreamCaptureImplicit = 906,
    cudaErrorCapturedEvent = 907
};

namespace simulator {
struct StreamHandle;
struct Event;
struct Graph;
}  // namespace simulator
typedef simulator::StreamHandle* cudaStream_t;
typedef simulator::Event* cudaEvent_t;
typedef simulator::Graph* cudaGraph_t;
typedef simulator::Graph* cudaGraphExec_t;
#define cudaStreamLegacy (reinterpret_cast<cudaStream_t>(1))
#define cudaStreamPerThread (reinterpret_cast<cudaStream_t>(2))

enum { cudaHostRegisterMapped = 2 };
enum { cudaStreamDefault = 0, cudaStreamNonBlocking = 1 };
enum { cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2 };
enum cudaMemcpyKind {
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault = 4
};
enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal = 0,
    cudaStreamCaptureModeThreadLocal = 1,
    cudaStreamCaptureModeRelaxed = 2
};
enum cudaStreamCaptureStatus {
    cudaStreamCaptureStatusNone = 0,
    cudaStreamCaptureStatusActive = 1,
    cudaStreamCaptureStatusInvalidated = 2
};
enum cudaDeviceAttr {
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrL2CacheSize = 38,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrSingleToDoublePrecisionPerfRatio = 87,
    cudaDevAttrPageableMemoryAccess = 88,
    cudaDevAttrCanUseHostPointerForRegisteredMem = 91
};
enum cudaMemoryType {
    cudaMemoryTypeUnregistered = 0,
    cudaMemoryTypeHost = 1,
    cudaMemoryTypeDevice = 2,
    cudaMemoryTypeManaged = 3
};
struct cudaPointerAttributes {
    cudaMemoryType type;
    int device;
};
struct cudaFuncAttributes {
    int maxThreadsPerBlock;
};
enum cudaLaunchAttributeID { cudaLaunchAttributeCooperative = 2 };
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    union {
        int cooperative;
    } val;
};
struct cudaLaunchConfig_t {
    dim3 grid, block;  // in NVIDIA's header: gridDim, blockDim
    std::size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute* attrs;
    unsigned numAttrs;
};

const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaMalloc(void** memory, std::size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaMallocHost(void** memory, std::size_t bytes);
cudaError_t cudaFreeHost(void* memory);
cudaError_t cudaHostRegister(void* memory, std::size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void* memory);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id);
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags = 0);
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end);
cudaError_t cudaDeviceSynchronize();

// The functions of the driver that libper looks up at run time.
enum { cudaEnableDefault = 0 };
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess = 0, cudaDriverEntryPointSymbolNotFound = 1 };
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                             unsigned long long flags, cudaDriverEntryPointQueryResult* found);

namespace simulator {
cudaError_t enqueue_grid(const cudaLaunchConfig_t& config, std::function<void()> call);
cudaError_t attributes_of_kernel(cudaFuncAttributes* attributes);
}  // namespace simulator

template <class... Parameters>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*)(Parameters...)) {
    return simulator::attributes_of_kernel(attributes);
}

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
    static_assert((sizeof(Parameters) + ... + 0) <= 4096, "more takes a driver of CUDA 12.1");
    // A launch copies its arguments.
    std::tuple<Parameters...> copies(std::forward<Arguments>(arguments)...);
    const void* const name = reinterpret_cast<const void*>(kernel);
    if (const simulator::TranslatedKernel* const translated = simulator::translation_of(name)) {
        const auto block = std::make_from_tuple<simulator::ParameterBlock<Parameters...>>(copies);
        if (translated->parameter_bytes != block.n_bytes())
            simulator::fail("a kernel's parameters are not those of its translation");
        return simulator::enqueue_grid(*config, [translated, block] { translated->run(block.bytes()); });
    }
    return simulator::enqueue_grid(*config, [kernel, copies] { std::apply(kernel, copies); });
}

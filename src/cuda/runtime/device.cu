#include "cuda/runtime/device.h"

#include "cuda/runtime/check.h"
#include "rows/error.h"

namespace per::cuda {
namespace {

constexpr int lowest_capability = 80;  // sm_80: reductions of a warp in one instruction

[[noreturn]] void throw_no_device(cudaError_t error) {
    int driver = 0;
    int runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (error == cudaErrorInsufficientDriver && driver == 0)
        throw Error(PER_ERROR_NO_DEVICE, "device is PER_CUDA: this machine has no NVIDIA driver (%s)",
                    cudaGetErrorName(error));
    if (error == cudaErrorInsufficientDriver)
        throw Error(PER_ERROR_NO_DEVICE,
                    "device is PER_CUDA: the driver of this machine supports CUDA %d.%d; libper was built with %d.%d",
                    driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    throw Error(PER_ERROR_NO_DEVICE, "device is PER_CUDA: no CUDA device: %s: %s", cudaGetErrorName(error),
                cudaGetErrorString(error));
}

}  // namespace

void require_device(int32_t device_index) {
    // A call that fails leaves the count as it was.
    int n_devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&n_devices);
    if (error != cudaSuccess) throw_no_device(error);
    if (n_devices == 0) throw_no_device(cudaErrorNoDevice);
    if (device_index >= n_devices)
        throw Error(PER_ERROR_NO_DEVICE, "device_index is %d: this machine has the CUDA devices 0 .. %d",
                    static_cast<int>(device_index), n_devices - 1);
    int major = 0;
    int minor = 0;
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device_index), "asking for the device");
    check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device_index), "asking for the device");
    if (10 * major + minor < lowest_capability)
        throw Error(PER_ERROR_NO_DEVICE,
                    "device is PER_CUDA: CUDA device %d has compute capability %d.%d; libper needs 8.0 or later",
                    static_cast<int>(device_index), major, minor);
}

CurrentDevice::CurrentDevice(int device) {
    check(cudaGetDevice(&before_), "asking for the current device");
    if (before_ == device) return;
    check(cudaSetDevice(device), "choosing the device");
    changed_ = true;
}

CurrentDevice::~CurrentDevice() {
    if (changed_) static_cast<void>(cudaSetDevice(before_));
}

ApartFromCaptures::ApartFromCaptures() {
    check(cudaThreadExchangeStreamCaptureMode(&mode_), "setting the capture mode");
    is_changed_ = true;
}

ApartFromCaptures::ApartFromCaptures(std::nothrow_t)
    : is_changed_(cudaThreadExchangeStreamCaptureMode(&mode_) == cudaSuccess) {}

ApartFromCaptures::~ApartFromCaptures() {
    if (is_changed_) static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_));
}

void wait_for(cudaStream_t stream) {
    const ApartFromCaptures apart;
    check(cudaStreamSynchronize(stream), "waiting for the stream");
}

void wait_for(cudaStream_t stream, std::nothrow_t) {
    const ApartFromCaptures apart(std::nothrow);
    static_cast<void>(cudaStreamSynchronize(stream));
}

void require_reachable(const char* argument, const void* memory) {
    if (memory == nullptr) return;
    cudaPointerAttributes attributes;
    check(cudaPointerGetAttributes(&attributes, memory), "asking where an array lies");
    if (attributes.type != cudaMemoryTypeUnregistered) return;
    int device = 0;
    int reads_pageable = 0;
    check(cudaGetDevice(&device), "asking for the current device");
    check(cudaDeviceGetAttribute(&reads_pageable, cudaDevAttrPageableMemoryAccess, device), "asking for the device");
    if (reads_pageable != 0) return;
    throw Error(PER_ERROR_INVALID_ARGUMENT,
                "%s is %p: in host memory that is not pinned, and the device cannot reach it: must be memory of the "
                "device, managed or pinned",
                argument, memory);
}

template <MemoryKind kind>
Memory<kind>::Memory(std::size_t bytes) {
    const ApartFromCaptures apart;
    void* memory;
    if constexpr (kind == MemoryKind::device)
        check(cudaMalloc(&memory, bytes), "allocating memory of the device");
    else
        check(cudaMallocHost(&memory, bytes), "allocating pinned memory");
    data_ = static_cast<std::byte*>(memory);
}

template <MemoryKind kind>
Memory<kind>::~Memory() {
    if (data_ == nullptr) return;
    const ApartFromCaptures apart(std::nothrow);
    // After a fault of the device freeing fails too; the memory went with the device's context.
    static_cast<void>(kind == MemoryKind::device ? cudaFree(data_) : cudaFreeHost(data_));
}

template class Memory<MemoryKind::device>;
template class Memory<MemoryKind::pinned>;

}  // namespace per::cuda

#include "cuda/runtime/device.h"

#include <cuda.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>

#include "base/error.h"

namespace per::cuda {

void check(cudaError_t error, const char* doing_what) {
    if (error == cudaSuccess) return;
    const char* const why = error == cudaErrorCooperativeLaunchTooLarge
                                ? ": the context of the stream has fewer multiprocessors than the one that was current "
                                  "when the handle was created"
                                : "";
    throw Error(error == cudaErrorMemoryAllocation ? PER_ERROR_OUT_OF_MEMORY : PER_ERROR_CUDA, "%s: %s: %s%s",
                doing_what, cudaGetErrorName(error), cudaGetErrorString(error), why);
}

namespace {

constexpr int min_capability = 80;  // sm_80: reductions of a warp in one instruction

[[noreturn]] void throw_no_device(cudaError_t error) {
    int driver = 0;
    cudaDriverGetVersion(&driver);
    if (error == cudaErrorInsufficientDriver && driver == 0)
        throw Error(PER_ERROR_NO_DEVICE, "device is PER_CUDA: this machine has no NVIDIA driver (%s)",
                    cudaGetErrorName(error));
    if (error == cudaErrorInsufficientDriver)
        throw Error(PER_ERROR_NO_DEVICE,
                    "device is PER_CUDA: the driver of this machine is for CUDA %d.%d; libper was built with CUDA "
                    "%d.%d, and needs one for CUDA %d.0 or later",
                    driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10,
                    CUDART_VERSION / 1000);
    throw Error(PER_ERROR_NO_DEVICE, "device is PER_CUDA: no CUDA device: %s: %s", cudaGetErrorName(error),
                cudaGetErrorString(error));
}

int attribute_of(int device, cudaDeviceAttr attribute) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, attribute, device), "asking for the device");
    return value;
}

int attribute_of_current(cudaDeviceAttr attribute) {
    return attribute_of(current_device(), attribute);
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
    const int major = attribute_of(device_index, cudaDevAttrComputeCapabilityMajor);
    const int minor = attribute_of(device_index, cudaDevAttrComputeCapabilityMinor);
    if (10 * major + minor < min_capability)
        throw Error(PER_ERROR_NO_DEVICE,
                    "device is PER_CUDA: CUDA device %d has compute capability %d.%d; libper needs 8.0 or later",
                    static_cast<int>(device_index), major, minor);
}

int current_device() {
    int device = 0;
    check(cudaGetDevice(&device), "asking for the current device");
    return device;
}

namespace {

// Functions of the driver that the runtime does not offer. They are looked up when they are needed: libper.so is not
// linked with the driver, and loads without one.
struct DriverFunctions {
    decltype(&cuDevicePrimaryCtxRetain) retain_primary;
    decltype(&cuCtxPushCurrent) push;
    decltype(&cuCtxPopCurrent) pop;
    decltype(&cuCtxGetCurrent) current;
    decltype(&cuCtxGetDevResource) resource;
};

template <class Function>
void find_function(const char* name, Function*& function) {
    constexpr unsigned as_of_cuda = 12040;
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    check(cudaGetDriverEntryPointByVersion(name, &found, as_of_cuda, cudaEnableDefault, &result),
          "asking for a function of the driver");
    if (result != cudaDriverEntryPointSuccess)
        throw Error(PER_ERROR_CUDA, "the driver of this machine has no %s", name);
    function = reinterpret_cast<Function*>(found);
}

const DriverFunctions& driver() {
    static const DriverFunctions functions = [] {
        DriverFunctions found;
        find_function("cuDevicePrimaryCtxRetain", found.retain_primary);
        find_function("cuCtxPushCurrent", found.push);
        find_function("cuCtxPopCurrent", found.pop);
        find_function("cuCtxGetCurrent", found.current);
        find_function("cuCtxGetDevResource", found.resource);
        return found;
    }();
    return functions;
}

// Errors of the driver have the numbers of the runtime's.
void check_driver(CUresult result, const char* doing_what) {
    check(static_cast<cudaError_t>(result), doing_what);
}

// The runtime's context for the device. It is created on first use and kept, as the runtime keeps it.
CUcontext primary_context(int device) {
    static std::mutex mutex;
    static std::map<int, CUcontext> contexts;
    const std::lock_guard guard(mutex);
    if (const auto found = contexts.find(device); found != contexts.end()) return found->second;
    CUcontext context;
    check_driver(driver().retain_primary(&context, device), "choosing the device");
    contexts.emplace(device, context);
    return context;
}

}  // namespace

int32_t n_multiprocessors() {
    const int of_device = attribute_of_current(cudaDevAttrMultiProcessorCount);
    CUcontext context = nullptr;
    check_driver(driver().current(&context), "asking for the context");
    if (context == nullptr) return of_device;
    CUdevResource resource = {};
    check_driver(driver().resource(context, &resource, CU_DEV_RESOURCE_TYPE_SM), "asking for the multiprocessors");
    return std::min(of_device, static_cast<int>(resource.sm.smCount));
}

bool has_fast_float64() {
    return attribute_of_current(cudaDevAttrSingleToDoublePrecisionPerfRatio) <= 4;
}

CurrentDevice::CurrentDevice(int device) {
    if (current_device() == device) return;
    check_driver(driver().push(primary_context(device)), "choosing the device");
    is_pushed_ = true;
}

CurrentDevice::CurrentDevice(int device, std::nothrow_t) {
    try {
        if (current_device() == device) return;
        is_pushed_ = driver().push(primary_context(device)) == CUDA_SUCCESS;
    } catch (...) {
    }
}

CurrentDevice::~CurrentDevice() {
    if (!is_pushed_) return;
    CUcontext context;
    static_cast<void>(driver().pop(&context));
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

bool is_captured(cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long capture = 0;
    check(cudaStreamGetCaptureInfo(stream, &status, &capture), "asking whether the stream is captured");
    return status != cudaStreamCaptureStatusNone;
}

void wait_for(cudaStream_t stream) {
    const ApartFromCaptures apart;
    check(cudaStreamSynchronize(stream), "waiting for the stream");
}

void wait_for(cudaStream_t stream, std::nothrow_t) {
    const ApartFromCaptures apart(std::nothrow);
    static_cast<void>(cudaStreamSynchronize(stream));
}

namespace {

cudaMemoryType type_of(std::string_view argument, const void* memory) {
    cudaPointerAttributes attributes;
    check(cudaPointerGetAttributes(&attributes, memory), "asking where an array lies");
    if (attributes.type != cudaMemoryTypeDevice) return attributes.type;
    if (const int device = current_device(); attributes.device != device)
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "%.*s is %p: in the memory of CUDA device %d: must be memory of device %d, managed or pinned",
                    static_cast<int>(argument.size()), argument.data(), memory, attributes.device, device);
    return attributes.type;
}

}  // namespace

bool is_host_memory(std::string_view argument, const void* memory) {
    const cudaMemoryType type = type_of(argument, memory);
    return type == cudaMemoryTypeUnregistered || type == cudaMemoryTypeHost;
}

void require_reachable(std::string_view argument, const void* memory) {
    if (memory == nullptr || type_of(argument, memory) != cudaMemoryTypeUnregistered) return;
    if (attribute_of_current(cudaDevAttrPageableMemoryAccess) != 0) return;
    throw Error(PER_ERROR_INVALID_ARGUMENT,
                "%.*s is %p: in host memory that is not pinned, and the device cannot reach it: must be memory of the "
                "device, managed or pinned",
                static_cast<int>(argument.size()), argument.data(), memory);
}

void copy(void* to, const void* from, std::size_t n_bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    const ApartFromCaptures apart;
    check(cudaMemcpyAsync(to, from, n_bytes, kind, stream),
          kind == cudaMemcpyDeviceToHost ? "copying from the device" : "copying to the device");
}

template <class Handle, Kind kind>
Owned<Handle, kind>::~Owned() {
    if (handle_ == nullptr || process_number() != process_) return;
    const CurrentDevice current(device_, std::nothrow);
    const ApartFromCaptures apart(std::nothrow);
    // After a fault of the device this fails, and nothing is left to release: all was lost with the context.
    if constexpr (kind == Kind::stream)
        static_cast<void>(cudaStreamDestroy(handle_));
    else if constexpr (kind == Kind::event || kind == Kind::host_event)
        static_cast<void>(cudaEventDestroy(handle_));
    else if constexpr (kind == Kind::pinned_pages)
        static_cast<void>(cudaHostUnregister(handle_));
    else
        static_cast<void>(kind == Kind::device_memory ? cudaFree(handle_) : cudaFreeHost(handle_));
}

template class Owned<cudaStream_t, Kind::stream>;
template class Owned<cudaEvent_t, Kind::event>;
template class Owned<cudaEvent_t, Kind::host_event>;
template class Owned<void*, Kind::device_memory>;
template class Owned<void*, Kind::pinned_memory>;
template class Owned<void*, Kind::pinned_pages>;

PinnedPages pin_pages(const void* array, std::size_t bytes, const char* doing_what) {
    const ApartFromCaptures apart;
    const int device = current_device();
    void* const pages = const_cast<void*>(array);  // registering writes nothing
    check(cudaHostRegister(pages, bytes, cudaHostRegisterMapped), doing_what);
    return PinnedPages(device, pages);
}

bool reaches_pinned_pages() {
    return attribute_of_current(cudaDevAttrCanUseHostPointerForRegisteredMem) != 0;
}

Stream new_stream() {
    const int device = current_device();
    cudaStream_t stream;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
    return Stream(device, stream);
}

namespace {

template <Kind kind>
Owned<cudaEvent_t, kind> new_event_with(unsigned flags) {
    const int device = current_device();
    cudaEvent_t event;
    check(cudaEventCreateWithFlags(&event, flags), "making an event");
    return {device, event};
}

}  // namespace

Event new_event() {
    return new_event_with<Kind::event>(cudaEventDisableTiming);
}

HostEvent new_host_event() {
    return new_event_with<Kind::host_event>(cudaEventDisableTiming | cudaEventBlockingSync);
}

void wait_for(const HostEvent& event, const char* doing_what) {
    const ApartFromCaptures apart;
    check(cudaEventSynchronize(event.get()), doing_what);
}

void wait_for(const HostEvent& event, std::nothrow_t) {
    const ApartFromCaptures apart(std::nothrow);
    static_cast<void>(cudaEventSynchronize(event.get()));
}

namespace {

void* allocated(Kind kind, std::size_t bytes) {
    const ApartFromCaptures apart;
    const bool is_on_device = kind == Kind::device_memory;
    void* memory;
    const cudaError_t error = is_on_device ? cudaMalloc(&memory, bytes) : cudaMallocHost(&memory, bytes);
    if (error != cudaSuccess) {
        const char* const what = is_on_device ? " bytes of memory of the device" : " bytes of pinned memory";
        check(error, ("allocating " + std::to_string(bytes) + what).c_str());
    }
    return memory;
}

}  // namespace

// Asks for the current device first, so that nothing can fail between the allocation and the construction of its owner.
template <Kind kind>
Memory<kind>::Memory(std::size_t bytes) : memory_{current_device(), allocated(kind, bytes)} {}

template class Memory<Kind::device_memory>;
template class Memory<Kind::pinned_memory>;

}  // namespace per::cuda

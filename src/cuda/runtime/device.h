// A CUDA device: making it current, its memory, streams and events, and the errors of the CUDA runtime.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "system/process_number.h"

namespace per::cuda {

// Throws Error with PER_ERROR_CUDA or PER_ERROR_OUT_OF_MEMORY unless `error` is cudaSuccess. The library never calls
// cudaGetLastError(), which would take errors away from other libraries of the process.
void check(cudaError_t error, const char* doing_what);

// Throws Error with NO_DEVICE and the reason if the device does not exist or cannot be used.
void require_device(int32_t device_index);

// The current device of this thread; 0 for a thread that has not used any yet.
int current_device();

// The number of multiprocessors on which the current context runs kernels. A green context, and that of a client of
// MPS, may have fewer than the device.
int32_t n_multiprocessors();

// True if the current device has at least a quarter as many units for float64 as for float32.
bool has_fast_float64();

// Makes a device current as long as the object lives, and then restores the previous one. It uses the driver's stack of
// contexts: cudaSetDevice() creates a context on its device, which takes some 500 MB there, even if it only restores a
// device that the thread never used.
class CurrentDevice {
 public:
    explicit CurrentDevice(int device);
    // For destructors: if it fails, the current device stays.
    CurrentDevice(int device, std::nothrow_t);
    ~CurrentDevice();
    CurrentDevice(const CurrentDevice&) = delete;
    CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
    bool is_pushed_ = false;
};

// As long as it lives, allocations, waits and loads of this thread do not affect a capture of this or another thread.
// Without it they are errors while something is captured, and invalidate the capture.
class ApartFromCaptures {
 public:
    ApartFromCaptures();
    // For destructors: if it fails, so do the calls after it.
    explicit ApartFromCaptures(std::nothrow_t);
    ~ApartFromCaptures();
    ApartFromCaptures(const ApartFromCaptures&) = delete;
    ApartFromCaptures& operator=(const ApartFromCaptures&) = delete;

 private:
    cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // exchanged with that of the thread
    bool is_changed_ = false;
};

// True if work on the stream becomes part of a graph.
bool is_captured(cudaStream_t stream);

// Waits for the work on a stream that is not captured.
void wait_for(cudaStream_t stream);
void wait_for(cudaStream_t stream, std::nothrow_t);  // for destructors

// Waits for the stream at the end of the scope, also if something throws: buffers of queued copies must live that long.
struct WaitAtEnd {
    cudaStream_t stream;
    ~WaitAtEnd() { wait_for(stream, std::nothrow); }
};

// Throws Error with INVALID_ARGUMENT, naming the argument, if `memory` lies on another device, or on the host where the
// current device cannot reach it. A kernel that touches such memory faults, and the process then loses the device. NULL
// passes. It may be called while a stream is captured.
void require_reachable(std::string_view argument, const void* memory);
// True if an array lies in host memory, pinned or not, and has to be copied to the device. Throws if it lies on another
// device.
bool is_host_memory(std::string_view argument, const void* memory);

// Queues a copy between the device and the host. For memory that is not pinned the driver may wait or allocate, which
// must not invalidate a capture of another thread. The stream must not be captured.
void copy(void* to, const void* from, std::size_t n_bytes, cudaMemcpyKind kind, cudaStream_t stream);

template <class T>
void copy_to_host(T* to, const T* from, std::size_t n, cudaStream_t stream) {
    copy(to, from, n * sizeof(T), cudaMemcpyDeviceToHost, stream);
}

// Copies an array of the device to the host, and waits for the stream.
template <class T>
std::vector<T> read_array(const T* from, int64_t n, cudaStream_t stream) {
    std::vector<T> to(static_cast<std::size_t>(n));
    copy_to_host(to.data(), from, to.size(), stream);
    wait_for(stream);
    return to;
}

template <class T>
void copy_to_device(T* to, const T* from, std::size_t n, cudaStream_t stream) {
    copy(to, from, n * sizeof(T), cudaMemcpyHostToDevice, stream);
}

enum class Kind { stream, event, host_event, device_memory, pinned_memory, pinned_pages };

// Owns a handle of the device that was current when it was made, and makes that device current to release it. A forked
// child may not call CUDA, and releases nothing that its parent made.
template <class Handle, Kind kind>
class Owned {
 public:
    Owned(int device, Handle handle) noexcept : device_(device), handle_(handle) {}
    Owned(Owned&& other) noexcept
        : device_(other.device_), process_(other.process_), handle_(std::exchange(other.handle_, nullptr)) {}
    Owned& operator=(Owned&&) = delete;
    ~Owned();

    Handle get() const { return handle_; }

 private:
    int device_;
    uint32_t process_ = process_number();
    Handle handle_;
};

using Stream = Owned<cudaStream_t, Kind::stream>;
// An event for streams to wait for.
using Event = Owned<cudaEvent_t, Kind::event>;
// An event that threads of the host wait for, too. The device interrupts the host, so that a thread can sleep until
// then.
using HostEvent = Owned<cudaEvent_t, Kind::host_event>;

// Pinned pages of host memory that was allocated elsewhere and must outlive them.
using PinnedPages = Owned<void*, Kind::pinned_pages>;

// Pins the pages of an array of the host, none of which may be pinned already. The current device reaches the array by
// the host's own address if reaches_pinned_pages().
PinnedPages pin_pages(const void* array, std::size_t bytes, const char* doing_what);
bool reaches_pinned_pages();

// The stream, which does not wait for the legacy stream, and the events belong to the current device.
Stream new_stream();
Event new_event();
HostEvent new_host_event();

// Waits for the work before the last record of the event, even while other threads capture streams.
void wait_for(const HostEvent& event, const char* doing_what);
void wait_for(const HostEvent& event, std::nothrow_t);  // for destructors

// Memory of the current device, or pinned memory of the host; not initialised.
template <Kind kind>
class Memory {
 public:
    explicit Memory(std::size_t bytes);

    std::byte* data() const { return static_cast<std::byte*>(memory_.get()); }

 private:
    Owned<void*, kind> memory_;
};

using DeviceMemory = Memory<Kind::device_memory>;
using PinnedMemory = Memory<Kind::pinned_memory>;

}  // namespace per::cuda

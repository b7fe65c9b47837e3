// A CUDA device: choosing it, making it current, its memory, streams and events, and the errors of the CUDA runtime.
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

// Throws Error with PER_ERROR_CUDA, or PER_ERROR_OUT_OF_MEMORY, unless `error` is cudaSuccess. Nothing asks for
// cudaGetLastError(), which would take errors away from other libraries of the process.
void check(cudaError_t error, const char* doing_what);

// Throws Error with NO_DEVICE and the reason where there is no such device, or none that libper can use.
void require_device(int32_t device_index);

// The device of this thread; 0 for a thread that has not used any yet.
int current_device();

// Multiprocessors that the current context runs kernels on. A green context, and one of a client of MPS, may have fewer
// than the device.
int32_t n_multiprocessors();

// Notes for which architecture the PTX of a kernel was compiled that the current device runs: 10 * major + minor. It
// may be an earlier one than the device's, for which the driver then translates it.
void note_architecture(int ptx_version);
// Whether kernels are to start before the work before them has ended: PER_EARLY_LAUNCHES is 1, and the current device
// can, as can the code of all kernels that it has loaded.
bool launches_early();
// Whether the current device has clusters of blocks, and the kernels that it has loaded have code for them. With
// PER_CLUSTERS=0 it counts as having none.
bool has_clusters();

// Makes a device current for as long as it lives, and then puts back the one that was. It does so with the driver's
// stack of contexts: cudaSetDevice() makes a context on its device, which takes some 500 MB there, even where it only
// puts back a device that the thread never used.
class CurrentDevice {
 public:
    explicit CurrentDevice(int device);
    // Where that fails, the device stays the one that is current: for destructors.
    CurrentDevice(int device, std::nothrow_t);
    ~CurrentDevice();
    CurrentDevice(const CurrentDevice&) = delete;
    CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
    bool is_pushed_ = false;
};

// For as long as it lives, what this thread does besides queueing work concerns no capture, of its own or of another
// thread. Else allocating, freeing, loading and waiting are errors while something is captured, and spoil the capture.
class ApartFromCaptures {
 public:
    ApartFromCaptures();
    // Where that fails, what follows fails too: for destructors.
    explicit ApartFromCaptures(std::nothrow_t);
    ~ApartFromCaptures();
    ApartFromCaptures(const ApartFromCaptures&) = delete;
    ApartFromCaptures& operator=(const ApartFromCaptures&) = delete;

 private:
    cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // exchanged with that of the thread
    bool is_changed_ = false;
};

// Whether what is queued on the stream becomes part of a graph.
bool is_captured(cudaStream_t stream);

// Waits for what is queued on a stream that is not captured.
void wait_for(cudaStream_t stream);
void wait_for(cudaStream_t stream, std::nothrow_t);  // for destructors

// Waits where it goes out of scope, also where something throws: what a queued copy reads or writes must live as long.
struct WaitAtEnd {
    cudaStream_t stream;
    ~WaitAtEnd() { wait_for(stream, std::nothrow); }
};

// Throws Error with INVALID_ARGUMENT, naming the argument, where `memory` lies on another device, or on the host and
// the current device cannot reach it. A kernel that touches such memory faults, and the process then loses the device.
// NULL passes. Allowed while a stream is captured.
void require_reachable(std::string_view argument, const void* memory);
// Whether an array lies in host memory, pinned or not, so that it has to be copied to the device. Throws where it lies
// on another device.
bool is_host_memory(std::string_view argument, const void* memory);

// Queues a copy between the device and the host, also of memory that is not pinned: there the driver may wait or
// allocate, which must not spoil what another thread captures. Not for a stream that is captured.
void copy(void* to, const void* from, std::size_t n_bytes, cudaMemcpyKind kind, cudaStream_t stream);

template <class T>
void copy_to_host(T* to, const T* from, std::size_t n, cudaStream_t stream) {
    copy(to, from, n * sizeof(T), cudaMemcpyDeviceToHost, stream);
}

// Waits for the stream.
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

// Owns what was made on the device that was current then. That device is made current to give it back. A forked child
// may call nothing of CUDA, and gives nothing back that its parent made.
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
// An event that streams wait for.
using Event = Owned<cudaEvent_t, Kind::event>;
// An event that threads of the host wait for, too. When the device gets there it interrupts the host, so that a thread
// can sleep until then.
using HostEvent = Owned<cudaEvent_t, Kind::host_event>;

// Pages of host memory that was allocated elsewhere, which must outlive it.
using PinnedPages = Owned<void*, Kind::pinned_pages>;

// Pins the pages that hold an array of the host, none of which may be pinned already. The current device reaches the
// array by the host's own address, if reaches_pinned_pages().
PinnedPages pin_pages(const void* array, std::size_t bytes, const char* doing_what);
bool reaches_pinned_pages();

// Of the current device. The stream does not wait for the legacy stream.
Stream new_stream();
Event new_event();
HostEvent new_host_event();

// Waits for what the event was recorded behind last, whatever other threads capture.
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

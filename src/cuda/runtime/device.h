// A CUDA device: choosing it, making it current, its memory.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <new>

namespace per::cuda {

// Throws Error with NO_DEVICE and the reason where there is no such device, or none that libper can use.
void require_device(int32_t device_index);

// Makes a device current for as long as it lives, then the one that was.
class CurrentDevice {
 public:
    explicit CurrentDevice(int device);
    ~CurrentDevice();
    CurrentDevice(const CurrentDevice&) = delete;
    CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
    int before_ = 0;
    bool changed_ = false;
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
    cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // the other one, in turns
    bool is_changed_ = false;
};

// Waits for what is queued on a stream that is not captured.
void wait_for(cudaStream_t stream);
void wait_for(cudaStream_t stream, std::nothrow_t);  // for destructors

// Throws Error with INVALID_ARGUMENT, naming the argument, where `memory` is the host's and the current device cannot
// reach it: a kernel that is given it faults, which ends the process's use of the device. NULL passes. Allowed while a
// stream is captured.
void require_reachable(const char* argument, const void* memory);

enum class MemoryKind { device, pinned };

// Memory of the current device, or pinned memory of the host; not initialised.
template <MemoryKind kind>
class Memory {
 public:
    explicit Memory(std::size_t bytes);
    ~Memory();
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    std::byte* data() const { return data_; }
    // In a forked child the memory is not this process's to free.
    void abandon() { data_ = nullptr; }

 private:
    std::byte* data_ = nullptr;
};

using DeviceMemory = Memory<MemoryKind::device>;
using PinnedMemory = Memory<MemoryKind::pinned>;

}  // namespace per::cuda

// A CUDA device: choosing it, making it current, its memory.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

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

// For as long as it lives, waits of this thread do not concern what other threads capture. Else a capture that goes on
// in one of them makes such a wait an error, and is spoilt by it.
class ApartFromCaptures {
 public:
    ApartFromCaptures();
    ~ApartFromCaptures();
    ApartFromCaptures(const ApartFromCaptures&) = delete;
    ApartFromCaptures& operator=(const ApartFromCaptures&) = delete;

 private:
    cudaStreamCaptureMode mode_ = cudaStreamCaptureModeThreadLocal;  // the other one, in turns
};

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

// Copies between host memory and the device, through pinned memory of a fixed size.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "cuda/runtime/device.h"

namespace per::cuda {

// Brings the arrays of a call to the device, through a ring of pinned buffers and one buffer of the device. While the
// device still reads some of the pinned buffers, the host fills the next one. It waits only if the device has not yet
// read that one, a whole round later.
class Staging {
 public:
    // Allocates on the current device.
    explicit Staging(std::size_t buffer_bytes);
    Staging(const Staging&) = delete;
    Staging& operator=(const Staging&) = delete;

    std::size_t buffer_bytes() const { return buffer_bytes_; }
    // The next buffer to fill; waits until the device has read it.
    std::byte* host();
    // Queues a copy of the beginning of that buffer, and moves on to the next. The stream must not be captured.
    void send(std::byte* to, std::size_t n_bytes, cudaStream_t stream);
    // The buffer of the device.
    std::byte* device() const { return device_.data(); }

 private:
    static constexpr std::size_t n_buffers = 4;

    std::size_t buffer_bytes_;
    PinnedMemory host_;
    DeviceMemory device_;
    std::vector<HostEvent> events_;  // by buffer: the device has read it
    bool is_sent_[n_buffers] = {};
    std::size_t next_ = 0;
};

// Copies arrays by slot in both directions, piece by piece, through pinned memory.
class SlotCopies {
 public:
    explicit SlotCopies(cudaStream_t stream) : stream_(stream), piece_(piece_bytes) {}

    // Calls write(bytes, size) for the data from the device, piece by piece and in order. finish() writes the last
    // piece.
    template <class Write>
    void from_device(const std::byte* device, std::size_t size, const Write& write) {
        for (std::size_t n; size > 0; size -= n, device += n) {
            if (n_filled_ == piece_bytes) finish(write);
            n = std::min(size, piece_bytes - n_filled_);
            check(cudaMemcpyAsync(piece_.data() + n_filled_, device, n, cudaMemcpyDeviceToHost, stream_),
                  "copying rows from the device");
            n_filled_ += n;
        }
    }
    template <class Write>
    void finish(const Write& write) {
        wait();
        write(piece_.data(), n_filled_);
        n_filled_ = 0;
    }

    // Calls read(bytes, size) for the data that goes to the device, piece by piece and in order. A piece has as many
    // elements of `element_bytes` as fit, or a part of an element that is too large to fit. Pieces are aligned, so that
    // they can be read as numbers.
    template <class Read>
    void to_device(std::byte* device, std::size_t size, std::size_t element_bytes, const Read& read) {
        const std::size_t max_size =
            element_bytes < piece_bytes ? piece_bytes / element_bytes * element_bytes : piece_bytes;
        for (std::size_t n; size > 0; size -= n, device += n) {
            n = std::min(size, max_size);
            n_filled_ = (n_filled_ + alignment - 1) / alignment * alignment;
            if (n_filled_ + n > piece_bytes) {
                wait();
                n_filled_ = 0;
            }
            std::byte* const host = piece_.data() + n_filled_;
            read(host, n);
            check(cudaMemcpyAsync(device, host, n, cudaMemcpyHostToDevice, stream_), "copying rows to the device");
            n_filled_ += n;
        }
    }

    void wait() { wait_for(stream_); }

 private:
    static constexpr std::size_t piece_bytes = std::size_t{1} << 23;
    static constexpr std::size_t alignment = 16;

    cudaStream_t stream_;
    PinnedMemory piece_;
    std::size_t n_filled_ = 0;
};

}  // namespace per::cuda

// Arrays by slot on their way between a device and the host, through pinned memory of a fixed size.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cuda/runtime/check.h"
#include "cuda/runtime/device.h"

namespace per::cuda {

class SlotCopies {
 public:
    explicit SlotCopies(cudaStream_t stream) : stream_(stream), piece_(piece_bytes) {}

    // Calls write(bytes, size) with what comes from the device, piece by piece, in order; the last by finish().
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

    // Calls read(bytes, size) for what goes to the device, piece by piece, in order. Pieces are elements of
    // `element_bytes` each, as many as fit, or parts of larger ones; those of numbers are aligned.
    template <class Read>
    void to_device(std::byte* device, std::size_t size, std::size_t element_bytes, const Read& read) {
        const std::size_t most =
            element_bytes < piece_bytes ? piece_bytes / element_bytes * element_bytes : piece_bytes;
        for (std::size_t n; size > 0; size -= n, device += n) {
            n = std::min(size, most);
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

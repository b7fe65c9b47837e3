#include "conditions.h"

#include <algorithm>
#include <cstdint>

#include "timing.h"

namespace {

// Each step waits some 4 cycles for the previous one.
__global__ void delay_kernel(float* out, int n_steps) {
    float x = 1.0f;
    for (int i = 0; i < n_steps; ++i) x = x * 0.5f + 1.0f;
    *out = x;
}

#define TWICE(statement) statement statement
#define SIXTEEN_TIMES(statement) TWICE(TWICE(TWICE(TWICE(statement))))

// 2^14 instructions of 16 bytes that cannot be optimised away: twice the instruction caches of a multiprocessor.
__global__ void long_kernel(float* out, float factor) {
    float x = factor;
    SIXTEEN_TIMES(SIXTEEN_TIMES(SIXTEEN_TIMES(TWICE(TWICE(x = x * factor + 1.0f;)))))
    out[blockIdx.x] = x;
}

// Together the threads read the memory once. It holds zeros, so nothing is written.
__global__ void read_kernel(const uint64_t* memory, std::size_t n, float* out) {
    const std::size_t n_threads = std::size_t{gridDim.x} * blockDim.x;
    uint64_t sum = 0;
    for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += n_threads) sum += memory[i];
    if (sum == 1) *out = 1.0f;
}

__global__ void empty_kernel() {}

template <class... Parameters, class... Arguments>
cudaError_t launch(unsigned n_blocks, unsigned n_threads, cudaStream_t stream, void (*kernel)(Parameters...),
                   const Arguments&... arguments) {
    const cudaLaunchConfig_t config = {dim3(n_blocks), dim3(n_threads), 0, stream, nullptr, 0};
    return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

constexpr int n_delay_steps = 40000;
constexpr unsigned n_blocks_of_long_kernel = 512;  // some on each multiprocessor

}  // namespace

Conditions::Conditions(cudaStream_t stream) : stream_(stream) {
    int device = 0;
    int l2_bytes = 0;
    REQUIRE_CUDA(cudaGetDevice(&device));
    REQUIRE_CUDA(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device));
    REQUIRE_CUDA(cudaDeviceGetAttribute(&n_multiprocessors_, cudaDevAttrMultiProcessorCount, device));
    n_bytes_ = 2 * std::max<std::size_t>(static_cast<std::size_t>(l2_bytes), std::size_t{1} << 20);
    REQUIRE_CUDA(cudaMalloc(&memory_, n_bytes_));
    REQUIRE_CUDA(cudaMalloc(&results_, n_blocks_of_long_kernel * sizeof(float)));
    REQUIRE_CUDA(cudaMemsetAsync(memory_, 0, n_bytes_, stream));
}

Conditions::~Conditions() {
    static_cast<void>(cudaFree(memory_));
    static_cast<void>(cudaFree(results_));
}

void Conditions::busy() const {
    REQUIRE_CUDA(launch(1, 1, stream_, delay_kernel, static_cast<float*>(results_), n_delay_steps));
}

// Reads the memory: written lines would have to be written back during the timed call.
void Conditions::cold() const {
    const unsigned n_blocks = 8 * static_cast<unsigned>(n_multiprocessors_);
    REQUIRE_CUDA(launch(n_blocks, 256, stream_, read_kernel, static_cast<const uint64_t*>(memory_),
                        n_bytes_ / sizeof(uint64_t), static_cast<float*>(results_)));
    REQUIRE_CUDA(launch(n_blocks_of_long_kernel, 1, stream_, long_kernel, static_cast<float*>(results_), 0.5f));
}

cudaError_t launch_empty_kernel(cudaStream_t stream) {
    return launch(1, 1, stream, empty_kernel);
}

#include "float_tree.h"

#include <cmath>

namespace {

constexpr unsigned n_threads = 256;

template <class... Parameters, class... Arguments>
cudaError_t launch(int64_t n, cudaStream_t stream, void (*kernel)(Parameters...), const Arguments&... arguments) {
    const unsigned n_blocks = static_cast<unsigned>((n + n_threads - 1) / n_threads);
    const cudaLaunchConfig_t config = {dim3(n_blocks), dim3(n_threads), 0, stream, nullptr, 0};
    return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

__device__ __forceinline__ int64_t thread_number() {
    return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

// splitmix64 (Steele et al. 2014).
__device__ __forceinline__ uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

__global__ void uniforms_kernel(FloatTree tree, FloatTreeBatch batch, uint64_t seed) {
    const int64_t i = thread_number();
    if (i >= batch.size) return;
    const uint64_t bits = mix(seed + static_cast<uint64_t>(i + 1) * 0x9E3779B97F4A7C15u);
    batch.uniforms[i] = static_cast<float>(bits >> 40) * 0x1p-24f * tree.sums[1];
}

__global__ void draw_kernel(FloatTree tree, FloatTreeBatch batch) {
    const int64_t i = thread_number();
    if (i >= batch.size) return;
    float rest = batch.uniforms[i];
    int64_t node = 1;
    while (node < tree.n_leaves) {
        node *= 2;
        const float left = tree.sums[node];
        if (rest > left) {
            rest -= left;
            ++node;
        }
    }
    // Rounding may lead beyond the last leaf.
    const int64_t leaf = node - tree.n_leaves;
    batch.indices[i] = leaf < tree.capacity ? leaf : tree.capacity - 1;
}

__global__ void weigh_kernel(FloatTree tree, FloatTreeBatch batch, float beta) {
    const int64_t i = thread_number();
    if (i == 0) *batch.largest_weight = 0.0f;
    if (i >= batch.size) return;
    const float priority = tree.sums[tree.n_leaves + batch.indices[i]];
    const float probability = (priority > 1e-6f ? priority : 1e-6f) / tree.sums[1];
    batch.priorities[i] = priority;
    batch.weights[i] = powf(static_cast<float>(tree.capacity) * probability, -beta);
}

__global__ void largest_kernel(FloatTreeBatch batch) {
    const int64_t i = thread_number();
    if (i >= batch.size) return;
    // Floats >= 0 are ordered like their bits.
    atomicMax(reinterpret_cast<unsigned*>(batch.largest_weight), __float_as_uint(batch.weights[i]));
}

__global__ void normalize_kernel(FloatTreeBatch batch) {
    const int64_t i = thread_number();
    if (i < batch.size) batch.weights[i] /= *batch.largest_weight;
}

__global__ void gather_kernel(FloatTreeBatch batch, const uint32_t* rows, int64_t n_words, uint32_t* rows_out) {
    const int64_t i = thread_number();
    if (i < batch.size * n_words) rows_out[i] = rows[batch.indices[i / n_words] * n_words + i % n_words];
}

__global__ void update_kernel(FloatTree tree, int64_t count, const int64_t* indices, const float* priorities) {
    const int64_t i = thread_number();
    if (i >= count) return;
    int64_t node = tree.n_leaves + indices[i];
    const float difference = priorities[i] - atomicExch(&tree.sums[node], priorities[i]);
    for (node /= 2; node >= 1; node /= 2) atomicAdd(&tree.sums[node], difference);
}

__global__ void build_kernel(FloatTree tree, int64_t first) {
    const int64_t i = thread_number();
    if (i < first) tree.sums[first + i] = tree.sums[2 * (first + i)] + tree.sums[2 * (first + i) + 1];
}

}  // namespace

int64_t float_tree_leaves(int64_t capacity) {
    int64_t n = 1;
    while (n < capacity) n *= 2;
    return n;
}

cudaError_t float_tree_uniforms(const FloatTree& tree, const FloatTreeBatch& batch, uint64_t seed,
                                cudaStream_t stream) {
    return launch(batch.size, stream, uniforms_kernel, tree, batch, seed);
}

cudaError_t float_tree_draw(const FloatTree& tree, const FloatTreeBatch& batch, cudaStream_t stream) {
    return launch(batch.size, stream, draw_kernel, tree, batch);
}

cudaError_t float_tree_weigh(const FloatTree& tree, const FloatTreeBatch& batch, float beta, cudaStream_t stream) {
    if (const cudaError_t error = launch(batch.size, stream, weigh_kernel, tree, batch, beta); error != cudaSuccess)
        return error;
    if (const cudaError_t error = launch(batch.size, stream, largest_kernel, batch); error != cudaSuccess) return error;
    return launch(batch.size, stream, normalize_kernel, batch);
}

cudaError_t float_tree_gather(const FloatTreeBatch& batch, const uint32_t* rows, int64_t n_words, uint32_t* rows_out,
                              cudaStream_t stream) {
    return launch(batch.size * n_words, stream, gather_kernel, batch, rows, n_words, rows_out);
}

cudaError_t float_tree_update(const FloatTree& tree, int64_t count, const int64_t* indices, const float* priorities,
                              cudaStream_t stream) {
    return launch(count, stream, update_kernel, tree, count, indices, priorities);
}

cudaError_t float_tree_build(const FloatTree& tree, cudaStream_t stream) {
    for (int64_t first = tree.n_leaves / 2; first >= 1; first /= 2)
        if (const cudaError_t error = launch(first, stream, build_kernel, tree, first); error != cudaSuccess)
            return error;
    return cudaSuccess;
}

// Functions for callers that are not compiled with this header.
extern "C" {
int float_tree_build_c(FloatTree tree, void* stream) {
    return float_tree_build(tree, static_cast<cudaStream_t>(stream));
}
int float_tree_draw_c(FloatTree tree, FloatTreeBatch batch, void* stream) {
    return float_tree_draw(tree, batch, static_cast<cudaStream_t>(stream));
}
int float_tree_update_c(FloatTree tree, int64_t count, const int64_t* indices, const float* priorities, void* stream) {
    return float_tree_update(tree, count, indices, priorities, static_cast<cudaStream_t>(stream));
}
}

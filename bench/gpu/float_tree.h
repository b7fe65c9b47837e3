// The baseline for libper on CUDA: the sum tree of most GPU code for prioritized replay. Binary, float32, with the root
// at 1 and the leaves from `n_leaves` on, a power of two. An update adds differences to all sums above a leaf with
// float atomics, one thread per entry; a draw is a descent by one thread. Its sums drift, and draws use the drifted
// sums.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

struct FloatTree {
    float* sums;       // [2 n_leaves]
    int64_t n_leaves;  // a power of two
    int64_t capacity;  // leaves in use
};

int64_t float_tree_leaves(int64_t capacity);

// A batch of B, by kernels that each correspond to one operation of an array library.
struct FloatTreeBatch {
    int64_t size;
    float* uniforms;  // [B] in [0, total)
    int64_t* indices;
    float* priorities;
    float* weights;
    float* largest_weight;  // [1]
};

// uniforms = random * total
cudaError_t float_tree_uniforms(const FloatTree& tree, const FloatTreeBatch& batch, uint64_t seed, cudaStream_t stream);
// indices = descent(uniforms): the bare draw
cudaError_t float_tree_draw(const FloatTree& tree, const FloatTreeBatch& batch, cudaStream_t stream);
// weights = (N p / total)^-beta, then divided by the largest
cudaError_t float_tree_weigh(const FloatTree& tree, const FloatTreeBatch& batch, float beta, cudaStream_t stream);
// rows_out[i] = rows[indices[i]], in words of 4 bytes
cudaError_t float_tree_gather(const FloatTreeBatch& batch, const uint32_t* rows, int64_t n_words, uint32_t* rows_out,
                              cudaStream_t stream);
cudaError_t float_tree_update(const FloatTree& tree, int64_t count, const int64_t* indices, const float* priorities,
                              cudaStream_t stream);
// Computes the sums of all levels from the leaves.
cudaError_t float_tree_build(const FloatTree& tree, cudaStream_t stream);

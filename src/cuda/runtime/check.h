// Errors of the CUDA runtime. Only what calls return is looked at: cudaGetLastError() would take errors away from other
// libraries of the process.
#pragma once

#include <cuda_runtime.h>

namespace per::cuda {

// Throws Error with PER_ERROR_CUDA, or PER_ERROR_OUT_OF_MEMORY, unless `error` is cudaSuccess.
void check(cudaError_t error, const char* doing_what);

}  // namespace per::cuda

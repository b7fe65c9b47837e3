#include "cuda/runtime/check.h"

#include "rows/error.h"

namespace per::cuda {

void check(cudaError_t error, const char* doing_what) {
    if (error == cudaSuccess) return;
    throw Error(error == cudaErrorMemoryAllocation ? PER_ERROR_OUT_OF_MEMORY : PER_ERROR_CUDA, "%s: %s: %s", doing_what,
                cudaGetErrorName(error), cudaGetErrorString(error));
}

}  // namespace per::cuda

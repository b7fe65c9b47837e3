# nvcc's flags for kernels, in the library and in the tests of nvcc's output.
set(per_shipped_architectures 80-real 90-real 100-real 100-virtual 120-real)
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES ${per_shipped_architectures})
endif()
# CMake 3.25 does not know that nvcc 13 supports C++20, and would choose another standard if extensions are disabled.
# The rest is like per_flags: no contraction, no fast math.
set(per_cuda_language -std=c++20 -fmad=false)

# How nvcc compiles kernels, for the library and for the tests that look at what nvcc makes of them.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100-real 100-virtual 120-real)
endif()
# CMake 3.25 does not know that nvcc 13 has C++20, and would take another standard if asked for no extensions. Else as
# per_flags: no contraction, no fast math.
set(per_cuda_language -std=c++20 -fmad=false)

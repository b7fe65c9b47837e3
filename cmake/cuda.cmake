# Compiles src/cuda with nvcc into per_cuda_objects, for the architectures of cuda_flags.cmake. On other architectures
# from sm_100 on the driver translates the PTX at the first handle, which takes 20 to 40 s (estimated), until it is in
# the driver's cache. The runtime is linked statically, so that libper.so loads on machines without CUDA.
include(cmake/cuda_flags.cmake)
if(NOT DEFINED CMAKE_CUDA_HOST_COMPILER)
    set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
endif()
if(PER_NVCC AND NOT DEFINED CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER ${PER_NVCC})
endif()
enable_language(CUDA)

file(GLOB per_cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cuda/*/*.cu)
add_library(per_cuda_objects OBJECT ${per_cuda_sources})
# Warns about kernels that spill registers to memory or have a stack frame: a local array indexed at run time.
set(per_cuda_options ${per_cuda_language} -Xcompiler=-ffp-contract=off,-fno-fast-math
                     -Xptxas=--warn-on-spills,--warn-on-local-memory-usage)
if(PER_WERROR)
    list(APPEND per_cuda_options -Xptxas=--warning-as-error -Werror=all-warnings -Xcompiler=-Wall,-Wextra,-Werror)
endif()
target_compile_options(per_cuda_objects PRIVATE ${per_cuda_options})

find_library(PER_CUDART cudart_static HINTS ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES} REQUIRED
             DOC "CUDA's runtime, static")
mark_as_advanced(PER_CUDART)
# Separate libraries before glibc 2.34.
set(per_cuda_libraries ${PER_CUDART} ${CMAKE_DL_LIBS} rt)

# Compiles src/cuda with nvcc into per_cuda_objects, for the architectures of cuda_flags.cmake. Others from sm_100 on
# translate the PTX, which takes 20 to 40 s (estimated) at the first handle, until the driver has it in its cache. The
# runtime is linked statically, so that libper.so loads on machines without CUDA.
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
# A kernel that spills registers to memory is a warning, and so is one that has a stack frame there: an array of its own
# whose place is not known when it is compiled.
set(per_cuda_options ${per_cuda_language} -Xcompiler=-ffp-contract=off,-fno-fast-math
                     -Xptxas=--warn-on-spills,--warn-on-local-memory-usage)
if(PER_WERROR)
    list(APPEND per_cuda_options -Xptxas=--warning-as-error -Werror=all-warnings -Xcompiler=-Wall,-Wextra,-Werror)
endif()
target_compile_options(per_cuda_objects PRIVATE ${per_cuda_options})

find_library(PER_CUDART cudart_static HINTS ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES} REQUIRED
             DOC "CUDA's runtime, static")
mark_as_advanced(PER_CUDART)
# Of a C library before 2.34 these are libraries of their own.
set(per_cuda_libraries ${PER_CUDART} ${CMAKE_DL_LIBS} rt)

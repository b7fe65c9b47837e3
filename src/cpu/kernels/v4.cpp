// The kernels for machines of x86-64-v4: AVX-512. CMakeLists.txt compiles this file for the features that has_v4()
// checks.
#if defined(__x86_64__)
#define PER_KERNELS kernels_v4
#define PER_KERNELS_NAME "v4"
#include "cpu/kernels/table.h"
#endif

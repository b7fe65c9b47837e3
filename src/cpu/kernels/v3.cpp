// The kernels for machines of x86-64-v3: AVX2. CMakeLists.txt compiles this file for the features that has_v3() checks.
#if defined(__x86_64__)
#define PER_KERNELS kernels_v3
#define PER_KERNELS_NAME "v3"
#include "cpu/kernels/table.h"
#endif

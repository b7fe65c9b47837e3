// The kernels for any machine of the architecture.
#define PER_KERNELS kernels_baseline
#define PER_KERNELS_NAME "baseline"
#include "cpu/kernels/table.h"

// Has more values than registers, so some must be spilled: the build's flags must reject it.
__global__ void __launch_bounds__(1024, 2) keep_many_values(const double* from, double* to) {
    double values[48];
    for (int i = 0; i < 48; ++i) values[i] = from[i * 1024 + threadIdx.x];
    __syncthreads();
    for (int i = 0; i < 48; ++i) to[i * 1024 + threadIdx.x] = values[i] / values[47 - i];
}

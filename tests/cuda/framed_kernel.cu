// An array indexed at run time, which therefore lies in local memory: the build's flags must reject it.
__global__ void choose(const double* from, const int* places, double* to) {
    double values[4];
    for (int i = 0; i < 4; ++i) values[i] = from[4 * threadIdx.x + i];
    to[threadIdx.x] = values[places[threadIdx.x] % 4];
}

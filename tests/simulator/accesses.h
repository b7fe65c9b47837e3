// Memory accesses of kernels on the device. Detects only kernels compiled with -fsanitize=thread and
// -fsanitize-coverage=trace-pc, and linked with accesses.cpp instead of ThreadSanitizer: they call functions for each
// access and for each piece of code without a jump.
#pragma once

#include <cstdint>
#include <vector>

namespace simulator {

// The accesses of one launch of a kernel to memory of cudaMalloc(), not to parameters, shared memory and registers.
struct KernelAccesses {
    unsigned n_blocks;
    unsigned block_size;
    // The maximum over the threads. It is unknown which addresses come from other loads, but there are two bounds. A
    // thread waits for memory at least once in each phase, between barriers or warp intrinsics, in which it reads or
    // does an atomic. It waits at most once for each pass through a piece of code without jumps that does, as the
    // device reads on within such a piece, unless an address is loaded in the same piece. A barrier of a cluster is a
    // wait, as writes to other blocks arrive there, unless the thread has waited for memory between arriving and
    // waiting there.
    uint64_t phases;
    uint64_t round_trips;
    uint64_t barriers;        // of the block, passed before the last access
    uint64_t cluster_fences;  // barriers of the cluster that it has come to with a fence, likewise
    // The most atomics on 128 bytes, which wait for each other; and the bytes of all threads together.
    uint64_t atomics_of_line;
    uint64_t bytes;
};

// Starts counting, and returns the counts since the last call, launch by launch. Launches without any access are
// omitted.
std::vector<KernelAccesses> take_accesses();

}  // namespace simulator

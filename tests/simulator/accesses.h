// Memory accesses of kernels on the device. Counts only those of kernels compiled with -fsanitize=thread and
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
    // Two bounds of the number of times that a thread waits for memory, each the maximum over the threads. The number
    // itself depends on which addresses come from other loads. Lower bound: the phases, between barriers or warp
    // intrinsics, in which the thread reads or does an atomic. Upper bound: its passes through pieces of code without
    // jumps that read or do an atomic, as the device reads on within such a piece, unless an address is loaded in the
    // same piece.
    uint64_t phases;
    uint64_t round_trips;
    uint64_t barriers;         // barriers of the block that a thread has passed before its last access
    uint64_t atomics_of_line;  // the most atomics on the same 128 bytes, which wait for each other
    uint64_t bytes;            // of all threads together
};

// Starts counting, and returns the counts since the last call, launch by launch. Launches without any access are
// omitted.
std::vector<KernelAccesses> take_accesses();

}  // namespace simulator

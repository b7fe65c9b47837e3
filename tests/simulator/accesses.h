// What kernels do to the memory of the device. Only kernels are seen that are compiled with -fsanitize=thread and
// -fsanitize-coverage=trace-pc, and linked with accesses.cpp instead of ThreadSanitizer: the compiler then has them call
// functions for each access and for each piece of code without a jump.
#pragma once

#include <cstdint>
#include <vector>

namespace simulator {

// The accesses of one launch of a kernel to memory of cudaMalloc(), not to parameters, shared memory and registers.
struct KernelAccesses {
    unsigned n_blocks;
    unsigned block_size;
    // The most of any thread. Which addresses come from other loads cannot be seen, but there are two bounds. A thread
    // waits for memory once at least in each phase, between barriers or warp intrinsics, in which it reads or does an
    // atomic. It waits at most once for each time that it comes through a piece of code without jumps that does, as
    // the device reads on within such a piece; unless one of its addresses comes from there, too. A barrier of a
    // cluster is a wait, as what was written to other blocks arrives there, unless the thread has waited for memory
    // between coming to it and waiting there.
    uint64_t phases;
    uint64_t round_trips;
    uint64_t barriers;        // of the block, passed before the last access
    uint64_t cluster_fences;  // barriers of the cluster that it has come to with a fence, likewise
    // The most atomics on 128 bytes, which wait for each other; and the bytes of all threads together.
    uint64_t atomics_of_line;
    uint64_t bytes;
};

// Counts from now on, and returns what was counted since the last call, a launch after the other. Launches without any
// access are not among them.
std::vector<KernelAccesses> take_accesses();

}  // namespace simulator

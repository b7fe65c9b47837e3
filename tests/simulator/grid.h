// One grid of CUDA threads, run on the calling thread of the host: each CUDA thread is a fiber, and a seeded random
// order decides which of those that can go on does. A schedule that fails comes again with its seed. What is undefined
// on a GPU - a barrier or warp intrinsic that not all reach who must - prints block and thread and aborts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

namespace simulator {

// Where a CUDA thread is.
struct Place {
    dim3 thread, block, block_size, grid_size;
    unsigned lane;
    unsigned warp;
    uint64_t grid;  // a number of its own
    // How often it has passed __syncthreads() and intrinsics of its warp.
    unsigned n_barriers = 0;
    unsigned n_exchanges = 0;
};

// Of the fiber that runs on this thread of the host; NULL outside of kernels.
extern thread_local const Place* place;

struct GridOptions {
    uint64_t seed;
    bool all_blocks_resident;  // else one after the other, in random order
    void* clock;               // for TSan: what the grid comes after, and what comes after the grid
    void* after;               // another one that it comes after; may be NULL
    // The work before it, where the grid starts early. It is done once the threads that are there wait for it, or end.
    std::function<void()> before = {};
};

void run_grid(dim3 grid_size, dim3 block_size, const std::function<void()>& kernel, const GridOptions& options);

// Makes the call, for TSan as somebody who comes after the clock. The host, whose thread it is, does not come after a
// kernel only because the simulator frees what the kernel's threads have read.
void run_after(void* clock, const std::function<void()>& call);

enum class Count { any, all, sum };

// __syncthreads(), with what its variants count.
int block_barrier(Count count, int predicate);

// What the lanes of `mask` hand to each other: all 32 values. `kind` names the intrinsic; all must call the same one.
void exchange(const char* kind, unsigned mask, uint64_t value, uint64_t (&values_out)[32]);

// Memory of the block for the declaration `key` names: of exactly this size, garbage at first.
void* shared_memory(const void* key, std::size_t bytes);

// Stacks of CUDA threads that are mapped. A thread of the host keeps those of its grids for later ones until it ends.
uint64_t n_stacks();

// cudaGridDependencySynchronize(): returns once the work before the grid has ended.
void wait_for_work_before();

// Lets other threads run.
void yield();

// The same for a thread that waits for other blocks. Before that a test may do what another stream would do meanwhile.
void wait_for_others();
extern std::function<void()> meanwhile;

[[noreturn]] void fail(const char* what);

}  // namespace simulator

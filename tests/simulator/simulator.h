// Options and observations of the simulated GPU, for tests.
#pragma once

#include <cstdint>

namespace simulator {

struct Options {
    // 0: each call does its work at once. Otherwise work waits in its stream until a wait forces it to run, or the seed
    // lets it run. Any seed, 0 included, also decides the order of threads and blocks.
    uint64_t seed;
    bool all_blocks_resident;
    int n_devices;
    int driver_version;         // as cudaDriverGetVersion() returns it; 0: no driver
    int compute_capability;     // 10 * major + minor
    int n_multiprocessors;      // few, since all threads of a cooperative launch are resident
    int float64_ratio;          // the attribute: units for float32 for each one for float64
    int green_multiprocessors;  // multiprocessors of the current context and of streams' contexts, if not 0
    bool has_host_memory;       // if false, memory that was not allocated here counts as device memory
    bool reads_pageable;        // the attribute: the device can access pageable memory
    bool reaches_registered;    // the attribute: the device can use the host's addresses of registered memory
    uint64_t memory_bytes;      // memory of the device; allocations beyond it fail
    // Destroying a stream does its remaining work at once, so that tests need not wait for it. CUDA only promises that
    // the work will be done.
    bool destroying_waits;
};

// Counts since the last reset_counters().
struct Counters {
    uint64_t launches;
    uint64_t allocations;  // allocations and frees of device and pinned memory
    uint64_t host_waits;   // calls that wait for the device
    uint64_t spins;        // those of host_waits whose thread busy-waits
    uint64_t interrupts;   // interrupts of the host: one each time an event that lets threads sleep is recorded
    uint64_t event_waits;  // waits of streams for events
};

// Resources that have not been released. ASan's leak check does not see them, as the simulator holds pointers to them.
struct Held {
    uint64_t bytes;  // device and pinned memory
    uint64_t streams;
    uint64_t events;

    bool operator==(const Held&) const = default;
};

// The options, initially from the environment: PER_SIMULATOR_SEED (default 1), PER_SIMULATOR_MEMORY (bytes; default
// 2^34), PER_SIMULATOR_DEVICES (default 1). compute_capability is the architecture of the kernels that
// PER_SIMULATOR_KERNELS names (translation.h). Changes take effect with the next call.
Options& options();

Counters counters();
// The counts of this thread of the host.
Counters counters_of_thread();
// Resets the counts of the process, and those of this thread.
void reset_counters();

Held held();

// Makes every later call return this error, as after a fault of a kernel; work that waits in streams is never done.
// Error 0 ends this.
void stick(int error);

// True if a device has a context, which takes some 500 MB on a real one. The second function resets all devices to
// having none.
bool has_context(int device);
void forget_contexts();

// Makes the n-th of the following calls that can fail return this error, once; n = 0 is the next. Error 0 cancels this.
// Returns true if an earlier request had not taken effect yet.
bool fail_call(uint64_t n, int error);

// For programs that load libper_simulated.so. The first function is fail_call() for calls of this thread only. The
// second returns the name of the function that has returned the error since then, or NULL.
extern "C" void simulator_fail_call(uint64_t n, int error);
extern "C" const char* simulator_failed_call();

}  // namespace simulator

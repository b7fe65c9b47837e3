// The functions that kernels call if compiled with -fsanitize=thread. They also perform the atomics.
#include "accesses.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <map>

#include "grid.h"

namespace simulator {
namespace {

constexpr uintptr_t line_bytes = 128;

// The accesses of one thread of the grid.
struct ThreadAccesses {
    uint64_t phases = 0;
    uint64_t round_trips = 0;
    uint64_t last_phase = ~uint64_t{0};
    uint64_t last_piece = ~uint64_t{0};
};

std::vector<KernelAccesses> kernels;
uint64_t grid_of_last = 0;
// Number of pieces of code that threads have entered. Threads switch only at barriers and warp intrinsics, so a thread
// has entered another piece, or phase, if this has changed.
uint64_t n_pieces = 0;
std::map<const Place*, ThreadAccesses> threads;
std::map<uintptr_t, uint64_t> atomics;  // by line

bool is_of_device(const void* memory) {
    cudaPointerAttributes attributes;
    return cudaPointerGetAttributes(&attributes, memory) == cudaSuccess && attributes.type == cudaMemoryTypeDevice;
}

// The counts of the launch that makes this access; NULL unless a kernel accesses device memory.
KernelAccesses* kernel_of(const void* memory, std::size_t bytes) {
    if (place == nullptr || !is_of_device(memory)) return nullptr;
    if (place->grid != grid_of_last) {
        grid_of_last = place->grid;
        threads.clear();
        atomics.clear();
        const auto volume = [](dim3 size) { return size.x * size.y * size.z; };
        kernels.push_back({volume(place->grid_size), volume(place->block_size), 0, 0, 0, 0, 0});
    }
    KernelAccesses& kernel = kernels.back();
    kernel.barriers = std::max<uint64_t>(kernel.barriers, place->n_barriers);
    kernel.bytes += bytes;
    return &kernel;
}

void wait_for_answer(KernelAccesses& kernel) {
    ThreadAccesses& thread = threads[place];
    const uint64_t phase = uint64_t{place->n_barriers} + place->n_exchanges;
    thread.phases += phase != std::exchange(thread.last_phase, phase);
    thread.round_trips += n_pieces != std::exchange(thread.last_piece, n_pieces);
    kernel.phases = std::max(kernel.phases, thread.phases);
    kernel.round_trips = std::max(kernel.round_trips, thread.round_trips);
}

void note_load(const void* memory, std::size_t bytes) {
    if (KernelAccesses* const kernel = kernel_of(memory, bytes)) wait_for_answer(*kernel);
}

void note_store(const void* memory, std::size_t bytes) {
    kernel_of(memory, bytes);
}

void note_atomic(const void* memory, std::size_t bytes) {
    KernelAccesses* const kernel = kernel_of(memory, bytes);
    if (kernel == nullptr) return;
    wait_for_answer(*kernel);
    kernel->atomics_of_line =
        std::max(kernel->atomics_of_line, ++atomics[reinterpret_cast<uintptr_t>(memory) / line_bytes]);
}

}  // namespace

void come_to_piece() {
    ++n_pieces;
}

std::vector<KernelAccesses> take_accesses() {
    return std::exchange(kernels, {});
}

}  // namespace simulator

extern "C" {

void __sanitizer_cov_trace_pc() {
    simulator::come_to_piece();
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_read_range(void* memory, unsigned long bytes) {
    simulator::note_load(memory, bytes);
}
void __tsan_write_range(void* memory, unsigned long bytes) {
    simulator::note_store(memory, bytes);
}

#define ACCESSES_OF(bytes)                         \
    void __tsan_read##bytes(void* memory) {        \
        simulator::note_load(memory, bytes);       \
    }                                              \
    void __tsan_write##bytes(void* memory) {       \
        simulator::note_store(memory, bytes);      \
    }                                              \
    void __tsan_unaligned_read##bytes(void* at) {  \
        simulator::note_load(at, bytes);           \
    }                                              \
    void __tsan_unaligned_write##bytes(void* at) { \
        simulator::note_store(at, bytes);          \
    }
ACCESSES_OF(1)
ACCESSES_OF(2)
ACCESSES_OF(4)
ACCESSES_OF(8)
ACCESSES_OF(16)

// An atomic of the simulator is a load and a compare-and-exchange, or a fetch_add (see cuda_runtime.h). Only the
// compare-and-exchange and the fetch_add are counted, so that each atomic counts once.
#define ATOMICS_OF(bits, Type)                                                                                    \
    Type __tsan_atomic##bits##_load(const volatile Type* at, int order) {                                         \
        return __atomic_load_n(at, order);                                                                        \
    }                                                                                                             \
    void __tsan_atomic##bits##_store(volatile Type* at, Type value, int order) {                                  \
        __atomic_store_n(at, value, order);                                                                       \
    }                                                                                                             \
    Type __tsan_atomic##bits##_exchange(volatile Type* at, Type value, int order) {                               \
        return __atomic_exchange_n(at, value, order);                                                             \
    }                                                                                                             \
    Type __tsan_atomic##bits##_fetch_add(volatile Type* at, Type value, int order) {                              \
        simulator::note_atomic(const_cast<const Type*>(at), sizeof(Type));                                        \
        return __atomic_fetch_add(at, value, order);                                                              \
    }                                                                                                             \
    bool __tsan_atomic##bits##_compare_exchange_strong(volatile Type* at, Type* expected, Type value, int, int) { \
        simulator::note_atomic(const_cast<const Type*>(at), sizeof(Type));                                        \
        return __atomic_compare_exchange_n(at, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);       \
    }
ATOMICS_OF(8, unsigned char)
ATOMICS_OF(16, unsigned short)
ATOMICS_OF(32, unsigned int)
ATOMICS_OF(64, unsigned long)

}  // extern "C"

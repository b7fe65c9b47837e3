// PER_HOST_DEVICE marks functions that both the CPU and CUDA run.
#pragma once

// Always inlined: the CPU kernels are compiled once for each instruction set, and a shared out-of-line copy of one of
// these functions could carry instructions that the machine which calls it does not have.
#if defined(__CUDACC__)
#define PER_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define PER_HOST_DEVICE [[gnu::always_inline]] inline
#endif

namespace per {

// std::bit_cast that works on the device, emits no symbol, and takes vectors of lanes.
template <class To, class From>
PER_HOST_DEVICE To bit_cast(const From& from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    __builtin_memcpy(&to, &from, sizeof(To));
    return to;
}

// Reads an entry of a caller's array exactly once, so that the checked value is the value used even if another thread
// writes to it.
template <class T>
PER_HOST_DEVICE T read_once(const T& entry) {
    return const_cast<const volatile T&>(entry);
}

}  // namespace per

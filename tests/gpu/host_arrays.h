// For programs that hand arrays of the host to handles on PER_CUDA, as the C tests do, where the device cannot use them:
// linked into the program, the functions of host_tree_arrays.cpp and host_replay_arrays.cpp take the place of libper's
// of the same names. Each copies its arrays to the device, calls libper's, waits without asking for its report, and
// copies them back. Handles on PER_CPU, and calls that libper refuses, see nothing of it.
#pragma once

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <per.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <vector>

namespace host_arrays {

inline void require(bool so, const char* what) {
    if (so) return;
    std::fprintf(stderr, "host_arrays: %s\n", what);
    std::abort();
}

template <class Function>
Function* in_library(Function*, const char* name) {
    void* const found = dlsym(RTLD_NEXT, name);
    require(found != nullptr, name);
    return reinterpret_cast<Function*>(found);
}
#define IN_LIBRARY(name) in_library(name, #name)

// Copies on the device of the arrays of one call. A copy has exactly the size of its array, so that what the library
// touches beyond it is seen.
class Staged {
 public:
    ~Staged() {
        for (const Array& array : arrays_) require(cudaFree(array.on_device) == cudaSuccess, "cudaFree");
    }

    // In either direction: what the library does not write comes back as it was. NULL and nothing stay NULL.
    template <class Element>
    Element* array(Element* on_host, int64_t count) {
        return static_cast<Element*>(const_cast<void*>(bytes(on_host, count * static_cast<int64_t>(sizeof(Element)))));
    }

    const void* bytes(const void* on_host, int64_t n_bytes) {
        if (on_host == nullptr || n_bytes <= 0) return on_host;
        void* on_device = nullptr;
        const std::size_t size = static_cast<std::size_t>(n_bytes);
        require(cudaMalloc(&on_device, size) == cudaSuccess, "cudaMalloc");
        copy(on_device, on_host, size, cudaMemcpyHostToDevice);
        arrays_.push_back({on_host, on_device, size});
        return on_device;
    }

    // Only of arrays that may be written, as others may lie in memory that cannot be.
    void copy_back(const void* on_host) {
        for (const Array& array : arrays_)
            if (array.on_host == on_host)
                copy(const_cast<void*>(array.on_host), array.on_device, array.n_bytes, cudaMemcpyDeviceToHost);
    }

 private:
    struct Array {
        const void* on_host;
        void* on_device;
        std::size_t n_bytes;
    };

    static void copy(void* to, const void* from, std::size_t n_bytes, cudaMemcpyKind kind) {
        require(cudaMemcpyAsync(to, from, n_bytes, kind, nullptr) == cudaSuccess, "cudaMemcpyAsync");
        require(cudaStreamSynchronize(nullptr) == cudaSuccess, "cudaStreamSynchronize");
    }

    std::vector<Array> arrays_;
};

}  // namespace host_arrays

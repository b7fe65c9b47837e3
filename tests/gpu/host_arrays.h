// Lets programs pass host arrays to handles on PER_CUDA, as the C tests do, if the device cannot use them. Linked into
// the program, the functions of host_tree_arrays.cpp and host_replay_arrays.cpp replace libper's of the same names.
// Each copies its arrays to the device, calls libper's function, waits without fetching the report of errors, and
// copies the arrays back. Batches that a loader hands out are copied to host memory. Handles on PER_CPU, and calls that
// libper refuses, are unaffected.
//
// The functions also form a shared library, for programs that load libper. PER_LIBRARY is then the path of libper.
#pragma once

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <per.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <vector>

namespace host_arrays {

constexpr int64_t largest_count = int64_t{1} << 24;  // of batches and ids; per.h refuses more

inline void require(bool so, const char* what) {
    if (so) return;
    std::fprintf(stderr, "host_arrays: %s\n", what);
    std::abort();
}

template <class Function>
Function* in_library(Function*, const char* name) {
#if defined(PER_LIBRARY)
    static void* const library = dlopen(PER_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    require(library != nullptr, PER_LIBRARY);
    void* const found = dlsym(library, name);
#else
    void* const found = dlsym(RTLD_NEXT, name);
#endif
    require(found != nullptr, name);
    return reinterpret_cast<Function*>(found);
}
#define IN_LIBRARY(name) in_library(name, #name)

// Waits for the work of the handle, without fetching the device's report of errors.
inline void wait_for(per_tree* tree) {
    per_tree_description description;
    require(per_tree_describe(tree, &description, sizeof description) == PER_OK, "per_tree_describe");
}

inline void wait_for(per_replay* replay) {
    int64_t live;
    require(per_replay_get_live_ids(replay, 0, nullptr, &live) == PER_OK, "per_replay_get_live_ids");
}

// The arrays of one call: copies on the device for a handle on PER_CUDA, otherwise the caller's. A copy has exactly the
// size of its array, so that accesses beyond it are detected.
class Staged {
 public:
    explicit Staged(bool is_on_cuda) : is_on_cuda_(is_on_cuda) {}
    ~Staged() {
        for (const Array& array : arrays_) require(cudaFree(array.on_device) == cudaSuccess, "cudaFree");
    }
    Staged(const Staged&) = delete;
    Staged& operator=(const Staged&) = delete;

    bool is_on_cuda() const { return is_on_cuda_; }

    // NULL and empty arrays stay NULL. Const arrays are not copied back, as they may be read-only; in all others,
    // values that the library does not write are unchanged. Arrays that libper refuses, as they are too long or not
    // aligned, are not copied.
    template <class Element>
    Element* array(Element* on_host, int64_t count) {
        if (count > largest_count || reinterpret_cast<uintptr_t>(on_host) % alignof(Element) != 0) return on_host;
        return static_cast<Element*>(bytes(on_host, count * static_cast<int64_t>(sizeof(Element))));
    }

    const void* bytes(const void* on_host, int64_t n_bytes) {
        return is_copied(on_host, n_bytes) ? copied(on_host, nullptr, n_bytes) : on_host;
    }

    void* bytes(void* on_host, int64_t n_bytes) {
        return is_copied(on_host, n_bytes) ? copied(on_host, on_host, n_bytes) : on_host;
    }

    void copy_back() const {
        for (const Array& array : arrays_)
            if (array.back_to != nullptr) copy(array.back_to, array.on_device, array.n_bytes, cudaMemcpyDeviceToHost);
    }

 private:
    struct Array {
        void* on_device;
        void* back_to;
        std::size_t n_bytes;
    };

    bool is_copied(const void* on_host, int64_t n_bytes) const {
        return is_on_cuda_ && on_host != nullptr && n_bytes > 0;
    }

    void* copied(const void* on_host, void* back_to, int64_t n_bytes) {
        void* on_device = nullptr;
        const std::size_t size = static_cast<std::size_t>(n_bytes);
        require(cudaMalloc(&on_device, size) == cudaSuccess, "cudaMalloc");
        copy(on_device, on_host, size, cudaMemcpyHostToDevice);
        arrays_.push_back({on_device, back_to, size});
        return on_device;
    }

    static void copy(void* to, const void* from, std::size_t n_bytes, cudaMemcpyKind kind) {
        require(cudaMemcpyAsync(to, from, n_bytes, kind, nullptr) == cudaSuccess, "cudaMemcpyAsync");
        require(cudaStreamSynchronize(nullptr) == cudaSuccess, "cudaStreamSynchronize");
    }

    const bool is_on_cuda_;
    std::vector<Array> arrays_;
};

// Runs `call`, which takes its arrays from a Staged and passes them to libper's function, and copies the arrays back.
template <class Handle, class Call>
per_status with_staged(Handle* handle, bool is_on_cuda, const Call& call) {
    Staged staged(is_on_cuda);
    const per_status status = call(staged);
    if (status != PER_OK || !is_on_cuda) return status;
    wait_for(handle);
    staged.copy_back();
    return status;
}

}  // namespace host_arrays

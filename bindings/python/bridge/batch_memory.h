#ifndef PER_BRIDGE_BATCH_MEMORY_H
#define PER_BRIDGE_BATCH_MEMORY_H

#include <Python.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "dlpack.h"

namespace per::bridge {

constexpr int max_axes = 16;

/* The shape of an array, C-contiguous. Not const, since numpy and DLPack take it by a non-const pointer. */
struct Shape {
    int ndim;
    int64_t axes[max_axes];
};

class SpareMemory;

/*
 * The memory of one array, and at the same time its owner: numpy's arrays hold it as their base, a tensor by its
 * deleter. The elements follow it in memory.
 */
class ArrayMemory : public PyObject {
 public:
    struct GiveBack {
        void operator()(ArrayMemory* memory) const;
    };
    using Owner = std::unique_ptr<ArrayMemory, GiveBack>;

    /* Creates the type. Call it once, before anything else. Returns false, with a Python error set, if that fails. */
    static bool prepare_type();

    /*
     * Elements of a numpy array begin half a cache line past the beginning of one. JAX therefore copies such arrays,
     * and reports when it is done. If they were aligned to a cache line, JAX would use them in place permanently, even
     * while `out` reuses them for a batch.
     */
    void* numpy_elements();
    /* A new reference, for the base of an array. */
    static PyObject* as_base(Owner memory);
    static bool is_base(PyObject* object);

    /* Elements of a tensor begin at a cache line, as in torch's own tensors. */
    void* tensor_elements();
    /* Passes the ownership of the memory to the tensor, until its deleter is called. */
    static DLManagedTensorVersioned* as_tensor(Owner memory, const Shape& shape, DLDataType type);

 private:
    friend class SpareMemory;

    ArrayMemory(SpareMemory& home, size_t n_bytes);

    SpareMemory& home_; /* the memory is returned there */
    const size_t n_bytes_;
    DLManagedTensorVersioned tensor_;
    int64_t shape_[max_axes];
    int64_t strides_[max_axes];
};

/*
 * Memory for the arrays of one output of a buffer; each batch has new arrays. The memory of a freed array is kept for a
 * later array of the same size: two are kept, since a learner holds one batch while it draws the next. Memory from
 * malloc is often no longer in the caches, or the kernel maps it page by page, which for a batch of images takes longer
 * than the draw. For numpy, Exchange keeps whole arrays instead.
 *
 * Arrays are freed by any thread, also without the GIL, and the process may fork at any time, so there is no lock.
 * Arrays may outlive their buffer: an object of this class is never freed, but reused by a later buffer.
 */
class SpareMemory {
 public:
    struct Close {
        void operator()(SpareMemory* memory) const;
    };
    using Owner = std::unique_ptr<SpareMemory, Close>;

    /* Requires the GIL, as does the end of the owner. */
    static Owner open();

    /* Memory for an array of that size. NULL if none can be allocated. */
    ArrayMemory::Owner take(size_t element_bytes);
    /* Frees the kept memory, and any memory returned from now on. */
    void keep_nothing();

 private:
    friend struct ArrayMemory::GiveBack;

    SpareMemory() = default;
    ~SpareMemory() = default;
    void give_back(ArrayMemory* memory);

    std::atomic<bool> keeps_ = true;
    std::array<std::atomic<ArrayMemory*>, 2> places_{};
};

}  // namespace per::bridge

#endif  // PER_BRIDGE_BATCH_MEMORY_H

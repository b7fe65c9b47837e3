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

/* The shape of an array, C-contiguous. numpy and DLPack take it as a pointer to what they may write to. */
struct Shape {
    bool equals(const int64_t* other, int other_ndim) const;

    int ndim;
    int64_t axes[max_axes];
};

class SpareMemory;

/*
 * The memory of one array, which is its owner too: numpy's arrays hold it as their base, a tensor by its deleter. The
 * elements lie behind it.
 */
class ArrayMemory : public PyObject {
 public:
    struct GiveBack {
        void operator()(ArrayMemory* memory) const;
    };
    using Owner = std::unique_ptr<ArrayMemory, GiveBack>;

    /* Once, before anything else. False, and an error of Python's, where its type cannot be made. */
    static bool prepare_type();

    /*
     * Those of an array of numpy lie half a line past the beginning of one. JAX copies such arrays, and says when that is
     * done. What begins with a line it takes as it lies, for good, also where the next batch is drawn into it by `out`.
     */
    void* numpy_elements();
    /* A new reference, for the base of an array. */
    static PyObject* as_base(Owner memory);

    /* Those of a tensor begin with a line, as torch's own do. */
    void* tensor_elements();
    /* Gives the memory up to whoever calls the deleter. */
    static DLManagedTensorVersioned* as_tensor(Owner memory, const Shape& shape, DLDataType type);

 private:
    friend class SpareMemory;

    ArrayMemory(SpareMemory& home, size_t n_bytes);

    SpareMemory& home_; /* where it goes back to */
    const size_t n_bytes_;
    DLManagedTensorVersioned tensor_;
    int64_t shape_[max_axes];
    int64_t strides_[max_axes];
};

/*
 * Memory for the arrays that a buffer makes anew for each batch, of one of its outputs. Arrays that nobody holds any
 * more leave theirs for the next ones of the same size: two, as a learner has one batch while it draws the next. What
 * malloc gives instead has often left the caches, or comes from the kernel page by page: for a batch of images that
 * takes longer than to draw it.
 *
 * Arrays are given up by any thread, also without Python's lock, and this may be forked at any time: there is no lock.
 * They may outlive their buffer: an object of this class is never freed, but serves a later buffer.
 */
class SpareMemory {
 public:
    struct Close {
        void operator()(SpareMemory* memory) const;
    };
    using Owner = std::unique_ptr<SpareMemory, Close>;

    /* With Python's lock, as the owner's end. */
    static Owner open();

    /* For so many bytes of elements. NULL where there is no memory. */
    ArrayMemory::Owner take(size_t element_bytes);
    /* What is kept is freed, and so is what comes back from now on. */
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

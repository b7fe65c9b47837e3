#ifndef PER_BRIDGE_READER_H
#define PER_BRIDGE_READER_H

#include <per.h>
#include <pybind11/pybind11.h>

#include <array>
#include <forward_list>
#include <optional>
#include <utility>
#include <vector>

#include "dlpack.h"

namespace per::bridge {

namespace py = pybind11;

/* The per_dtype of DLPack's element type, and back. Empty for what per.h has no name for. */
std::optional<per_dtype> dtype_of(DLDataType type);
DLDataType dlpack_type_of(int32_t dtype);

/* Whether all elements of a tensor lie there, aligned and without gaps, the last axis fastest. */
bool is_contiguous_on(const DLDevice& device, const DLTensor& tensor);

constexpr DLDevice host_device{kDLCPU, 0};

/* How tensors of a type are read. */
struct TensorType {
    py::object type;
    const DLPackExchangeAPI* api; /* NULL: they are no tensors, or their library does not offer DLPack's C functions */
    py::object is_negated;        /* the method that says whether the elements in memory are to be negated, or None */
};

/*
 * What types of arrays are known by. The C functions of a tensor library are looked up once for each of its types.
 */
class ArrayTypes {
 public:
    /* as_array is per._arrays.as_array, which reads everything that is not read here. */
    explicit ArrayTypes(py::object as_array);

    /*
     * The C functions of the library that this is the type of tensors of; else NULL. A subclass is not: what its
     * elements are is for its methods to say.
     */
    const DLPackExchangeAPI* exchange_api(PyTypeObject* type) { return find(type).api; }

    /*
     * Where a tensor lies; false for what has to be read otherwise: what is no tensor, has no memory of its own, as
     * those of a transformation have none, or has elements in memory that are not its own, but their negatives.
     */
    bool find_tensor(PyObject* source, DLTensor& tensor);

    /* The per_dtype of a numpy dtype; empty unless it is one of numpy's own, in native byte order. */
    std::optional<per_dtype> dtype_of(const void* descr) const;

    const py::object& as_array() const { return as_array_; }

 private:
    const TensorType& find(PyTypeObject* type);

    py::object as_array_;
    std::array<std::pair<py::object, per_dtype>, 12> dtypes_;
    std::vector<TensorType> types_;
    TensorType other_{};
};

/*
 * Reads the arrays of one call. What the per_arrays point at stays as long as the reader.
 *
 * For calls on host memory copies are made by as_array only: of arrays that are not contiguous, not in host memory, or
 * no arrays but lists. For calls on a CUDA device nothing is copied here.
 */
class Reader {
 public:
    /* Where arrays are looked for. */
    enum class Where {
        host,  /* there, or copied to there */
        both,  /* in host memory or on the device, in place */
        device /* on the device, in place */
    };

    explicit Reader(ArrayTypes& types, DLDevice device = host_device) : types_(types), device_(device) {}
    ~Reader();
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

    /*
     * name: of the argument, for messages. False, and no error, for what only Python can read; never so for `host`.
     * None is read: as an array that is not given.
     */
    bool read(PyObject* source, py::handle name, per_array& array, Where where = Where::host);

 private:
    bool read_numpy(PyObject* source, per_array& array) const;
    bool read_number(PyObject* source, per_array& array);
    bool read_tensor(PyObject* source, per_array& array, Where where);
    bool read_buffer(PyObject* source, per_array& array);
    void read_converted(PyObject* source, py::handle name, per_array& array);
    void set_number(per_array& array, per_dtype dtype, const void* bytes, size_t size);

    ArrayTypes& types_;
    DLDevice device_;
    std::array<uint64_t, 32> numbers_;
    size_t number_count_ = 0;
    std::forward_list<Py_buffer> buffers_;
    std::vector<py::object> kept_;
};

}  // namespace per::bridge

#endif  // PER_BRIDGE_READER_H

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

/* The per_dtype of DLPack's element type, and back. Empty for types that per.h does not have. */
std::optional<per_dtype> dtype_of(DLDataType type);
DLDataType dlpack_type_of(int32_t dtype);

/* True if the tensor is on that device, aligned and without gaps, the last axis fastest. */
bool is_contiguous_on(const DLDevice& device, const DLTensor& tensor);

constexpr DLDevice host_device{kDLCPU, 0};

/* How tensors of a type are read. */
struct TensorType {
    py::object type;
    const DLPackExchangeAPI* api; /* NULL: not tensors, or their library does not offer DLPack's C functions */
    py::object is_negated;        /* the method that tells whether the elements in memory are lazily negated, or None */
};

/*
 * Cached properties of array types. The C functions of a tensor library are looked up once for each of its types.
 */
class ArrayTypes {
 public:
    /* as_array is per._arrays.as_array, which reads all arrays that are not read here. */
    explicit ArrayTypes(py::object as_array);

    /*
     * The C functions of the library whose tensor type this is; NULL for other types. Subclasses count as other types,
     * since their methods may redefine their elements.
     */
    const DLPackExchangeAPI* exchange_api(PyTypeObject* type) { return find(type).api; }

    /*
     * Describes the memory of a tensor. Returns false if the source must be read in another way: it is not a tensor, it
     * has no memory (as inside a transformation), or it is lazily negated.
     */
    bool find_tensor(PyObject* source, DLTensor& tensor);

    /* The per_dtype of a numpy dtype; empty unless it is a built-in one in native byte order. */
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
 * Reads the arrays of one call. The data that the per_arrays point to lives as long as the reader.
 *
 * For calls on host memory, only as_array makes copies: of arrays that are not contiguous or not in host memory, and of
 * lists. For calls on a CUDA device nothing is copied here.
 */
class Reader {
 public:
    /* The allowed locations of arrays. */
    enum class Where {
        host,  /* in host memory, copied there if necessary */
        both,  /* in host memory or on the device, in place */
        device /* on the device, in place */
    };

    explicit Reader(ArrayTypes& types, DLDevice device = host_device) : types_(types), device_(device) {}
    ~Reader();
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

    /*
     * `name` is the argument's name for messages. Returns false without an error if only Python can read the array,
     * which never happens for `host`. None is read as an array that is not given.
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

#include "reader.h"

#include <cstring>

#include "numpy.h"

namespace per::bridge {

namespace {

// Shape of numbers, and memory of empty arrays, where NULL would mean "unchecked" and "not given".
const int64_t no_axes = 0;
const uint64_t no_elements = 0;

struct NumpyType {
    int number;
    per_dtype dtype;
};
constexpr std::array<NumpyType, 12> numpy_types{{{NPY_BOOL, PER_BOOL},
                                                 {NPY_UINT8, PER_UINT8},
                                                 {NPY_INT8, PER_INT8},
                                                 {NPY_UINT16, PER_UINT16},
                                                 {NPY_INT16, PER_INT16},
                                                 {NPY_UINT32, PER_UINT32},
                                                 {NPY_INT32, PER_INT32},
                                                 {NPY_UINT64, PER_UINT64},
                                                 {NPY_INT64, PER_INT64},
                                                 {NPY_FLOAT16, PER_FLOAT16},
                                                 {NPY_FLOAT32, PER_FLOAT32},
                                                 {NPY_FLOAT64, PER_FLOAT64}}};

struct DlpackType {
    per_dtype dtype;
    uint8_t code;
    uint8_t bits;
};
constexpr std::array<DlpackType, 13> dlpack_types{{{PER_BOOL, kDLBool, 8},
                                                   {PER_UINT8, kDLUInt, 8},
                                                   {PER_INT8, kDLInt, 8},
                                                   {PER_UINT16, kDLUInt, 16},
                                                   {PER_INT16, kDLInt, 16},
                                                   {PER_UINT32, kDLUInt, 32},
                                                   {PER_INT32, kDLInt, 32},
                                                   {PER_UINT64, kDLUInt, 64},
                                                   {PER_INT64, kDLInt, 64},
                                                   {PER_FLOAT16, kDLFloat, 16},
                                                   {PER_BFLOAT16, kDLBfloat, 16},
                                                   {PER_FLOAT32, kDLFloat, 32},
                                                   {PER_FLOAT64, kDLFloat, 64}}};

// The element type of a struct-module format, if it is a single number in native byte order.
std::optional<per_dtype> dtype_of_format(const char* format, Py_ssize_t size) {
    if (*format == '@' || *format == '=') ++format;
    if (format[0] == '\0' || format[1] != '\0') return {};
    const auto bits = static_cast<uint8_t>(8 * size);
    if (*format == '?') return dtype_of(DLDataType{kDLBool, bits, 1});
    if (std::strchr("bhilq", *format)) return dtype_of(DLDataType{kDLInt, bits, 1});
    if (std::strchr("BHILQ", *format)) return dtype_of(DLDataType{kDLUInt, bits, 1});
    if (std::strchr("efd", *format)) return dtype_of(DLDataType{kDLFloat, bits, 1});
    return {};
}

bool has_elements(const int64_t* shape, int32_t ndim) {
    for (int32_t axis = 0; axis < ndim; ++axis) {
        if (shape[axis] == 0) return false;
    }
    return true;
}

void describe(per_array& array, const void* elements, const int64_t* shape, int32_t ndim, per_dtype dtype) {
    array.data = has_elements(shape, ndim) ? elements : &no_elements;
    array.shape = ndim == 0 ? &no_axes : shape;
    array.ndim = ndim;
    array.dtype = dtype;
}

}  // namespace

std::optional<per_dtype> dtype_of(DLDataType type) {
    for (const DlpackType& known : dlpack_types) {
        if (known.code == type.code && known.bits == type.bits && type.lanes == 1) return known.dtype;
    }
    return {};
}

DLDataType dlpack_type_of(int32_t dtype) {
    for (const DlpackType& known : dlpack_types) {
        if (known.dtype == dtype) return {known.code, known.bits, 1};
    }
    throw std::invalid_argument("no such dtype");
}

bool is_contiguous_on(const DLDevice& device, const DLTensor& tensor) {
    if (tensor.device.device_type != device.device_type || tensor.device.device_id != device.device_id) return false;
    if (!has_elements(tensor.shape, tensor.ndim)) return true;
    const auto address = reinterpret_cast<uintptr_t>(tensor.data) + tensor.byte_offset;
    if (tensor.data == nullptr || address % (tensor.dtype.bits / 8) != 0) return false;
    if (tensor.strides == nullptr) return true;
    int64_t expected = 1;
    for (int32_t axis = tensor.ndim - 1; axis >= 0; --axis) {
        if (tensor.shape[axis] != 1 && tensor.strides[axis] != expected) return false;
        expected *= tensor.shape[axis];
    }
    return true;
}

ArrayTypes::ArrayTypes(py::object as_array) : as_array_(std::move(as_array)) {
    for (size_t i = 0; i < dtypes_.size(); ++i) {
        auto* descr = reinterpret_cast<PyObject*>(PyArray_DescrFromType(numpy_types[i].number));
        dtypes_[i] = {py::reinterpret_steal<py::object>(descr), numpy_types[i].dtype};
    }
}

const TensorType& ArrayTypes::find(PyTypeObject* type) {
    for (const TensorType& known : types_) {
        if (known.type.ptr() == reinterpret_cast<PyObject*>(type)) return known;
    }
    TensorType found{py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(type)), nullptr, py::none()};
    if (py::getattr(found.type, "__dict__").contains("__dlpack_c_exchange_api__")) {
        const py::object capsule = py::getattr(found.type, "__dlpack_c_exchange_api__");
        if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) {
            found.api =
                static_cast<const DLPackExchangeAPI*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
            if (found.api->header.version.major != 1 || found.api->dltensor_from_py_object_no_sync == nullptr)
                found.api = nullptr;
        }
        found.is_negated = py::getattr(found.type, "is_neg", py::none());
    }
    // Programs have few array types. For one that creates thousands, further types are not cached.
    if (types_.size() >= 64) return other_ = std::move(found);
    return types_.emplace_back(std::move(found));
}

bool ArrayTypes::find_tensor(PyObject* source, DLTensor& tensor) {
    const TensorType& type = find(Py_TYPE(source));
    if (type.api == nullptr) return false;
    if (type.api->dltensor_from_py_object_no_sync(source, &tensor) != 0) {
        PyErr_Clear();
        return false;
    }
    if (type.is_negated.is_none() || tensor.dtype.code == kDLBool) return true;
    const auto answer = py::reinterpret_steal<py::object>(PyObject_CallOneArg(type.is_negated.ptr(), source));
    if (!answer) throw py::error_already_set();
    return answer.ptr() == Py_False;
}

std::optional<per_dtype> ArrayTypes::dtype_of(const void* descr) const {
    for (const auto& [known, dtype] : dtypes_) {
        if (known.ptr() == descr) return dtype;
    }
    return {};
}

Reader::~Reader() {
    for (Py_buffer& buffer : buffers_) PyBuffer_Release(&buffer);
}

bool Reader::read(PyObject* source, py::handle name, per_array& array, Where where) {
    if (source == Py_None) return true;
    if (where == Where::device) return read_tensor(source, array, where);
    if (PyArray_CheckExact(source)) {
        if (read_numpy(source, array)) return true;
    } else if (PyArray_Check(source)) {
        // The methods of a subclass define its elements: a masked array leaves some out.
    } else if (read_number(source, array) || read_tensor(source, array, where) || read_buffer(source, array)) {
        return true;
    }
    if (where != Where::host) return false;
    read_converted(source, name, array);
    return true;
}

bool Reader::read_numpy(PyObject* source, per_array& array) const {
    auto* given = reinterpret_cast<PyArrayObject*>(source);
    const auto dtype = types_.dtype_of(PyArray_DESCR(given));
    if (!dtype || !PyArray_IS_C_CONTIGUOUS(given) || !PyArray_ISALIGNED(given)) return false;
    static_assert(sizeof(npy_intp) == sizeof(int64_t));
    const auto* shape = reinterpret_cast<const int64_t*>(PyArray_DIMS(given));
    describe(array, PyArray_DATA(given), shape, PyArray_NDIM(given), *dtype);
    return true;
}

void Reader::set_number(per_array& array, per_dtype dtype, const void* bytes, size_t size) {
    uint64_t& number = numbers_[number_count_++];
    std::memcpy(&number, bytes, size);
    array = {&number, &no_axes, 0, dtype, nullptr};
}

bool Reader::read_number(PyObject* source, per_array& array) {
    if (number_count_ == numbers_.size()) return false;
    if (PyFloat_Check(source)) {
        const double value = PyFloat_AS_DOUBLE(source);
        set_number(array, PER_FLOAT64, &value, sizeof value);
    } else if (PyBool_Check(source)) {
        const uint8_t value = source == Py_True;
        set_number(array, PER_BOOL, &value, sizeof value);
    } else if (PyLong_CheckExact(source)) {
        int is_beyond = 0;
        const int64_t value = PyLong_AsLongLongAndOverflow(source, &is_beyond);
        if (is_beyond) return false;
        // Unsigned if possible: Python integers have no dtype, and this way they also fit unsigned fields.
        set_number(array, value < 0 ? PER_INT64 : PER_UINT64, &value, sizeof value);
    } else {
        return false;
    }
    return true;
}

bool Reader::read_tensor(PyObject* source, per_array& array, Where where) {
    DLTensor tensor;
    if (!types_.find_tensor(source, tensor)) return false;
    const auto dtype = bridge::dtype_of(tensor.dtype);
    const bool is_readable = (where != Where::device && is_contiguous_on(host_device, tensor)) ||
                             (where != Where::host && is_contiguous_on(device_, tensor));
    if (!dtype || !is_readable) return false;
    describe(array, static_cast<const char*>(tensor.data) + tensor.byte_offset, tensor.shape, tensor.ndim, *dtype);
    return true;
}

bool Reader::read_buffer(PyObject* source, per_array& array) {
    if (!PyObject_CheckBuffer(source)) return false;
    Py_buffer& buffer = buffers_.emplace_front();
    if (PyObject_GetBuffer(source, &buffer, PyBUF_ND | PyBUF_FORMAT) != 0) {
        PyErr_Clear();
        buffers_.pop_front();
        return false;
    }
    const auto dtype = dtype_of_format(buffer.format != nullptr ? buffer.format : "B", buffer.itemsize);
    if (!dtype || reinterpret_cast<uintptr_t>(buffer.buf) % static_cast<size_t>(buffer.itemsize) != 0) {
        PyBuffer_Release(&buffer);
        buffers_.pop_front();
        return false;
    }
    static_assert(sizeof(Py_ssize_t) == sizeof(int64_t));
    describe(array, buffer.buf, reinterpret_cast<const int64_t*>(buffer.shape), buffer.ndim, *dtype);
    return true;
}

void Reader::read_converted(PyObject* source, py::handle name, per_array& array) {
    const py::tuple converted = types_.as_array()(py::handle(source), name);
    const py::object elements = converted[0];
    if (!PyArray_Check(elements.ptr())) throw py::type_error("as_array gave no array");
    auto* given = reinterpret_cast<PyArrayObject*>(elements.ptr());
    const auto* shape = reinterpret_cast<const int64_t*>(PyArray_DIMS(given));
    describe(array, PyArray_DATA(given), shape, PyArray_NDIM(given), static_cast<per_dtype>(converted[1].cast<int>()));
    kept_.push_back(elements);
}

}  // namespace per::bridge
